"""A run as a cleanlab Datalab: cleanlab's audit of our out-of-sample probabilities, with our scores beside it."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np

from hardsight.errors import StateError
from hardsight.extras import need
from hardsight.labelerrors import check_ranking, probability_matrix
from hardsight.table import SampleTable


def to_datalab(table: SampleTable, by: str | None = None) -> Any:
    """A ``cleanlab.Datalab`` that has looked for issues in the labels of a run.

    Its data are ``id``, ``label``, ``suspicion`` (by the ranking `by`) and the scores, so that
    ``lab.data.to_pandas().join(lab.get_issues("label"))`` shows cleanlab's judgement beside ours. Classes that no
    sample is labeled with are left out, and the probabilities of the others scaled to one: Datalab takes no others.

    Args:
        table: Scores of labeled samples of a run that keeps probabilities (up to 100 classes), best out of sample.
        by: A name from `RANKINGS`.
    """
    lab_class = need("cleanlab.datalab.datalab").Datalab
    ranking = check_ranking(table, by)
    probabilities = probability_matrix(table).astype(np.float64)
    rows = table.to_arrow()
    known = rows["label"].is_valid().to_numpy()
    labels = rows["label"].filter(rows["label"].is_valid()).to_numpy()
    present = np.unique(labels)
    probabilities = probabilities[known][:, present]
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    columns = {"id": table["id"][known], "label": labels, "suspicion": ranking.function(table)[known]}
    columns |= {name: table[name][known] for name in table.scores}
    lab = lab_class({name: values.tolist() for name, values in columns.items()}, label_name="label", verbosity=0)
    said = io.StringIO()
    # It prints what it does, and errors too instead of raising them; what pandas deprecates is cleanlab's to mend.
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        lab.find_issues(pred_probs=probabilities)
    if "label" not in set(lab.get_issue_summary()["issue_type"]):
        errors = [line for line in said.getvalue().splitlines() if line.startswith("Error in label")]
        raise StateError(f"cleanlab's Datalab could not judge the labels ({'; '.join(errors) or 'no reason given'}).")
    return lab
