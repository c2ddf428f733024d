"""`draw`: a figure by its name, from run folders and files to a picture."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.degradation import human_accuracy, read_degraded
from hardsight.dynamics import Dynamics
from hardsight.errors import InputError, MissingPathError
from hardsight.figures.adaptation import plot_adaptation, plot_adaptation_gallery
from hardsight.figures.catalogue import FIGURES
from hardsight.figures.curves import plot_agreement, plot_dynamics, plot_loss_drivers, plot_plateaus
from hardsight.figures.degradation import plot_degradation, plot_degraded_avh
from hardsight.figures.evaluated import read_evaluated
from hardsight.figures.evaluation import plot_clusters, plot_evaluated, plot_maps, plot_ood
from hardsight.figures.losses import plot_bonuses, plot_encouraging_loss, plot_label_noise
from hardsight.figures.people import plot_people
from hardsight.figures.points import plot_data_map, plot_embeddings, plot_norm_growth, plot_two_gaussians
from hardsight.figures.style import check_out, write_figure
from hardsight.human import frequency_bins
from hardsight.idtables import read_by_id
from hardsight.phases import agreement, frequencies, loss_drivers, plateaus
from hardsight.records import has_records
from hardsight.runs import DEGRADED
from hardsight.table import SampleTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Inputs:
    """What a figure may be made from."""

    paths: Sequence[Path]
    data: str | None
    groups: Path | None
    human: Path | None
    seed: int

    @cached_property
    def runs(self) -> dict[str, Dynamics]:
        """The recorded runs by their names."""
        return {name: _open(path) for name, path in self.named.items()}

    @property
    def named(self) -> dict[str, Path]:
        """The runs by as much of the end of their paths as tells them apart; of RUN/test, at least both names."""
        longest = max((len(path.parts) for path in self.paths), default=0)
        least = 2 if any(path.name in ("train", "test") for path in self.paths) else 1
        for parts in range(least, max(longest, least) + 1):
            names = ["/".join(path.parts[-parts:]) for path in self.paths]
            if len(set(names)) == len(names):
                return dict(zip(names, self.paths, strict=True))
        raise InputError(f"every RUN must be named once, got {', '.join(map(str, self.paths))}.")

    @property
    def courses(self) -> dict[str, Dynamics]:
        """The same, for figures of what happens from one epoch to the next."""
        for name, run in self.runs.items():
            if len(run.epochs) < 2:
                raise InputError(f"RUN: {name} must hold at least two {run.unit}s for this figure, got one.")
        return self.runs

    @property
    def one(self) -> tuple[str, Dynamics]:
        return next(iter(self.runs.items()))

    def by(self) -> dict[str, Any] | None:
        """The groups of each run: those of the file, or bins of human frequency, or none."""
        if self.groups is not None:
            return dict.fromkeys(self.runs, read_by_id(self.groups, "groups"))
        if self.human is not None:
            return {name: frequency_bins(frequencies(run, self.human)) for name, run in self.runs.items()}
        return None

    @property
    def unit(self) -> str:
        return self.one[1].unit


def _open(path: Path) -> Dynamics:
    inside = [path / name for name in ("test", "train") if has_records(path / name)]
    if inside and not has_records(path):
        raise MissingPathError(f"RUN: {path} holds a training; name {' or '.join(map(str, inside))}.")
    return Dynamics(path)


def _iterations(given: Inputs) -> Figure:
    from hardsight.studies import iterations

    if given.paths:
        return plot_dynamics(given.courses, values=("norm", "angle", "avh"))
    if given.data is None:
        raise InputError("the figure iterations needs --data, or a RUN that was recorded by iteration.")
    with tempfile.TemporaryDirectory() as folder:
        run = iterations(given.data, Path(folder) / "run", seed=given.seed)
        return plot_dynamics({"small CNN": run}, values=("norm", "angle", "avh"))


def _agreement(given: Inputs) -> Figure:
    human = given.human or Path()  # there is one: `draw` has looked
    found = {name: agreement(run, human) for name, run in given.courses.items()}
    for name, table in found.items():
        if not table["spearman"].is_valid().to_numpy().any():
            n = max(table["n"].to_pylist())
            raise InputError(f"human: 10 samples of {name} with frequencies that differ are needed, got {n} in all.")
    return plot_agreement(found, given.unit)


def _people(given: Inputs) -> Figure:
    from hardsight.alignment.folder import read_alignment
    from hardsight.human import match, read_human

    tables = {name: SampleTable.load(path) for name, path in given.named.items()}
    hsf = {}
    for name, table in tables.items():
        if "label" not in table:
            raise InputError(f"RUN: {name} has no labels, and people are asked about the label.")
        names = table.meta.class_names or None
        if given.human is not None:
            human = read_human(given.human, classes=names)
        elif (found := read_alignment(given.named[name])) is not None:
            human = found.people.select(["id", "hsf"])
        else:
            raise InputError(f"the figure people needs --human, or a RUN that hardsight align has seen, unlike {name}.")
        hsf[name] = match(human, table["id"], table["label"], names).hsf
    return plot_people(tables, hsf)


def _degradation(given: Inputs) -> Figure:
    if all(has_records(path) and not (path / DEGRADED).is_dir() for path in given.paths):
        levels = {name: [id_.partition("/")[0] for id_ in run.ids] for name, run in given.courses.items()}
        if all("=" in level for own in levels.values() for level in own):  # `at_every_level` was recorded
            return plot_dynamics(given.courses, levels)
    people = None if given.human is None else human_accuracy(given.human)
    return plot_degradation({name: read_degraded(path) for name, path in given.named.items()}, people)


def _adaptation(given: Inputs) -> Figure:
    from hardsight.adaptation import read_rounds

    return plot_adaptation({name: read_rounds(path) for name, path in given.named.items()})


def _adaptation_gallery(given: Inputs) -> Figure:
    from hardsight.adaptation import read_rounds, read_selection
    from hardsight.data import open_data

    first, second = ((name, read_selection(path, 1)) for name, path in given.named.items())
    names = json.loads((read_rounds(given.paths[0]).schema.metadata or {}).get(b"classes", "null"))
    return plot_adaptation_gallery(first, second, open_data(given.data, training=True), given.seed, names=names)


def _evaluated(plot: Callable[..., Figure], *which: str) -> Callable[[Inputs], Figure]:
    """A figure of an evaluation's folder."""
    return lambda given: plot(read_evaluated(given.paths[0]), *which)


