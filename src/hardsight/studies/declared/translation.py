"""Machine translation with and without a bonus for well-classified tokens (EL, Table 1)."""

from __future__ import annotations

from typing import Any

from hardsight.studies.declared.losses import LOG_ENDS
from hardsight.studies.study import STUDIES, Cell, Measure, Scale
from hardsight.translation import Pair, read_pairs, train_translation

_WORDS = {"ein": "a", "hund": "dog", "mann": "man", "rennt": "runs", "schläft": "sleeps", "und": "and", "nicht": "not"}
_NETWORK = {"width": 256, "layers": 3, "heads": 4, "dropout": 0.3}
# Files LANGUAGE.tok of each part, in the layout of Multi30k and of the papers' own preprocessing of IWSLT.
_MULTI30K = {
    "data": "multi30k", "epochs": 20, "network": _NETWORK, "averaged": 5,
    "files": "data/task1/tok/{part}.lc.norm.tok.{language}", "parts": ("train", "val", "test_2016_flickr"),
}  # fmt: skip
_IWSLT = {
    "data": "iwslt14", "epochs": 50, "network": {**_NETWORK, "width": 512, "layers": 6, "dropout": 0.4}, "averaged": 10,
    "files": "{part}.{language}", "parts": ("train", "valid", "test"),
}  # fmt: skip


def _toy_pairs(count: int) -> list[Pair]:
    """Sentences of a tiny language that are translated word by word."""
    words = list(_WORDS)
    rows = [[words[(7 * k + j * j + k // 7) % len(words)] for j in range(2 + k % 4)] for k in range(count)]
    return [(" ".join(row), " ".join(_WORDS[word] for word in row)) for row in rows]


def _trained(cell: Cell) -> dict[str, Any]:
    settings, (source, target) = cell.settings, cell.levels["pair"].split("-")
    if "data" in settings:
        folder = f"{cell.file(settings['data'])}/{settings['files']}"
        train, validation, test = (
            read_pairs(folder.format(part=part, language=source), folder.format(part=part, language=target))
            for part in settings["parts"]
        )
    else:
        train, validation, test = _toy_pairs(200), _toy_pairs(20), _toy_pairs(20)
    options = {name: settings[name] for name in ("epochs", "averaged", "tokens", "warmup", "lr") if name in settings}
    model = train_translation(
        train, loss=cell.levels["loss"], seed=cell.seed, device=cell.device, **options, **settings["network"]
    )
    return {"bleu": model.bleu(test), "validation": model.bleu(validation), "train_loss": model.history[-1]["loss"]}


STUDIES.register(
    "multi30k",
    question="Does a bonus for well-classified tokens help translation? (Multi30k in place of IWSLT)",
    paper="EL, Table 1 and Fig. 4 (there IWSLT)",
    factors={"pair": ("de-en", "fr-en"), "loss": ("ce", "el:0", "el:0.25", "el:0.5", "el:0.75", "el:normal")},
    measures={
        "bleu": Measure("BLEU on the test sentences", better="higher"),
        "validation": Measure("BLEU on the validation sentences", better="higher"),
        "train_loss": Measure("Training loss in the last epoch"),
    },
    scales={
        "smoke": Scale(
            1, 10, levels={"pair": ("de-en",), "loss": ("ce", "el:0.5")},
            settings={
                "epochs": 8, "averaged": 1, "tokens": 256, "warmup": 10, "lr": 5e-3,
                "network": {"width": 32, "layers": 1, "heads": 2, "dropout": 0.0},
            },
        ),
        "quick": Scale(5, 120, "NVIDIA H200", _MULTI30K),
        "paper": Scale(5, 3000, "NVIDIA H200", _IWSLT, {"pair": ("de-en",)}),
    },
    compare="loss",
    baseline="ce",
    sweeps=(LOG_ENDS,),
)(_trained)  # fmt: skip
