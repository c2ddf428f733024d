"""Any data set as samples with labels and stable ids."""

from hardsight.data.batches import Source, as_pixels, mean_and_std, warn_unreadable
from hardsight.data.featurefiles import FeatureSamples, features_of
from hardsight.data.features import FEATURE_FILES, FeatureRows, FeatureSet, read_features
from hardsight.data.open import DataName, changed_since, data_of, load_digits, open_data
from hardsight.data.parquet import holds_images
from hardsight.data.prepared import Prepared, class_mapping, load_batches, places_by_name
from hardsight.data.samples import ArraySamples, Columns, MissingColumnError, Samples, all_labels, class_index, id_texts
from hardsight.data.views import JoinedSamples, View, in_form, in_form_of
