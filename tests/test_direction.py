"""Which way a column is harder: one table, for every column that the package writes about a sample."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from naive import triple
from torch import nn

import hardsight as hs
from hardsight import SampleTable
from hardsight.comparison import compare
from hardsight.data import ArraySamples, load_digits
from hardsight.directions import COLUMNS, harder_end, larger_is_harder
from hardsight.dynamics.dynamics import COLUMNS as RECORDED
from hardsight.ensemble import mean_over_nets
from hardsight.evaluation import Subject, evaluate
from hardsight.labelerrors import actions
from hardsight.people import align_run
from hardsight.people.candidates import candidates, facts
from hardsight.phases import agreement
from hardsight.questions import evaluate_degraded, follows_level
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload
from hardsight.sampling import hardness_of

N, C = 60, 4


def scored(seed=0):
    torch.manual_seed(0)
    features, weight, labels, bias = triple(N, 12, C)
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(seed))
    return hs.score_features(features + seed * noise, weight, labels, bias, name=f"net {seed}")


def several():
    """Three networks as one table: means, spread, agreement and ranks."""
    nets = [scored(seed).to_arrow() for seed in range(3)]
    rows = [net.add_column(1, "model", pa.repeat(f"net {k}", N)) for k, net in enumerate(nets)]
    return SampleTable(mean_over_nets(pa.concat_tables(rows)).drop_columns(["model"]))


def recorded(path):
    """A recorder whose first samples are learned at once and whose last ones never."""
    recorder = hs.Recorder(path)
    weight, labels = torch.eye(C), torch.arange(N) % C
    for epoch in range(3):
        right = torch.arange(N) < N * (epoch + 1) // 4
        features = 3 * weight[torch.where(right, labels, (labels + 1) % C)] + 0.01 * torch.randn(N, C)
        recorder.update(range(N), SimpleNamespace(features=features, weight=weight, bias=None), labels)
        recorder.end_epoch()
    return recorder


def listed(column):
    """Whether the table has the column, with a direction or without."""
    column = column.partition(":")[0] if "/" in column else column
    base = column.removesuffix("_sd").removesuffix("_before").removesuffix("_right")
    return larger_is_harder(column) is not None or base in COLUMNS or base in hs.SCORES


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """What the package writes about samples, by where it comes from."""
    place = tmp_path_factory.mktemp("runs")
    features, weight, labels, _ = triple(N, 12, C)
    scored().save(place / "run")
    torch.manual_seed(0)
    recorded(place / "recorded").close()
    people = {f"data:{i}": k for i, k in enumerate(np.linspace(0, 1, N))}
    images, digits = load_digits()
    data = ArraySamples(images[:N], digits[:N], "test", f"{N} digits")
    body = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    network = nn.Sequential(*body, nn.Linear(24, 10)).eval()
    asked = {"attacks": ["fgsm"], "eps": [0.1], "explain": True, "dropout": 2, "limit": 8}
    found = evaluate([Subject("net", network, data)], **asked, out=place / "out", device="cpu", progress=False)
    return {
        "scores": scored().with_norm_within_class(),
        "without labels": hs.score_features(features, weight),
        "series": hs.score_features(features, weight, labels, denominator="series"),
        "several networks": several(),
        "joined": scored().join(scored(1)),
        "compared": compare(scored(1), scored()),
        "label errors": actions(scored()),
        "training": hs.Dynamics(place / "recorded").summary(),
        "candidates": candidates(place / "recorded"),
        "people": SampleTable(align_run(place / "run", people).people),
        "degraded": evaluate_degraded(network, data, ["noise"], [0.0, 0.1], preprocess="raw"),
        "evaluation": pq.read_table(next((found.path / "samples").glob("*.parquet"))),
    }


def names(table):
    return table.columns if isinstance(table, SampleTable) else table.column_names


def test_every_column_has_a_direction_or_says_that_it_has_none(tables):
    missing = {place: [c for c in names(table) if not listed(c)] for place, table in tables.items()}
    assert {place: columns for place, columns in missing.items() if columns} == {}
    assert [column for column in RECORDED if not listed(column)] == []
    # The table has no lines that nobody writes: they would hide a misspelt name.
    written = {c.partition(":")[0] if "/" in c else c for table in tables.values() for c in names(table)} | {*RECORDED}
    page = {"rank_angle", "rank_logit", "mean_confidence", "votes_entropy", "mass_inside"}
    other = {"model", "fold", "epoch", "error", "answers", "majority", "temperature_confidence", "total", "aleatoric"}
    assert {c for c in COLUMNS if c.rpartition("/")[2] not in page} - written <= other | {"epistemic", "correct"}


def test_a_table_ranks_by_every_column_or_refuses_it(tables):
    for place, table in tables.items():
        for column in (c for c in names(table) if isinstance(table, SampleTable)):
            values = table[column]
            if larger_is_harder(column) is None or values.dtype.kind not in "fiub":
                with pytest.raises(ValueError, match="by"):
                    table.hardest(1, column)
                continue
            ends = np.nanmin(values.astype(float)), np.nanmax(values.astype(float))
            hardest, easiest = (
                t[column].astype(float)[0] for t in (table.hardest(1, column), table.easiest(1, column))
            )
            assert (easiest, hardest) == (ends if larger_is_harder(column) else ends[::-1]) or column == "learned", (
                place,
                column,
            )


@pytest.mark.parametrize(
    ("column", "end"),
    [
        ("agreement", "smaller"),  # networks differ about what is hard
        ("rank", "smaller"),  # 1 is the hardest
        ("rank_low", "smaller"),
        ("rank_change", "larger"),  # of ranks with 1 the hardest, which grow
        ("norm_within_class", "smaller"),
        ("confidence_right", "smaller"),
        ("confidence_change", "smaller"),
        ("avh_before", "larger"),
        ("margin_epochs_ensemble", "smaller"),
        ("nll_angles", "larger"),
        ("p_label", "smaller"),
        ("suspicion", "larger"),
        ("hsf", "smaller"),
        ("calibration/nll:softmax", "larger"),
        ("robustness/accuracy:pgd@0.1", "smaller"),
        ("explanation/entropy", ""),  # of a map, not of the softmax
        ("pred_before", ""),
        ("avh_sd", ""),
        ("p_pred", ""),
        ("camera", ""),
        ("_pred", ""),
    ],
)
def test_directions_that_were_or_would_be_easy_to_get_wrong(column, end):
    assert harder_end(column) == end


def test_the_hardest_are_those_that_networks_disagree_about():
    table = several()
    assert table.hardest(1, "agreement")["agreement"][0] == table["agreement"].min() < 1
    assert table.hardest(1, "rank")["rank"][0] == 1
    assert table.hardest(5, "rank")["id"].tolist() == table.hardest(5, "avh")["id"].tolist()
    ids = table["id"].tolist()
    for by in ("agreement", "rank", "avh", "confidence"):  # samplers and tables go the same way
        assert ids[int(hardness_of(table, ids, by).argmax())] == table.hardest(1, by)["id"][0] or by == "agreement"


def test_what_was_never_learned_is_hardest(tmp_path):
    table = recorded(tmp_path / "run").summary()
    assert np.isnan(table.hardest(1, "learned")["learned"][0])
    assert table.easiest(1, "learned")["learned"][0] == 1
    never = np.isnan(table["learned"])
    assert (table.rank("learned")[never] < table.rank("learned")[~never].min()).all()


def test_a_column_of_the_users_needs_a_direction():
    table = SampleTable.from_columns({"id": list("abc"), "blur": [0.1, 0.9, 0.5], "kind": ["x", "y", "z"]})
    for rank in (table.hardest, table.easiest):
        with pytest.raises(ValueError, match="blur"):
            rank(1, "blur")
    with pytest.raises(ValueError, match="blur"):
        hardness_of(table, list("abc"), "blur")
    with pytest.raises(ValueError, match="kind"):
        table.hardest(1, "kind", largest=True)
    assert table.hardest(1, "blur", largest=True)["id"].tolist() == ["b"]
    assert table.hardest(1, "blur", largest=False)["id"].tolist() == ["a"]
    assert table.easiest(1, "blur", largest=False)["id"].tolist() == ["b"]
    assert table.rank("blur", largest=False).tolist() == [1, 3, 2]
    assert hardness_of(table, list("cba"), "blur", largest=False).tolist() == [-0.5, -0.9, -0.1]


def test_agreement_with_people_is_taken_in_the_same_direction(tmp_path):
    recorder = recorded(tmp_path / "run")
    found = agreement(hs.Dynamics(tmp_path / "run"), 1 - np.arange(N) / N, ("nll", "nll_angles"))
    recorder.close()
    later = [row["ahead"] for row in found.to_pylist() if row["score"] == "nll_angles" and row["ahead"] is not None]
    assert later
    assert max(later) < 0.5  # the two agree with people about as well; taken the other way round it is about 1.7
    assert facts("nll_epochs").direction == -1
    assert facts("epistemic").direction == -1
    assert facts("temperature_confidence").direction == 1


def test_a_degraded_column_without_a_direction_is_refused(tables):
    rows = tables["degraded"]
    assert {row["value"]: row["expected"] for row in follows_level(rows, ["avh", "correct"]).to_pylist()} == {
        "avh": 1,
        "correct": -1,
    }
    with pytest.raises(ValueError, match="pred"):
        follows_level(rows, ["pred"])


@pytest.mark.parametrize(("score", "end"), [("confidence", "smaller"), ("avh", "larger"), ("nll", "larger")])
def test_the_page_says_the_direction_of_what_two_runs_are_compared_by(score, end):
    after, before = (SampleTable(scored(k).to_arrow().select(["id", "label", "pred", score])) for k in (1, 0))
    described = make_payload(Rows(after), against=before)["scores"]
    assert {name: described[name]["harder"] for name in (score, "before", "change")} == dict.fromkeys(
        (score, "before", "change"), end
    )
