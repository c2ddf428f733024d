"""Act on label errors: lists of what to keep, relabel and drop, cleaned data, and tables for other tools."""

from hardsight.cleaning.datalab import to_datalab as to_datalab
from hardsight.cleaning.lists import clean as clean
from hardsight.cleaning.lists import in_words as in_words
from hardsight.cleaning.lists import read_ids as read_ids
