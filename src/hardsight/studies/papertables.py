"""The papers' tables in their own layout, as data: a line per row, with the study, the measure and the levels per cell.

A table is an entry of `TABLES`. Figures that gather sweeps of several studies are in `FIGURES`. `hardsight.studies.
gathered` reads, prints and draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hardsight.registry import Registry
from hardsight.studies.quoted import printed_bins, printed_tables, quoted_domains, quoted_selection, quoted_visda


class TableCell(NamedTuple):
    """A cell of a table: a measure of a study at some levels."""

    measure: str
    where: str


class Row(NamedTuple):
    """A row of a table: its title, the study that measures it, and a cell per column."""

    title: str
    study: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of a paper that several studies make.

    Attributes:
        title: What it shows.
        columns: Titles of the columns.
        rows: Its rows.
        difference: Whether the last column's difference to the study's baseline is shown, paired by seed.
        p: Whether its p-value by Student's t-test with a pooled variance is shown, as the AMC paper prints it.
        quoted: Rows as printed in the paper, where its own arithmetic is checked or nothing else exists.
        sweeps: Studies whose sweeps a figure gathers.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    difference: bool = False
    p: bool = False
    quoted: Callable[[], pa.Table] | None = None
    sweeps: tuple[str, ...] = ()

    @property
    def studies(self) -> list[str]:
        """The studies that it is made from."""
        return list(dict.fromkeys([*(row.study for row in self.rows), *self.sweeps]))


TABLES: Registry[PaperTable] = Registry("table")
FIGURES: Registry[PaperTable] = Registry("figure of several studies")

# ---------------------------------------------------------------------------------------------------------------------
# The Encouraging Loss.


def _pair(title: str, study: str, measure: str, el: str, where: str = "") -> Row:
    """Cross-entropy and one end of the bonus."""
    and_ = f" and {where}" if where else ""
    return Row(title, study, (TableCell(measure, f"loss=ce{and_}"), TableCell(measure, f"loss={el}{and_}")))


_IMAGES = {
    "CIFAR-10, ResNet-50": ("cifar10-resnet50", "el:0.75"),
    "CIFAR-10, EfficientNet-B0": ("cifar10-efficientnet", "el:0.75"),
    "CIFAR-100, ResNet-50": ("cifar100-resnet50", "el:normal"),
    "CIFAR-100, EfficientNet-B0": ("cifar100-efficientnet", "el:0.75"),
    "ImageNet, ResNet-50": ("imagenet-resnet50", "el:0.75"),
    "ImageNet, EfficientNet-B0": ("imagenet-efficientnet", "el:0.75"),
}
TABLES["el-table-1"] = PaperTable(
    "Cross-entropy and the Encouraging Loss on various tasks: accuracy in % (best epoch on images), BLEU on sentences",
    ("CE", "EL"),
    (
        _pair("MNIST", "el-mnist", "best", "el:normal"),
        _pair("CIFAR-10, ResNet-18 for 10 epochs (paper: ResNet-50)", "el-log-end", "best", "el:0.75"),
        *(_pair(title, "el-images", "best", el, f"setting={name}") for title, (name, el) in _IMAGES.items()),
        _pair("PROTEINS", "proteins", "accuracy", "el:0.5,defer=25"),
        _pair("NCI1", "nci1", "accuracy", "el:0.5,defer=130"),
        _pair("De-En (Multi30k; paper: IWSLT)", "multi30k", "bleu", "el:0.5", "pair=de-en"),
        _pair("Fr-En (Multi30k; paper: IWSLT)", "multi30k", "bleu", "el:0.5", "pair=fr-en"),
    ),
    difference=True,
)


def _rate_rows(title: str, setting: str = "") -> Iterator[Row]:
    and_ = f" and setting={setting}" if setting else ""
    same, other = ("el-images", "el-image-rates") if setting else ("el-log-end", "el-rates")
    yield Row(f"{title}: CE", same, (TableCell("best", f"loss=ce{and_}"),))
    yield Row(f"{title}: CE, 2 × rate", other, (TableCell("best", f"loss=ce and rate=2{and_}"),))
    yield Row(f"{title}: EL (log end 1)", same, (TableCell("best", f"loss=el:normal{and_}"),))
    yield Row(f"{title}: EL, ½ × rate", other, (TableCell("best", f"loss=el:normal and rate=0.5{and_}"),))


TABLES["el-table-2"] = PaperTable(
    "The Encouraging Loss at half the learning rate, cross-entropy at twice the rate",
    ("accuracy, %",),
    (
        *_rate_rows("CIFAR-10, ResNet-18 for 10 epochs (paper: ResNet-50)"),
        *_rate_rows("CIFAR-10, ResNet-50", "cifar10-resnet50"),
        *_rate_rows("CIFAR-100, ResNet-50", "cifar100-resnet50"),
    ),
)

_SHOTS = {"all": "all", "many": "many", "medium": "med.", "few": "few"}
_METHODS = {
    "ce": "CE loss",
    "ce + conservative": "+ conservative bonus",
    "ce + normal": "+ normal bonus",
    "ce + aggressive": "+ aggressive bonus",
    "crt": "decoupling (cRT)",
    "crt + normal": "decoupling + normal bonus",
    "drw": "deferred re-weighting",
    "drw + normal, as released": "re-weighting + normal bonus",
}
TABLES["el-table-3"] = PaperTable(
    "Long-tailed data: accuracy in %",
    tuple(_SHOTS.values()),
    tuple(
        Row(f"{data}: {title}", study, tuple(TableCell(shots, f"method={method}{and_}") for shots in _SHOTS))
        for data, study, and_ in (
            ("iNaturalist-2018", "inaturalist", ""),
            ("CIFAR-10, 100 : 1", "cifar10-lt", " and ratio=100"),
        )
        for method, title in _METHODS.items()
    ),
)
_AT_FASHION = "question=ood and score=max_logit and on=fashion_mnist and metric"
TABLES["el-table-4"] = PaperTable(
    "OOD detection by the largest logit, shares: MNIST against Fashion-MNIST (ImageNet against iNaturalist: no study)",
    ("AUROC", "FPR95"),
    tuple(
        Row(
            title,
            "consequences-mnist",
            tuple(TableCell("value", f"arm={arm} and {_AT_FASHION}={m}") for m in ("auroc", "fpr95")),
        )
        for title, arm in (("CE", "ce"), ("EL", "el-released"))
    ),
)
TABLES["el-table-5"] = PaperTable(
    "MNIST: losses and their mirror bonuses, accuracy of the best epoch in %",
    ("original loss", "+ mirror bonus"),
    tuple(
        Row(title, "el-mnist", (TableCell("best", f"loss={plain}"), TableCell("best", f"loss={mirrored}")))
        for title, plain, mirrored in (
            ("CE loss + softmax", "ce", "el:normal"),
            ("MSE + softmax", "mse", "mirror"),
            ("MSE + sigmoid", "mse:sigmoid", "mirror:sigmoid"),
        )
    ),
)
FIGURES["el-fig-4"] = PaperTable(
    "Performance against the end of the logarithm, on all tasks",
    sweeps=("el-images", "el-log-end", "proteins", "nci1", "multi30k"),
)

# ---------------------------------------------------------------------------------------------------------------------
# The AMC-Loss.

_AMC_LOSSES = ("ce", "euclid:paper,down", "amc:paper,down")
_SHORT_LOSSES = ("ce", "euclid:paper", "amc:paper")
TABLES["amc-table-1"] = PaperTable(
    "Test accuracy in %; p by a t-test of the AMC-Loss against + Euclid, as the paper has it",
    ("cross-entropy", "+ Euclid", "+ AMC-Loss"),
    (
        *(
            Row(
                title,
                "amc-images",
                tuple(TableCell("accuracy", f"setting={name} and loss={loss}") for loss in _AMC_LOSSES),
            )
            for title, name in (
                ("MNIST", "mnist"),
                ("CIFAR-10", "cifar10"),
                ("SVHN", "svhn"),
                ("CIFAR-100, 20 super-classes", "cifar100-coarse"),
            )
        ),
        Row(
            "CIFAR-10, ResNet-18 for 10 epochs (paper: its own network)",
            "amc-pairs",
            tuple(TableCell("accuracy", f"loss={loss}") for loss in _SHORT_LOSSES),
        ),
    ),
    p=True,
)

# ---------------------------------------------------------------------------------------------------------------------
# Angular Visual Hardness.


def _quoted_of(source: str) -> pa.Table:
    rows = quoted_domains()
    return rows.filter(pc.match_substring(rows["source"], source)).drop_columns(["source"])


_BINS = ("all", "[0, 0.2)", "[0.2, 0.4)", "[0.4, 0.6)", "[0.6, 0.8)", "[0.8, 1]")


def _bins(title: str, score: str, measure: str = "agreement", first: str = "z") -> Row:
    """A measure of all images and by bin, after one more number of all images."""
    places = [(first, "all"), *((measure, bin_) for bin_ in _BINS)]
    cells = (TableCell(name, f"network=resnet50-32 and score={score} and bin={bin_}") for name, bin_ in places)
    return Row(title, "people-bins", tuple(cells))


TABLES["avh-table-1"] = PaperTable(
    "Spearman's correlation with human selection frequency, all images and by bin: ResNet-50 on CIFAR-10 and CIFAR-10H "
    "(paper: ImageNet, absolute values)",
    ("z-score", "all", *_BINS[1:]),
    (
        _bins("number of images", "avh", "samples", "samples"),
        _bins("AVH", "avh"),
        _bins("model confidence", "confidence"),
        _bins("norm within its class", "norm"),
    ),
    quoted=printed_bins,
)


def _printed(table: str) -> pa.Table:
    names = ("coefficient", "r_avh", "r_mc", "z_avh", "z_mc", "Z", "p_one_sided", "p_two_sided")
    rows, printed = printed_tables(), [f"printed_{name}" for name in ("z_avh", "z_mc", "Z", "p")]
    return rows.filter(pc.equal(rows["table"], table)).select([*names, *printed, "note"])


_NETWORKS = {
    "AlexNet": "alexnet-32",
    "VGG-19": "vgg19-32",
    "ResNet-50": "resnet50-32",
    "DenseNet-121": "densenet121-32",
}
_COEFFICIENTS = {"Spearman's rank": "spearman", "Pearson": "pearson", "Kendall's tau": "kendall"}
for _table, _title in (("2", "ResNet-50"), *zip("6789", _NETWORKS, strict=True)):
    TABLES[f"avh-table-{_table}"] = PaperTable(
        f"Correlations with human selection frequency: {_title} on CIFAR-10 and CIFAR-10H (paper: ImageNet); "
        "difference of AVH to confidence: hardsight study table people",
        ("AVH", "model confidence"),
        tuple(
            Row(
                _coefficient,
                "people",
                tuple(
                    TableCell(_name, f"network={_NETWORKS[_title]} and half=reporting and score={_score}")
                    for _score in ("avh", "confidence")
                ),
            )
            for _coefficient, _name in _COEFFICIENTS.items()
        ),
        quoted=partial(_printed, _table),
    )

_PAIRS = ("svhn-mnist", "mnist-usps", "pacs-photo-sketch", "pacs-photo-art", "usps-mnist")
_ADAPTED = {"CBST": "cbst", "CRST": "crst", "CBST+AVH": "cbst+avh"}
TABLES["avh-table-3"] = PaperTable(
    "Self-training between digits and between domains of PACS (paper: VisDA-17): mean accuracy of the classes "
    "in %, last round",
    tuple(_ADAPTED),
    tuple(
        Row(
            pair,
            "adaptation",
            tuple(TableCell("test_mean_class", f"pair={pair} and at=last and method={m}") for m in _ADAPTED.values()),
        )
        for pair in _PAIRS
    ),
    difference=True,
    quoted=quoted_visda,
)
_SELECTED = {
    "correct, %": "tp_rate",
    "AVC": "avc",
    "AVH": "avh",
    "confidence": "confidence",
    "norm": "norm",
}
TABLES["avh-table-4"] = PaperTable(
    "What is selected in the first round: SVHN → MNIST (paper: VisDA-17)",
    tuple(_SELECTED),
    tuple(
        Row(
            title,
            "adaptation",
            tuple(TableCell(m, f"pair=svhn-mnist and at=round 1 and method={method}") for m in _SELECTED.values()),
        )
        for title, method in (("CBST+AVH", "cbst+avh"), ("CBST", "cbst"))
    ),
    quoted=quoted_selection,
)
_DOMAINS = {
    "painting": "art_painting",
    "cartoon": "cartoon",
    "photo": "photo",
    "sketch": "sketch",
    "average": "average",
}


def _on_pacs(network: str, title: str) -> Iterator[Row]:
    for loss, suffix in (("ce", ""), ("avh", " + AVH")):
        levels = f"network={network} and loss={loss} and selection=train-domain and target"
        yield Row(title + suffix, "pacs", tuple(TableCell("accuracy", f"{levels}={d}") for d in _DOMAINS.values()))


_GENERALIZED = "PACS: accuracy in % on the domain that was left out, epoch by held-out samples of the other domains"
for _table, _network, _source in (("avh-table-5", "cnn10", "Table 5"), ("avh-slides-cnn9", "cnn9", "slides")):
    _shown = _network.upper().replace("CNN", "CNN-")
    TABLES[_table] = PaperTable(
        _GENERALIZED,
        tuple(_DOMAINS),
        (*_on_pacs(_network, _shown), *_on_pacs(f"{_network}-96", f"{_shown}, 96 pixels, from scratch")),
        quoted=partial(_quoted_of, _source),
    )
