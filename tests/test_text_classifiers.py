"""Sequence classifiers of Hugging Face: their rows are those of a plain loop over their logits."""

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import transformers
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs

# Networks that were not trained may well fit the labels better in another order.
pytestmark = pytest.mark.filterwarnings("ignore:class order")

CLASSES, SIZE = 3, {"vocab_size": 50, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {**SIZE, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DISTILLED = {**SIZE, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
NETWORKS = {
    "Bert": SMALL,
    "Roberta": SMALL,
    "DistilBert": DISTILLED,
    "GPT2": {**SIZE, "n_embd": 16, "n_layer": 2, "n_head": 2},  # a head over every token, as in Llama
    "Llama": {**SMALL, "num_key_value_heads": 2},
}


def network(name="Bert"):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**NETWORKS[name])
    return getattr(transformers, f"{name}ForSequenceClassification")(config).eval()


def texts(count=20, length=None):
    draw = np.random.default_rng(0)
    tokens = [draw.integers(3, 50, length or draw.integers(3, 12)).tolist() for _ in range(count)]
    labels = draw.integers(0, CLASSES, count).tolist()
    return [{"input_ids": t, "attention_mask": [1] * len(t), "label": y} for t, y in zip(tokens, labels, strict=True)]


def pad(items):
    longest = max(len(item["input_ids"]) for item in items)
    rows = {
        name: torch.tensor([item[name] + [0] * (longest - len(item[name])) for item in items])
        for name in ("input_ids", "attention_mask")
    }
    return {**rows, "labels": torch.tensor([item["label"] for item in items])}


def expected_loss(model, rows):
    """Cross-entropy of every text by itself: no padding, no batch."""
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([row["input_ids"]])).logits for row in rows]
    return F.cross_entropy(torch.cat(logits), torch.tensor([row["label"] for row in rows]), reduction="none").numpy()


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_those_of_the_logits(name):
    model, rows = network(name), texts()
    loader = DataLoader(Dataset.from_list(rows), batch_size=4, shuffle=True, collate_fn=pad)
    table = hs.score(model, loader, batch_size=6, device="cpu").to_pandas()
    np.testing.assert_allclose(table["nll"], expected_loss(model, rows), atol=1e-5)
    assert table["label"].tolist() == [row["label"] for row in rows]


def test_texts_of_one_length_need_no_collate_function():
    model, rows = network(), texts(length=7)
    table = hs.score(model, Dataset.from_list(rows), batch_size=6, device="cpu").to_pandas()
    np.testing.assert_allclose(table["nll"], expected_loss(model, rows), atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_captured_features_give_the_logits(name):
    model, batch = network(name), pad(texts())
    batch.pop("labels")
    with hs.capture(model) as head:
        logits = model(**batch).logits
        torch.testing.assert_close(F.linear(head.features, head.weight, head.bias), logits)
        assert head.features.requires_grad


class Tagger(nn.Module):
    """Classifies every position; `reduced` says what it returns of them."""

    def __init__(self, reduced):
        super().__init__()
        self.head, self.reduced = nn.Linear(4, 3), reduced

    def forward(self, x):
        return self.reduced(self.head(x))


@pytest.mark.parametrize(
    ("reduced", "x", "message"),
    [
        (lambda logits: logits, torch.randn(2, 5, 4), "positions"),
        (lambda logits: logits.mean(1), torch.randn(2, 5, 4), "positions"),  # no position has these logits
        (lambda logits: logits[:, -1].round(), torch.randn(2, 5, 4), "positions"),
        (lambda logits: logits[0], torch.randn(5, 4)[None], "positions"),
    ],
)
def test_positions_that_no_output_belongs_to_are_refused(reduced, x, message):
    model = Tagger(reduced)
    with pytest.raises(hs.HardsightError, match=message), hs.capture(model) as head:
        model(x)
    with pytest.raises(hs.HardsightError):
        _ = head.features


def test_positions_that_logits_cannot_tell_apart_are_refused_unless_they_are_equal():
    model = Tagger(lambda logits: logits[:, -1])
    model.head.weight.data[:, 3] = 0
    x = torch.randn(2, 5, 4)
    x[:, 0] = x[:, -1]
    with hs.capture(model) as head:
        model(x)
        assert torch.equal(head.features, x[:, -1])
        x[0, 0, 3] += 1  # another feature with the same logits
        with pytest.raises(hs.HardsightError, match="float32"):
            model(x)


X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def test_a_loader_is_scored_as_its_collate_function_makes_batches():
    """Inputs are doubled, and names become class indices, by the collate function alone."""
    torch.manual_seed(0)
    model, names = nn.Linear(4, 3), [(x, "abc"[y]) for x, y in zip(X, Y, strict=True)]

    def collate(items):
        return 2 * torch.stack([x for x, _ in items]), torch.tensor(["abc".index(y) for _, y in items])

    expected = hs.score(model, (2 * X, Y), device="cpu").to_pandas()
    table = hs.score(model, DataLoader(names, collate_fn=collate), device="cpu", batch_size=5).to_pandas()
    pd.testing.assert_frame_equal(table, expected, rtol=1e-5, atol=1e-6)


def changed(items):
    return torch.stack([x for x, _ in items]), torch.tensor([2 - y for _, y in items])


def dropped(items):
    return torch.stack([x for x, _ in items[1:]]), torch.tensor([y for _, y in items[1:]])


def several(items):
    return torch.stack([x for x, _ in items]), torch.eye(3)[[int(y) for _, y in items]]


def broken(items):
    raise RuntimeError("no tokenizer")


@pytest.mark.parametrize(
    ("function", "message"),
    [(changed, "labels"), (dropped, "per sample"), (several, "multi-label"), (broken, "no tokenizer")],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_collate_functions_that_give_no_rows_are_refused(function, message, workers):
    with pytest.raises(hs.HardsightError, match=message):
        hs.score(nn.Linear(4, 3), DataLoader(TensorDataset(X, Y), collate_fn=function), device="cpu", workers=workers)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, items):
        return torch.stack([self.factor * x for x, _ in items]), torch.stack([y for _, y in items])


def test_another_collate_function_is_another_result(tmp_path):
    torch.manual_seed(0)
    model, data = nn.Linear(4, 3), TensorDataset(X, Y)
    hs.score(model, DataLoader(data, collate_fn=Scale(1.0)), out=tmp_path / "run", device="cpu")
    with pytest.raises(hs.HardsightError):
        hs.score(model, DataLoader(data, collate_fn=Scale(2.0)), out=tmp_path / "run", device="cpu")
    again = hs.score(model, DataLoader(data, collate_fn=Scale(1.0)), out=tmp_path / "run", device="cpu")
    assert again.meta.already_complete


def test_folds_of_texts_are_scored_out_of_sample():
    rows = texts(30)
    loader = DataLoader(Dataset.from_list(rows), collate_fn=pad)
    table = hs.score(network("GPT2"), loader, folds=3, device="cpu")
    assert table.to_pandas()["label"].tolist() == [row["label"] for row in rows]
    assert len(table.meta.model.head) > 0


def test_texts_of_several_lengths_without_a_collate_function_are_refused():
    with pytest.raises(hs.HardsightError, match="lengths"):
        hs.score(network(), Dataset.from_list(texts()), device="cpu")
