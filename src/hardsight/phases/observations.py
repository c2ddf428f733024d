"""The AVH paper's observations, its conjecture and its slides' discoveries, each measured on recorded runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.phases.claims import CLAIMS, NO, PARTLY, YES, Finding, Net, unmeasured
from hardsight.phases.nets import OVER, hardness_against_accuracy
from hardsight.phases.samples import frequencies
from hardsight.stats import FEW

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics


def observations(
    runs: Mapping[str, Dynamics], human: Any = None, *, shortcuts: Mapping[str, bool] | None = None
) -> pa.Table:
    """Each claim judged on each recorded network.

    Args:
        runs: Networks by name, recorded over the same data.
        human: Human selection frequencies, as for `agreement`; claims that need them are not measured without.
        shortcuts: Which networks have shortcuts; names with resnet or densenet do where it says nothing, names with
            alexnet or vgg do not.

    Returns:
        Rows ``source``, ``claim``, ``rule``, ``net`` ("all nets" for what is judged over them), ``n``, ``measured`` in
        words, ``value``, ``low``, ``high``, and ``verdict``: yes, partly, no, not measured.
    """
    nets = [
        Net(name, run, None if human is None else frequencies(run, human), _has_shortcuts(name, shortcuts or {}))
        for name, run in runs.items()
    ]
    rows = []
    for claim in CLAIMS:
        told = {"source": claim.source, "claim": claim.claim, "rule": claim.rule}
        rows += [{**told, "net": net.name, **claim.judge(net)._asdict()} for net in nets]
    rows.append(_over_nets(runs))
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("source", "claim", "rule", "net")]
    + [("n", pa.int64()), ("measured", pa.string())]
    + [(name, pa.float64()) for name in ("value", "low", "high")]
    + [("verdict", pa.string())]
)


def _over_nets(runs: Mapping[str, Dynamics]) -> dict[str, Any]:
    rows = [row for row in hardness_against_accuracy(runs).to_pylist() if row["scope"] == OVER]
    last = rows[-1]  # each net's own last epoch
    if min(map(len, runs.values()), default=0) < FEW:
        found = unmeasured(f"{FEW} samples of each net are needed")
    elif last["spearman"] is None:
        found = unmeasured("three networks or more are needed")._replace(n=last["n"])
    else:
        known = [row["spearman"] for row in rows[:-1] if row["spearman"] is not None]
        below = float(np.mean([value < 0 for value in known])) if known else float("nan")
        words = (
            f"Spearman of mean AVH and accuracy over {last['n']} nets at the end {last['spearman']:.2f} "
            f"(p = {last['p']:.2g}, exact, two-sided); below 0 in {below:.0%} of {len(known)} shared epochs"
        )
        verdict = NO if last["spearman"] >= 0 else YES if last["p"] < 0.05 else PARTLY
        found = Finding(verdict, words, last["n"], last["spearman"])
    return {
        "source": "Observation 4, Discovery 2",
        "claim": "Better models have a lower average AVH (over nets).",
        "rule": "yes: Spearman below 0 with exact two-sided p below .05; partly: below 0 only",
        "net": "all nets",
        **found._asdict(),
    }


def _has_shortcuts(name: str, told: Mapping[str, bool]) -> bool | None:
    if name in told:
        return told[name]
    known = {"resnet": True, "densenet": True, "alexnet": False, "vgg": False}
    return next((has for part, has in known.items() if part in name.lower()), None)
