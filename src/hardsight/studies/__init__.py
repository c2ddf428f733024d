"""The papers' comparisons and small experiments, to be rerun, and the verdicts on their claims."""

from hardsight.studies.claims import judged as judged
from hardsight.studies.declared.avh_claims import observations as observations
from hardsight.studies.declared.avh_measures import Bounce as Bounce
from hardsight.studies.declared.avh_measures import Switch as Switch
from hardsight.studies.declared.avh_measures import dip_and_bounce as dip_and_bounce
from hardsight.studies.declared.avh_measures import hardness_against_accuracy as hardness_against_accuracy
from hardsight.studies.declared.avh_measures import norm_gaps as norm_gaps
from hardsight.studies.declared.avh_measures import phase_switch as phase_switch
from hardsight.studies.declared.embeddings import Embeddings as Embeddings
from hardsight.studies.declared.embeddings import embeddings as embeddings
from hardsight.studies.declared.iterations import iterations as iterations
from hardsight.studies.declared.norm_growth import NormGrowth as NormGrowth
from hardsight.studies.declared.norm_growth import norm_growth as norm_growth
from hardsight.studies.declared.two_gaussians import TwoGaussians as TwoGaussians
from hardsight.studies.declared.two_gaussians import two_gaussians as two_gaussians
from hardsight.studies.engine import study as study
from hardsight.studies.quoted import printed_tables as printed_tables
from hardsight.studies.quoted import quoted_selection as quoted_selection
from hardsight.studies.quoted import quoted_visda as quoted_visda
from hardsight.studies.study import STUDIES as STUDIES
from hardsight.studies.study import Cell as Cell
from hardsight.studies.study import Measure as Measure
from hardsight.studies.study import Scale as Scale
from hardsight.studies.study import Study as Study
from hardsight.studies.tables import Results as Results
from hardsight.studies.tables import read_results as read_results
