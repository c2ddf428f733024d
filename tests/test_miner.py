"""The miner against a loop over all triplets, and inside pytorch-metric-learning's own losses."""

import math
import pickle

import pytest
import torch
from torch import nn

pytest.importorskip("pytorch_metric_learning", reason="the extra metric-learning is not installed")

from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils import loss_and_miner_utils

import hardsight as hs
from hardsight.integrations.metric_learning import AVHMiner, class_hardness

KINDS = ("hard", "semihard", "all")


def batch(n=24, d=5, classes=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=draw)
    centres = torch.randn(classes, d, generator=draw)
    return centres[labels] + 1.2 * torch.randn(n, d, generator=draw), labels


def angle(u, v):
    dot = sum(a * b for a, b in zip(u, v, strict=True))
    return math.acos(dot / math.dist(u, [0] * len(u)) / math.dist(v, [0] * len(v)))


def naive(kind, margin, embeddings, labels, weight=None, ref=None, ref_labels=None):
    """Every triplet, one by one, in float64."""
    own = ref is None
    ref, ref_labels = (embeddings, labels) if own else (ref, ref_labels)
    x, y, y_anchor = ref.double().tolist(), ref_labels.tolist(), labels.tolist()
    if weight is None:
        rows = {}
        for c in sorted(set(y)):
            units = [[v / math.dist(p, [0] * len(p)) for v in p] for p, k in zip(x, y, strict=True) if k == c]
            rows[c] = [sum(column) for column in zip(*units, strict=True)]
    else:
        rows = dict(enumerate(weight.double().tolist()))

    def hardness(j, c):
        return len(rows) * angle(x[j], rows[c]) / sum(angle(x[j], row) for row in rows.values())

    table = {(j, c): hardness(j, c) for j in range(len(x)) for c in rows}
    chosen = []
    for a, c in enumerate(y_anchor):
        for p in range(len(x)):
            for n in range(len(x)):
                if y[p] != c or y[n] == c or (own and a == p):
                    continue
                gap = table[n, c] - table[p, c]
                hard, semihard = gap <= 0, 0 < gap < margin
                if {"hard": hard, "semihard": semihard, "all": hard or semihard}[kind]:
                    chosen.append((a, p, n))
    return chosen


def triplets(mined):
    return list(zip(*(index.tolist() for index in mined), strict=True))


