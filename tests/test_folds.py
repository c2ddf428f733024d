"""Out-of-sample scoring: who is scored by what, what survives a kill, and what a run of several nets says."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch import nn

import hardsight as hs
from hardsight.data import ArraySamples, View, data_of, load_digits, open_data
from hardsight.ensemble import matrix, mean_over_nets
from hardsight.runs import STAGES, Folds
from hardsight.scoring import folds
from hardsight.scoring.folds import STRENGTHS, assign_folds, choose_strength, fit_head
from hardsight.scoring.rows import SKETCH_WIDTH, score_block

FEW = 400


def linear(seed: int = 0, classes: int = 10, width: int = 24) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))


def few_digits(n: int = FEW) -> ArraySamples:
    images, labels = load_digits()
    return ArraySamples(images[:n], labels[:n], "digits", "some digits", list("0123456789"))


class Trainer:
    """A training function that remembers what it was given."""

    def __init__(self, steps: int = 30) -> None:
        self.steps, self.seen = steps, []

    def __call__(self, data):
        self.seen.append((data.fold, data.seed, data.labels.copy(), data.images.copy()))
        network = linear(data.seed)
        x, y = torch.from_numpy(data.images).float()[:, None] / 255, torch.from_numpy(data.labels)
        optimiser = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(self.steps):
            optimiser.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimiser.step()
        return network


def train(data):
    return Trainer()(data)


# ---------------------------------------------------------------------------------------------------------------------
# Folds.


@pytest.mark.parametrize(("n", "folds"), [(100, 5), (101, 3), (7, 7), (1000, 2)])
def test_folds_are_even_over_all_and_within_every_class(n, folds):
    labels = np.random.default_rng(n).integers(0, 4, n)
    fold = assign_folds(labels, folds, seed=1)
    np.testing.assert_array_equal(fold, assign_folds(labels, folds, seed=1))
    assert (fold != assign_folds(labels, folds, seed=2)).any()
    assert np.ptp(np.bincount(fold, minlength=folds)) <= 1
    for k in range(4):
        assert np.ptp(np.bincount(fold[labels == k], minlength=folds)) <= 1
    if np.bincount(labels).min() >= folds:  # scikit-learn spreads them as evenly
        divided = StratifiedKFold(folds, shuffle=True, random_state=0).split(labels, labels)
        witness = [np.bincount(labels[test], minlength=4) for _, test in divided]
        ours = [np.bincount(labels[fold == k], minlength=4) for k in range(folds)]
        assert np.abs(np.sort(witness, 0) - np.sort(ours, 0)).max() <= 1


def test_a_fold_is_scored_by_its_own_network_which_was_not_given_it():
    trainer, samples, networks = Trainer(steps=5), few_digits(), {}

    def remember(data):
        networks[data.fold] = trainer(data)
        return networks[data.fold]

    table = hs.score(remember, samples, folds=4, device="cpu")
    assert len(table) == FEW
    assert [seen[:2] for seen in trainer.seen] == [(k, k) for k in range(4)]
    at = np.array([int(i.split(":")[1]) for i in table["id"]])
    for fold, _, labels, images in trainer.seen:
        held_out = table["fold"] == fold
        # Some digits are drawn alike to the pixel; what is not in both sets is what counts.
        assert sorted(map(bytes, images)) == sorted(map(bytes, samples.images[at[~held_out]]))
        assert len(labels) == len(images) == FEW - held_out.sum()
        assert len(set(map(bytes, samples.images[at[held_out]]))) >= FEW // 4 - 5
        alone = hs.score(networks[fold], View(samples, at[held_out]), preprocess="raw", device="cpu")
        joined = alone.join(table.to_arrow().select(["id", "avh", "confidence"]), suffix="_folds")
        np.testing.assert_array_equal(joined["avh"], joined["avh_folds"])
        np.testing.assert_array_equal(joined["confidence"], joined["confidence_folds"])


def test_a_refitted_head_has_not_seen_the_label_it_judges():
    """The network of a random label: in sample it can be learned by heart, out of sample it must be at chance."""
    generator = np.random.default_rng(0)
    images, _ = load_digits()
    labels = generator.integers(0, 10, 600)
    samples = ArraySamples(images[:600], labels, "train", "random labels")
    table = hs.score(linear(width=512), samples, preprocess="raw", folds=5, device="cpu")
    assert table.accuracy == pytest.approx(0.1, abs=4 * (0.09 / 600) ** 0.5)
    assert table.meta.out_of_sample == Folds(5, 1, "head")
    assert table.meta.model.classes == 10


def test_a_head_is_refitted_to_the_classes_of_the_data_not_of_the_network():
    images, labels = load_digits()
    keep = labels < 3
    samples = ArraySamples(images[keep][:300], labels[keep][:300], "train", "three digits", ["zero", "one", "two"])
    table = hs.score(linear(classes=7), samples, preprocess="raw", folds=3, device="cpu")
    assert table.meta.model.classes == 3
    assert table.accuracy > 0.95
    assert table.meta.class_names == ["zero", "one", "two"]


# ---------------------------------------------------------------------------------------------------------------------
# The head that is fitted.


@pytest.mark.parametrize("strength", [1e-3, 1e-1])
def test_the_head_is_scikit_learns_logistic_regression(strength):
    images, labels = load_digits()
    x = torch.from_numpy(images.reshape(-1, 64)[:500]).float()
    y = torch.from_numpy(labels[:500])
    weight, bias = fit_head(x, y, 10, strength, steps=2000)
    scale = float(x.square().sum(1).mean().sqrt())
    witness = LogisticRegression(C=1 / (strength * len(x)), tol=1e-8, max_iter=10_000).fit(x.numpy() / scale, y)
    ours = (x @ weight.T + bias).softmax(1).numpy()
    np.testing.assert_allclose(ours, witness.predict_proba(x.numpy() / scale), atol=2e-3)
    np.testing.assert_allclose(weight.numpy() * scale, witness.coef_, atol=0.02 * np.abs(witness.coef_).max())


def test_one_strength_fits_features_of_any_size():
    images, labels = load_digits()
    x, y = torch.from_numpy(images.reshape(-1, 64)[:300]).float(), torch.from_numpy(labels[:300])
    (small, _), (large, _) = (fit_head(x * size, y, 10, 1e-3) for size in (1e-3, 1e3))
    np.testing.assert_allclose((small / small.norm()).numpy(), (large / large.norm()).numpy(), atol=1e-3)
    assert choose_strength(x * 1e-3, y, 10, 0) == choose_strength(x * 1e3, y, 10, 0)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(150, 60, generator=draw), torch.randint(0, 3, (150,), generator=draw)
    assert choose_strength(x, y, 3, 0) == max(STRENGTHS)  # labels that nothing tells: the less is learned, the better


def test_no_head_and_no_strength_sees_the_labels_of_its_fold(monkeypatch):
    digits = few_digits(120)
    given, choose = [], folds.choose_strength

    def watched(features, labels, *args, **options):
        given.append(features)
        return choose(features, labels, *args, **options)

    monkeypatch.setattr(folds, "choose_strength", watched)
    network = linear().eval()
    table = hs.score(network, digits, preprocess="raw", folds=3, device="cpu", progress=False)
    with torch.no_grad():
        features = network[:-1](torch.from_numpy(digits.images).float()[:, None] / 255)
    place = [int(key.rpartition(":")[2]) for key in table["id"].tolist()]
    fold = np.empty(120, int)
    fold[place] = table["fold"]
    for held_out, seen in enumerate(given):
        near = torch.cdist(seen, features).argmin(1).numpy()
        assert len(seen) == (fold != held_out).sum()
        assert (fold[near] != held_out).all()


# ---------------------------------------------------------------------------------------------------------------------
# A run: killed, resumed, complete.


def test_a_killed_run_trains_only_the_folds_that_were_not_done(tmp_path):
    counter = _Calls()

    def sometimes(data):
        counter.folds.append(data.fold)
        if len(counter.folds) == 3:
            raise KeyboardInterrupt
        return train(data)

    options = {"folds": 4, "out": tmp_path / "run", "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        hs.score(sometimes, few_digits(), **options)
    assert sorted(p.name for p in (tmp_path / "run" / STAGES).iterdir()) == ["seed0-fold0", "seed0-fold1"]
    partial = hs.SampleTable.load(tmp_path / "run", partial=True)
    assert partial.meta.unfinished
    assert len(partial) == FEW // 2
    with pytest.raises(RuntimeError, match="not finished"):
        hs.SampleTable.load(tmp_path / "run")
    table = hs.score(sometimes, few_digits(), **options)
    assert counter.folds == [0, 1, 2, 2, 3]
    whole = hs.score(train, few_digits(), folds=4, device="cpu")
    both = table.join(whole.to_arrow().select(["id", "avh", "pred"]), suffix="_whole")
    np.testing.assert_array_equal(both["avh"], both["avh_whole"])
    assert not (tmp_path / "run" / STAGES).exists()
    assert hs.score(sometimes, few_digits(), **options).meta.already_complete
    assert len(counter.folds) == 5


class _Calls:
    """A list that is no part of the identity of what refers to it, although it changes with every call."""

    def __init__(self):
        self.folds = []

    def __reduce__(self):
        return _Calls, ()


def test_features_of_a_killed_run_are_not_computed_again(tmp_path, monkeypatch):
    counter = _Calls()
    forwards = counter.folds
    network = linear()
    network.register_forward_hook(lambda *_: counter.folds.append(1))
    options = {"preprocess": "raw", "folds": 3, "out": tmp_path / "run", "device": "cpu", "batch_size": 100}
    monkeypatch.setattr(folds, "fit_head", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        hs.score(network, few_digits(), **options)
    monkeypatch.undo()
    assert len(forwards) == 4
    table = hs.score(network, few_digits(), **options)
    assert len(forwards) == 4
    assert len(table) == FEW
    assert sorted(hs.SampleTable.load(tmp_path / "run").columns) == sorted(table.columns)


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_what_was_noted_while_features_were_computed_is_said(tmp_path):
    class Halved(nn.Sequential):
        def forward(self, x):
            return super().forward(x) / 2

    network, options = Halved(*linear()), {"preprocess": "raw", "folds": 2, "device": "cpu"}
    with pytest.warns(UserWarning, match="output"):
        table = hs.score(network, few_digits(60), out=tmp_path / "run", **options)
    assert any("output" in note for note in table.meta.warnings)


def test_another_training_function_or_other_weights_are_another_run(nets, tmp_path):
    hs.score(train, few_digits(60), folds=2, out=tmp_path / "run", device="cpu")

    def other(data):
        return Trainer(steps=1)(data)

    with pytest.raises(FileExistsError, match="training"):
        hs.score(other, few_digits(60), folds=2, out=tmp_path / "run", device="cpu")
    hs.score([nets[0], nets[1]], few_digits(40), out=tmp_path / "nets")
    swapped = hs.Model(nets[2].module, nets[1].name)
    with pytest.raises(FileExistsError, match="same: nets"):
        hs.score([nets[0], swapped], few_digits(40), out=tmp_path / "nets")


def test_the_page_of_a_run_does_not_stop_it_from_being_overwritten(tmp_path):
    hs.score(linear(), few_digits(50), preprocess="raw", out=tmp_path / "run", device="cpu")
    hs.write_report(tmp_path / "run")
    (tmp_path / "run" / "lists").mkdir()
    hs.score(linear(1), few_digits(50), preprocess="raw", out=tmp_path / "run", device="cpu", overwrite=True)
    assert not (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "lists").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Several networks, several seeds.


@pytest.fixture(scope="module")
def nets():
    return [hs.Model(Trainer(20)(_Data(seed)), f"net{seed}") for seed in range(3)]


class _Data:
    def __init__(self, seed):
        images, self.labels = load_digits()
        self.images, self.labels, self.seed, self.fold = images[-300:], self.labels[-300:], seed, 0


def test_several_networks_give_mean_spread_vote_and_ranks(nets, tmp_path):
    samples = few_digits()
    table = hs.score(nets, samples, out=tmp_path / "run", device="cpu")
    alone = [hs.score(net, samples, device="cpu") for net in nets]
    stacked = {name: np.stack([t[name] for t in alone]) for name in ("avh", "nll", "pred")}
    np.testing.assert_array_equal(table["id"], alone[0]["id"])
    for name in ("avh", "nll"):
        np.testing.assert_allclose(table[name], stacked[name].mean(0), rtol=1e-14)
        np.testing.assert_allclose(table[f"{name}_sd"], np.std(stacked[name], 0, ddof=1), rtol=1e-9, atol=1e-15)
    ranks = np.stack([rankdata(-values) for values in stacked["avh"]])
    np.testing.assert_array_equal(table["rank_low"], ranks.min(0))
    np.testing.assert_array_equal(table["rank_high"], ranks.max(0))
    np.testing.assert_array_equal(table["rank"], rankdata(-stacked["avh"].mean(0)))
    for i in range(len(table)):
        votes = np.bincount(stacked["pred"][:, i])
        assert votes[table["pred"][i]] == votes.max()
        assert table["agreement"][i] == votes.max() / 3
    loaded = hs.SampleTable.load(tmp_path / "run")
    assert sorted(loaded.columns) == sorted(table.columns)
    assert loaded.meta.models == ["net0", "net1", "net2"]
    np.testing.assert_array_equal(np.sort(loaded["avh"]), np.sort(table["avh"]))
    one = hs.SampleTable.load(tmp_path / "run", model="net1")
    np.testing.assert_array_equal(np.sort(one["avh"]), np.sort(alone[1]["avh"]))
    mean = np.mean([matrix(t.vectors, "probabilities") for t in alone], axis=0)
    place = pc.index_in(loaded.vectors["id"], value_set=alone[0].vectors["id"].combine_chunks())
    np.testing.assert_allclose(matrix(loaded.vectors, "probabilities"), mean[np.asarray(place)], atol=1e-6)


def test_a_run_of_several_networks_with_class_names_can_be_read_before_its_end(nets, tmp_path):
    names = [f"digit {i}" for i in range(10)]
    named = [hs.Model(net.module, net.name, None, "any", names) for net in nets]
    hs.score(named, few_digits(50), out=tmp_path / "run", device="cpu")
    assert hs.SampleTable.load(tmp_path / "run").meta.class_names == names
    (tmp_path / "run" / "meta.json").unlink()
    table = hs.SampleTable.load(tmp_path / "run", partial=True)
    assert len(table) == 50
    assert table.meta.unfinished


def test_a_sample_that_one_network_cannot_score_is_bad_for_all(nets):
    class Fussy(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(torch.where(x.flatten(1).sum(1)[:, None, None, None] == 0, torch.nan, x))

    images, labels = load_digits()
    images = images[:40].copy()
    images[7] = 0
    samples = ArraySamples(images, labels[:40], "digits", "one is blank")
    fussy = hs.Model(Fussy(nets[0].module), "fussy")
    table = hs.score([nets[1], fussy], samples, device="cpu")
    assert table.bad["id"].to_pylist() == ["digits:7"]
    assert "digits:7" not in table["id"]
    assert len(table) == 39


def test_seeds_repeat_the_folds_and_networks_with_one_name_are_told_apart(nets):
    table = hs.score(train, few_digits(120), folds=2, seeds=3, device="cpu")
    assert table.meta.models == ["train seed 0", "train seed 1", "train seed 2"]
    assert table.meta.out_of_sample.seeds == 3
    assert len(table.meta.accuracies) == 3
    assert (table["avh_sd"] > 0).all()
    table = hs.score([nets[0], nets[1], nets[0], nets[0]], few_digits(50), device="cpu")
    assert table.meta.models == ["net0", "net1", "net0 (2)", "net0 (3)"]


def test_the_mean_leaves_out_what_a_network_lacks():
    rows = pa.table({"id": ["a", "b", "a"], "model": ["m", "m", "n"], "pred": [0, 1, 0], "avh": [0.1, 0.2, 0.3]})
    mean = mean_over_nets(rows)
    assert mean["id"].to_pylist() == ["a"]
    assert mean["avh"].to_pylist() == pytest.approx([0.2])


# ---------------------------------------------------------------------------------------------------------------------
# Vectors.


def test_probabilities_and_sketches_are_those_of_the_features():
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*shape, generator=generator) for shape in ((200, 300), (5, 300), (5,)))
    table = hs.score_features(x, w, torch.arange(200) % 5, b)
    p = matrix(table.vectors, "probabilities")
    np.testing.assert_allclose(p, (x.double() @ w.double().T + b.double()).softmax(1).numpy(), atol=1e-6)
    sketch = matrix(table.vectors, "sketch").astype(np.float64)
    assert sketch.shape == (200, SKETCH_WIDTH)
    units = F.normalize(x.double()).numpy()
    true, kept = (np.linalg.norm(v[:, None] - v[None], axis=2)[np.triu_indices(200, 1)] for v in (units, sketch))
    assert np.abs(kept / true - 1).mean() < 0.2


def test_what_is_kept_of_few_and_of_many_classes_survives_saving(tmp_path):
    x, w = torch.randn(9, 20), torch.randn(4, 20)
    rows = score_block([f"x:{i}" for i in range(9)], x, w, None, None, ["avh"], "cosines").vectors
    cosines = F.normalize(x) @ F.normalize(w).T
    np.testing.assert_allclose(matrix(rows, "sketch").astype(np.float32), cosines.numpy(), atol=1e-3)
    many = torch.randn(101, 20)
    assert hs.score_features(x, many, torch.arange(9)).vectors.column_names == ["id", "sketch"]
    assert hs.score_features(x, many, torch.arange(9), vectors=False).vectors is None
    table = hs.score_features(x, w, torch.arange(9) % 4)
    table.save(tmp_path / "run")
    loaded = hs.SampleTable.load(tmp_path / "run")
    assert callable(loaded._vectors)  # read only when somebody asks for them
    np.testing.assert_array_equal(matrix(loaded.vectors, "sketch"), matrix(table.vectors, "sketch"))
    assert hs.SampleTable.load(tmp_path / "run").hardest(2).vectors is not None


# ---------------------------------------------------------------------------------------------------------------------
# Where the data are.


def test_a_run_knows_where_its_data_are_and_may_find_them_elsewhere(tmp_path, monkeypatch):
    images, labels = load_digits()
    np.savez(tmp_path / "d.npz", test_images=images[:30], test_labels=labels[:30])
    monkeypatch.chdir(tmp_path)
    table = hs.score(linear(), "d.npz:test", preprocess="raw", out="run", device="cpu")
    monkeypatch.chdir("/")
    samples = data_of(hs.SampleTable.load(tmp_path / "run").meta)
    assert samples.find(["test:3", "test:29"]) == [3, 29]
    assert samples.find(["test:30", "train:1", "test:x", "test:٣", "test:03"]) == [None] * 5
    np.testing.assert_array_equal(samples.load(3, None)[0], images[3])
    assert table.meta.source["data"] == f"{tmp_path}/d.npz:test"
    (tmp_path / "two").mkdir()
    (tmp_path / "d.npz").rename(tmp_path / "two" / "d.npz")
    (tmp_path / "run" / "meta.json").unlink()
    table = hs.score(linear(), f"{tmp_path}/two/d.npz:test", preprocess="raw", out=tmp_path / "run")
    assert table.meta.source["data"] == f"{tmp_path}/two/d.npz:test"
    table = hs.score(linear(), few_digits(20), preprocess="raw")  # an object cannot be opened again
    with pytest.raises(ValueError, match="--data"):
        data_of(table.meta)
    assert data_of(table.meta, few_digits(20)).find(["digits:5"]) == [5]
    assert open_data("digits").source["data"] == "digits"


def test_moved_data_still_belong_to_the_run(tmp_path):
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name)
    table = hs.score(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), str(tmp_path / "photos"), preprocess="raw")
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        data_of(table.meta)
    samples = data_of(table.meta, tmp_path / "elsewhere")
    assert samples.find(table["id"].tolist()) == [0, 1]
    assert samples.path(0).name == "1.png"


# ---------------------------------------------------------------------------------------------------------------------
# Sentences.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 1}, r"folds must.*\[2, .*got 1"),
        ({"folds": 2.5}, "folds must.*got 2.5"),
        ({"folds": "a"}, "folds must.*got 'a'"),
        ({"folds": 2, "seed": -1}, "seed must.*got -1"),
        ({"folds": 2, "seed": "a"}, "seed must.*got 'a'"),
        ({"folds": 2, "use_bias": "x"}, "use_bias must.*got 'x'"),
        ({"folds": 51}, "folds must.* 2 and"),
        ({"folds": 3, "seeds": 0}, "seeds.* 0"),
        ({"seeds": 2}, "seeds .*folds"),
        ({"folds": 2, "shard": (0, 2), "out": None}, "out"),
        ({"folds": 2, "shard": (0, 2), "out": "s3://bucket/run"}, "locks"),
    ],
)
def test_folds_that_cannot_be(options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        hs.score(linear(), few_digits(50), preprocess="raw", **{"out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_data_that_cannot_be_folded():
    images, blank = load_digits()[0][:30], torch.zeros(1, 8, 8)

    def arrays(labels):
        return ArraySamples(images, labels, "digits", "some digits")

    some = [(blank, i % 3) if i < 8 else (blank,) for i in range(9)]
    cases = [
        (model, data, "folds needs labels") for model in (linear(), train) for data in (arrays(None), [(blank,)] * 9)
    ]
    cases += [(train, some, r"folds.*class index"), (linear(), arrays(np.zeros(30, int)), "two classes")]
    for model, data, message in [*cases, (linear(), arrays(np.arange(30) - 1), r"class.* got -1")]:
        with pytest.raises(ValueError, match=message):
            hs.score(model, data, folds=3, **({} if model is train else {"preprocess": "raw"}))


def test_models_that_cannot_be_folded():
    with pytest.raises(ValueError, match="training function"):
        hs.score([linear(), linear()], few_digits(30), preprocess="raw", folds=2)
    with pytest.raises(TypeError, match="function that trains"):
        hs.score(train, few_digits(30))
    with pytest.raises(ValueError, match=r"return.*nn\.Module"):
        hs.score(lambda data: "a net", few_digits(30), folds=2)
    with pytest.raises(ValueError, match="one network"):
        hs.score([], few_digits(30))
    with pytest.raises(ValueError, match=r"classes.*10 and 5"):
        hs.score([linear(), linear(classes=5)], ArraySamples(load_digits()[0][:9], None, "x", "x"), preprocess="raw")


def test_classes_of_a_single_sample_are_said():
    images, labels = load_digits()
    labels = labels[:40].copy()
    labels[5] = 11
    with pytest.warns(UserWarning, match="1 classes.*single sample"):
        table = hs.score(linear(), ArraySamples(images[:40], labels, "d", "d"), preprocess="raw", folds=2)
    assert "single sample" in table.meta.warnings[0]


# ---------------------------------------------------------------------------------------------------------------------
# Networks and folds that do not count alike, and what a hurried user does.


def test_networks_that_count_their_classes_differently_are_refused(nets):
    names = list("0123456789")
    samples = few_digits(30)
    turned = hs.Model(nets[1].module, "turned", None, "any", names[::-1])
    with pytest.raises(ValueError, match=r"'net0'.*'turned'"):
        hs.score([hs.Model(nets[0].module, "net0", None, "any", names), turned], samples)
    with pytest.raises(ValueError, match="differ"):
        hs.score([nets[0], turned], samples)

    def inconstant(data):
        return train(data), None, names if data.fold == 0 else names[::-1]

    with pytest.raises(ValueError, match=r"first fold.*fold 2"):
        hs.score(inconstant, samples, folds=2)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_stopped_anywhere_has_a_page(seeds, tmp_path, monkeypatch):
    stops, options = _Calls(), {"folds": 3, "seeds": seeds, "device": "cpu"}

    def stopped(data):
        stops.folds.append(data.fold)
        if len(stops.folds) > 2 * seeds:
            raise KeyboardInterrupt
        return train(data)

    with pytest.raises(KeyboardInterrupt):
        hs.score(stopped, few_digits(90), out=tmp_path / "run", **options)
    assert "samples so far" in hs.write_report(tmp_path / "run").read_text()
    with pytest.raises(KeyboardInterrupt):  # before the first row
        hs.score(_interrupted, few_digits(90), out=tmp_path / "none", **options)
    assert "scored yet" in hs.write_report(tmp_path / "none").read_text()
    monkeypatch.setattr(folds, "fit_head", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        hs.score(linear(), few_digits(90), preprocess="raw", out=tmp_path / "head", **options)
    assert "scored yet" in hs.write_report(tmp_path / "head").read_text()
    monkeypatch.setattr("hardsight.runs.folder.RunWriter.finish", _interrupted)
    with pytest.raises(KeyboardInterrupt):  # while its rows are put together
        hs.score(train, few_digits(60), out=tmp_path / "last", **options)
    monkeypatch.undo()
    assert "so far" in hs.write_report(tmp_path / "last").read_text()
    assert len(hs.score(train, few_digits(60), out=tmp_path / "last", **options)) == 60
    assert len(hs.SampleTable.load(tmp_path / "last")) == 60


def test_classes_without_a_sample_do_not_count(tmp_path):
    images, labels = load_digits()
    even, spread = (
        hs.score(linear(), ArraySamples(images[:300], k * labels[:300], "d", "d"), preprocess="raw", folds=3)
        for k in (1, 10)
    )
    np.testing.assert_array_equal(even["avh"], spread["avh"])
    assert spread.meta.model.classes == 10
    assert spread.meta.class_names == [str(10 * k) for k in range(10)]
    done = hs.clean(spread, tmp_path / "lists", data=ArraySamples(images[:300], 10 * labels[:300], "d", "d"))
    assert done["samples"] == 300
    rows = pq.read_table(tmp_path / "lists" / "actions.parquet")
    assert set(rows["label"].to_pylist()) == {10 * k for k in range(10)}


def test_training_in_place_does_not_reach_the_data():
    def destructive(data):
        for i in range(len(data)):
            data[i][0][:] = 0
        data.images[:] = 0
        return train(data)

    samples = few_digits(60)
    before = samples.images.copy()
    hs.score(destructive, samples, folds=2, device="cpu")
    np.testing.assert_array_equal(samples.images, before)


def test_an_unreadable_sample_is_named_to_the_training_function(tmp_path):
    for i in range(8):
        (tmp_path / "p" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 30 * i).save(tmp_path / "p" / "ab"[i % 2] / f"{i}.png")
    (tmp_path / "p" / "a" / "0.png").write_text("no picture")

    def careless(data):
        for i in range(len(data)):
            data[i]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    with pytest.raises(ValueError, match=r"sample 'p/a/0\.png'"):
        hs.score(careless, str(tmp_path / "p"), folds=8)


def test_a_head_without_bias_is_fitted_without_one():
    without, with_bias = (
        hs.score(linear(), few_digits(), preprocess="raw", folds=3, use_bias=use_bias).accuracy
        for use_bias in (False, True)
    )
    assert without > 0.85
    assert without == pytest.approx(with_bias, abs=0.06)
    assert without != with_bias