def _plateaus(given: Inputs) -> Figure:
    [(name, run)] = given.courses.items()
    return plot_plateaus(run, plateaus(run, seed=given.seed), name)


def _embeddings(given: Inputs) -> Figure:
    from hardsight.studies import embeddings

    return plot_embeddings(embeddings(given.data, seed=given.seed))


def _two_gaussians(given: Inputs) -> Figure:
    from hardsight.studies import two_gaussians

    return plot_two_gaussians(two_gaussians(given.seed))


def _norm_growth(given: Inputs) -> Figure:
    from hardsight.studies import norm_growth

    return plot_norm_growth(norm_growth())


_MAKERS: dict[str, Callable[[Inputs], Figure]] = {
    "dynamics": lambda given: plot_dynamics(given.courses, given.by()),
    "loss-drivers": lambda given: plot_loss_drivers(
        {name: loss_drivers(run) for name, run in given.courses.items()}, given.unit
    ),
    "plateaus": _plateaus,
    "agreement": _agreement,
    "people": _people,
    "degradation": _degradation,
    "degradation-avh": lambda given: plot_degraded_avh(
        {name: read_degraded(path) for name, path in given.named.items()}
    ),
    "adaptation": _adaptation,
    "adaptation-gallery": _adaptation_gallery,
    "reliability": _evaluated(plot_evaluated, "calibration", "reliability"),
    "ood": _evaluated(plot_ood),
    "robustness": _evaluated(plot_evaluated, "robustness", "attack"),
    "margins": _evaluated(plot_evaluated, "margins", "margin"),
    "energy": _evaluated(plot_evaluated, "margins", "energy"),
    "maps": _evaluated(plot_maps),
    "clusters": _evaluated(plot_clusters),
    "data-map": lambda given: plot_data_map(given.one[1].summary(), given.one[0]),
    "iterations": _iterations,
    "embeddings": _embeddings,
    "two-gaussians": _two_gaussians,
    "norm-growth": _norm_growth,
    "encouraging-loss": lambda given: plot_encouraging_loss(),
    "bonuses": lambda given: plot_bonuses(),
    "label-noise": lambda given: plot_label_noise(),
}


def draw(
    name: str,
    runs: Sequence[str | Path] = (),
    *,
    data: str | None = None,
    groups: str | Path | None = None,
    human: str | Path | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Path:
    """Draw a figure and write it.

    Args:
        name: Which figure.
        runs: Recorded runs, for figures of training.
        data: What to train a small network on, for figures that do.
        groups: CSV or Parquet with a column id and one to group by.
        human: CSV or Parquet with id and hsf, or annotator counts (N × C) as .npy or .npz in the order of the data.
        seed: Seed of what is trained or drawn.
        out: The file to write: .png, .svg or .pdf; NAME.png if not given.

    Returns:
        The path of the file.
    """
    kind = FIGURES[name]
    fewest, most = kind.runs
    if not fewest <= len(runs) <= most:
        several = f"{most} RUNs" if fewest == most else f"{fewest} to {most} RUNs"
        wanted = {0: "no RUN", 1: "one RUN"}.get(most, several)
        raise InputError(f"the figure {name} takes {wanted}, got {len(runs)}.")
    given = {"data": data, "groups": groups, "human": human}
    for option, value in given.items():
        if option in kind.needs and value is None:
            raise InputError(f"the figure {name} needs --{option}, got none.")
        if value is not None and option not in (*kind.needs, *kind.takes):
            raise InputError(f"the figure {name} does not use --{option}; leave it out.")
    if groups is not None and human is not None:
        raise InputError(f"the figure {name} takes --groups or --human, got both; leave one out.")
    out = f"{name}.png" if out is None else out
    check_out(out)  # before anything is trained
    inputs = Inputs(
        paths=[Path(run) for run in runs],
        data=data,
        groups=None if groups is None else Path(groups),
        human=None if human is None else Path(human),
        seed=seed,
    )
    return write_figure(_MAKERS[name](inputs), out)
