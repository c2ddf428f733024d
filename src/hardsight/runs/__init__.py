"""The run folder: layout, meta data, tables in parts, locks, and what decides whether a result may be reused."""

from hardsight.runs.files import (
    TEMPORARY,
    check_replaceable,
    disk_errors,
    is_page,
    remove_files,
    sweep,
    temporary_name,
    write_json,
    write_text,
    write_together,
    write_whole,
)
from hardsight.runs.folder import (
    ALIGNMENT,
    DEGRADED,
    DYNAMICS,
    FEATURES,
    INDEX,
    LISTS,
    REPORT,
    STAGES,
    SUMMARY,
    RunWriter,
    begin,
    differing,
    discard,
    is_alignment,
    is_run,
    open_parts,
    read_kinds,
    read_run,
)
from hardsight.runs.identity import Identity, content_hash, gaps_entry, identify, is_users, module_attributes
from hardsight.runs.lock import LOCK_FILES, beside_lock, folder_lock
from hardsight.runs.meta import Counts, DataInfo, Folds, Meta, ModelInfo, Recorded, meta_of
from hardsight.runs.provenance import provenance, source_revision
from hardsight.runs.tables import SCHEMAS, check_values, checked_rows, damage_errors, is_number
from hardsight.runs.units import Units, write_unit
