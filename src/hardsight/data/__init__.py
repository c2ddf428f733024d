"""Any data set as samples with labels and stable ids."""

from hardsight.data.datasets import hashed_once as hashed_once
from hardsight.data.features import FeatureSet as FeatureSet
from hardsight.data.features import is_feature_file as is_feature_file
from hardsight.data.features import read_features as read_features
from hardsight.data.open import changed_since as changed_since
from hardsight.data.open import data_of as data_of
from hardsight.data.open import load_digits as load_digits
from hardsight.data.open import open_data as open_data
from hardsight.data.open import split_off as split_off
from hardsight.data.prepared import Item as Item
from hardsight.data.prepared import Prepared as Prepared
from hardsight.data.prepared import class_mapping as class_mapping
from hardsight.data.prepared import collate as collate
from hardsight.data.prepared import places_by_name as places_by_name
from hardsight.data.samples import ArraySamples as ArraySamples
from hardsight.data.samples import Columns as Columns
from hardsight.data.samples import MissingColumnError as MissingColumnError
from hardsight.data.samples import Samples as Samples
from hardsight.data.samples import all_labels as all_labels
from hardsight.data.samples import class_index as class_index
from hardsight.data.samples import id_texts as id_texts
from hardsight.data.samples import version_hint as version_hint
from hardsight.data.views import JoinedSamples as JoinedSamples
from hardsight.data.views import View as View
from hardsight.data.views import in_form as in_form
from hardsight.data.views import in_form_of as in_form_of
