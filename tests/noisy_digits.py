"""Real digits with planted wrong labels, scored by logistic regressions that did not see them."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from sklearn.linear_model import LogisticRegression

import hardsight as hs
from hardsight.data import load_digits
from hardsight.ensemble import as_lists


@dataclass(frozen=True)
class NoisyDigits:
    table: hs.SampleTable
    pictures: np.ndarray
    given: np.ndarray  # labels as the data have them
    true: np.ndarray
    probabilities: np.ndarray

    @property
    def wrong(self):
        return self.given != self.true


@cache
def noisy_digits(rate=0.05, seed=0):
    pictures, true = load_digits()
    x, n = pictures.reshape(len(true), -1) / 255, len(true)
    rng = np.random.default_rng(seed)
    given = true.copy()
    chosen = rng.choice(n, round(rate * n), replace=False)
    given[chosen] = (true[chosen] + rng.integers(1, 10, len(chosen))) % 10
    fold = rng.permutation(n) % 5
    parts, probabilities = [], np.empty((n, 10), dtype=np.float32)
    for held_out in range(5):
        net = LogisticRegression(max_iter=300).fit(x[fold != held_out], given[fold != held_out])
        at = np.flatnonzero(fold == held_out)
        probabilities[at] = net.predict_proba(x[at])
        ids = [f"digits:{i}" for i in at]
        parts.append(hs.score_features(x[at], net.coef_, given[at], net.intercept_, ids).to_arrow())
    order = rng.permutation(n)  # vectors are found by id, in any order
    vectors = pa.table({"id": [f"digits:{i}" for i in order], "probabilities": as_lists(probabilities[order])})
    meta = {
        "model": {"name": "regression", "classes": 10},
        "class_names": list("0123456789"),
        "out_of_sample": {"folds": 5, "retrained": "model", "seeds": 1},
    }
    rows = pa.concat_tables(parts)
    order = np.argsort([int(id_.split(":")[1]) for id_ in rows["id"].to_pylist()])
    return NoisyDigits(hs.SampleTable(rows.take(order), meta, None, vectors), pictures, given, true, probabilities)