@pytest.mark.parametrize("given", [False, True], ids=["means of the batch", "weight"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_what_a_loop_over_all_triplets_finds(kind, given):
    weight = torch.randn(6, 5) if given else None  # two classes of which the batch has no sample
    for seed in range(3):
        embeddings, labels = batch(seed=seed)
        expected = naive(kind, 0.3, embeddings, labels, weight)
        assert 0 < len(expected) < len(loss_and_miner_utils.get_all_triplets_indices(labels)[0])
        assert triplets(AVHMiner(weight, kind, margin=0.3)(embeddings, labels)) == expected


@pytest.mark.parametrize("given", [False, True], ids=["means of the set", "weight"])
@pytest.mark.parametrize("kind", KINDS)
def test_positives_and_negatives_come_from_the_reference_set_where_there_is_one(kind, given):
    (embeddings, labels), (ref, ref_labels) = batch(9), batch(14, seed=1)
    weight = torch.randn(4, 5) if given else None
    found = AVHMiner(weight, kind, margin=0.3)(embeddings, labels, ref, ref_labels)
    assert triplets(found) == naive(kind, 0.3, embeddings, labels, weight, ref, ref_labels)


def test_hardness_at_the_label_is_the_score():
    embeddings, labels = batch()
    weight = torch.randn(4, 5)
    found = class_hardness(embeddings, weight)
    torch.testing.assert_close(found.gather(1, labels[:, None])[:, 0], 4 * hs.avh(embeddings, weight, labels))
    torch.testing.assert_close(found.sum(1), torch.full((24,), 4.0))


def test_labels_without_a_weight_may_be_any_numbers():
    embeddings, labels = batch()
    other = torch.tensor([-7, 10**12, 3, 500])[labels]
    assert set(triplets(AVHMiner()(embeddings, other))) == set(triplets(AVHMiner()(embeddings, labels)))


def test_labels_with_a_weight_may_be_small_integers():
    (embeddings, labels), miner = batch(), AVHMiner(torch.randn(4, 5))
    assert triplets(miner(embeddings, labels.to(torch.uint8))) == triplets(miner(embeddings, labels))


def test_lengths_of_embeddings_do_not_matter():
    embeddings, labels = batch()
    lengths = torch.logspace(-15, 15, len(labels))[:, None]
    assert triplets(AVHMiner()(embeddings * lengths, labels)) == triplets(AVHMiner()(embeddings, labels))


def test_a_weight_that_is_trained_is_read_anew():
    embeddings, labels = batch()
    head = nn.Linear(5, 4, bias=False)
    by_module, by_tensor = AVHMiner(head), AVHMiner(head.weight)
    by_function = AVHMiner(lambda: head.weight)
    first = triplets(by_module(embeddings, labels))
    with torch.no_grad():
        head.weight.normal_()
    second = triplets(AVHMiner(head.weight.detach().clone())(embeddings, labels))
    assert first != second
    for miner in (by_module, by_tensor, by_function):
        assert triplets(miner(embeddings, labels)) == second
        assert not list(miner.parameters())
        assert not miner.state_dict()
    assert triplets(pickle.loads(pickle.dumps(by_module))(embeddings, labels)) == second


def test_a_triplet_loss_of_the_mined_is_the_mean_over_them():
    embeddings, labels = batch()
    embeddings.requires_grad_()
    mined = AVHMiner()(embeddings, labels)
    loss = losses.TripletMarginLoss(margin=0.1)(embeddings, labels, mined)
    unit = embeddings.detach() / embeddings.detach().norm(dim=1, keepdim=True)
    gaps = [float((unit[a] - unit[p]).norm() - (unit[a] - unit[n]).norm()) for a, p, n in triplets(mined)]
    violated = [gap + 0.1 for gap in gaps if gap > -0.1]  # the mean of pytorch-metric-learning is over these
    assert loss.item() == pytest.approx(sum(violated) / len(violated), rel=1e-5)
    loss.backward()
    assert embeddings.grad.abs().sum() > 0


def test_other_losses_and_the_memory_take_what_it_mines():
    embeddings, labels = batch()
    mined = AVHMiner(kind="all")(embeddings, labels)
    for loss in (losses.ContrastiveLoss(), losses.MultiSimilarityLoss(), losses.NTXentLoss()):
        assert loss(embeddings, labels, mined).isfinite()
    memory = losses.CrossBatchMemory(losses.TripletMarginLoss(), 5, memory_size=64, miner=AVHMiner(kind="all"))
    assert [memory(*batch(seed=seed)).isfinite().item() for seed in range(3)] == [True] * 3


def test_nothing_to_mine_is_empty_indices_and_a_loss_of_zero():
    embeddings = torch.randn(4, 3)
    separated = torch.eye(2).repeat_interleave(3, 0)
    for points, labels in (
        (embeddings, torch.zeros(4, dtype=torch.long)),  # no negatives
        (embeddings, torch.arange(4)),  # no positives
        (separated, torch.arange(6) // 3),  # none hard
        (embeddings[:0], torch.zeros(0, dtype=torch.long)),
    ):
        miner = AVHMiner(kind="hard")
        mined = miner(points, labels)
        reference = miners.TripletMarginMiner(type_of_triplets="hard")(embeddings, torch.arange(4))
        assert [(i.shape, i.dtype) for i in mined] == [(i.shape, i.dtype) for i in reference]
        assert miner.num_triplets == 0 or not miner.collect_stats
        assert losses.TripletMarginLoss()(points.clone().requires_grad_(), labels, mined) == 0


def test_a_collapsed_or_zero_embedding_makes_every_triplet_hard():
    """All samples are equally hard for every class."""
    labels = torch.arange(6) // 2
    every = len(loss_and_miner_utils.get_all_triplets_indices(labels)[0])
    for embeddings in (torch.ones(6, 3), torch.zeros(6, 3)):
        for weight in (None, torch.ones(3, 3)):
            assert len(AVHMiner(weight, "hard")(embeddings, labels)[0]) == every


def test_autocast_and_half_precision_mine_as_float32_does():
    embeddings, labels = batch()
    half = embeddings.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = AVHMiner()(half, labels)
    assert triplets(found) == triplets(AVHMiner()(half.float(), labels))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: AVHMiner(kind="easy"), "kind .*got 'easy'"),
        (lambda x, y: AVHMiner(margin=0), "margin .*got 0"),
        (lambda x, y: AVHMiner(torch.ones(5, 4))(x, y), "weight .*\\(C, 5\\), .*\\(5, 4\\)"),
        (lambda x, y: AVHMiner(torch.ones(3, 5))(x, y), "labels .*\\[0, 2\\]"),
        (lambda x, y: AVHMiner(torch.ones(4, 5))(x, y - 1), "labels .*\\[0, 3\\]"),
    ],
)
def test_what_cannot_be_mined_is_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make(*batch())


def test_amc_is_called_as_pytorch_metric_learnings_losses_are():
    """`loss(embeddings, labels)`: the order of arguments is the same, so nothing needs to be adapted."""
    from hardsight.losses import AMCLoss

    embeddings, labels = batch()
    embeddings.requires_grad_()
    loss = AMCLoss()(embeddings, labels)
    loss.backward()
    assert loss.shape == losses.ContrastiveLoss()(embeddings, labels).shape
    assert embeddings.grad.isfinite().all()
