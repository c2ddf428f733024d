"""The network and the data of a run, built again from what it says of itself, or from what the user says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import Samples, data_of
from hardsight.degradation import DEGRADATIONS
from hardsight.errors import InputError, MissingPathError
from hardsight.models import Model, load_model
from hardsight.runs import Folds, Meta, is_run, read_run
from hardsight.table import SampleTable
from hardsight.training.checkpoint import PLAN, RECORDS, trained_model

# Names that stand for a library's own network. A run may come from somebody else: no file of Python is run, and
# nothing that anybody may upload (``hf:``) is fetched, because a run folder names it.
_LIBRARIES = ("timm:", "torchvision:", "hardsight:")


class Rebuilt(NamedTuple):
    """A network, its data, the folder that holds their rows, and what that folder says of itself."""

    model: Model
    samples: Samples
    folder: Path
    meta: Meta


def rebuilt(run: Path, model: str | None = None, checkpoint: Path | None = None, data: str | None = None) -> Rebuilt:
    """The network and data of a run that was scored or trained.

    Args:
        run: The folder; of a training, the whole or its ``test`` or ``train``.
        model: What to build where the run does not say.
        checkpoint: Its weights; the run's own if not given.
        data: Where the data are, if they have moved or were not named.
    """
    folder, meta = folder_of(run)
    return Rebuilt(network_of(folder, meta, model, checkpoint), data_of(meta, data), folder, meta)


def folder_of(run: Path) -> tuple[Path, Meta]:
    """The folder that holds the rows of a run, and what it says of itself: of a training those of the test."""
    folder = run
    if (run / PLAN).is_file():
        folder = next((run / name for name in reversed(RECORDS) if is_run(run / name)), run)
        if folder == run:
            raise MissingPathError(f"RUN: {run} was trained without records; name what to evaluate: {run}/test.")
    return folder, read_run(folder, partial=True, kinds=())[1]


def training_of(folder: Path) -> Path | None:
    """The training whose records a folder holds, or None."""
    return folder.parent if folder.name in RECORDS and (folder.parent / PLAN).is_file() else None


def network_of(folder: Path, meta: Meta, model: str | None = None, checkpoint: Path | None = None) -> Model:
    """The network of a run; arguments as for `rebuilt`."""
    training = training_of(folder)
    if training is not None:
        return trained_model(training, model, checkpoint)
    if model is not None:
        return load_model(model, checkpoint)
    return load_model(*_library_model(folder, meta, checkpoint))


def _library_model(run: Path, meta: Meta, checkpoint: Path | None) -> tuple[str, Path | str | None]:
    """The name of the one network of a library that a run was scored with, and its checkpoint."""
    name, built = meta.model.name or "a network", meta.built
    if not has_one_network(meta):
        raise InputError(f"RUN: {run} was made with several networks ({name}); name the one to try with --model.")
    network = built.get("model") or ""
    if not network.startswith(_LIBRARIES):
        raise InputError(
            f"RUN: {run} was made with {name!r}, which cannot be built again from what it says; name the network with "
            "--model (and --checkpoint), as when it was scored."
        )
    return network, checkpoint or built.get("checkpoint")


def has_one_network(meta: Meta) -> bool:
    """Whether one network scored all rows of a run: not one a fold, nor several together."""
    return not meta.nets and not isinstance(meta.out_of_sample, Folds)


def warn_of_another_network(rows: pa.Table, subject: Rebuilt) -> None:
    """A warning if clean images are not predicted as in the run: then its network was another one.

    Args:
        rows: What `evaluate_degraded` returned.
        subject: The network and its run.
    """
    name = rows["degradation"][0].as_py()
    clean = rows.filter(pc.and_(pc.equal(rows["degradation"], name), pc.equal(rows["level"], DEGRADATIONS[name].clean)))
    run = SampleTable.load(subject.folder, partial=True).to_arrow()
    at = pc.index_in(clean["id"], value_set=run["id"].combine_chunks())
    same = pc.mean(pc.equal(clean["pred"], run["pred"].take(at)).cast("double")).as_py()
    if len(clean) and (same is None or same < 0.95):
        share = "none of them is in the run" if same is None else f"{same:.0%} of them the same"
        warnings.warn(
            f"RUN: {subject.folder} predicts its clean images differently ({share}): is it the same network, "
            "preprocessing and data?",
            UserWarning,
            stacklevel=2,
        )
