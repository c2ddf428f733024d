"""The Lightning callback in real trainers: what is recorded is what a witness inside the training step kept."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from naive import naive_scores
from torch import nn
from torch.utils.data import DataLoader, Dataset

pl = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")

import hardsight as hs  # noqa: E402
from hardsight.integrations.lightning import RecorderCallback, ids_and_labels  # noqa: E402
from hardsight.sampling import CurriculumSampler  # noqa: E402

N, WIDTH, CLASSES = 22, 6, 3
# What Lightning recommends (more workers, a validation loader), and what torch tells Lightning.
pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
]


class Points(Dataset):
    def __init__(self, n=N, form="tuple", first=0):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, 5, generator=generator)
        self.y = torch.randint(0, CLASSES, (n,), generator=generator)
        self.form, self.first = form, first

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        if self.form == "dict":
            return {"id": f"p{i}", "x": self.x[i], "label": self.y[i]}
        return i + self.first, self.x[i], self.y[i]


class Net(pl.LightningModule):
    """Keeps what its head saw, epoch by epoch, without hardsight."""

    def __init__(self, manual=False):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head = nn.Sequential(nn.Linear(5, WIDTH), nn.ReLU()), nn.Linear(WIDTH, CLASSES)
        self.automatic_optimization = not manual
        self.kept = []

    def forward(self, x):
        return self.head(self.body(x))

    def _keep(self, stage, ids, x, y):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            features = self.body(x)
        weight, bias = (p.detach().clone() for p in (self.head.weight, self.head.bias))
        self.kept.append((stage, self.current_epoch, ids, features.clone(), weight, y, bias))

    def training_step(self, batch, _):
        ids, x, y = batch.values() if isinstance(batch, dict) else batch
        self._keep("train", ids, x, y)
        loss = nn.functional.cross_entropy(self(x), y)
        if not self.automatic_optimization:
            optimiser = self.optimizers()
            optimiser.zero_grad()
            self.manual_backward(loss)
            optimiser.step()
        return loss

    def validation_step(self, batch, _):
        ids, x, y = batch
        if not self.trainer.sanity_checking:
            self._keep("validation", ids, x, y)
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(tmp_path, callbacks, **options):
    loud = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    defaults = {"default_root_dir": tmp_path, "accelerator": "cpu", "devices": 1, "max_epochs": 2}
    return pl.Trainer(callbacks=callbacks, **{**defaults, **dict.fromkeys(loud, False), **options})


def loader(data=None, **options):
    return DataLoader(data or Points(), **{"batch_size": 5, "shuffle": True, **options})


def witness(net, stage="train"):
    """(epoch, id) → scores, as a newcomer would compute them; the first time an id comes in an epoch counts."""
    found = {}
    for kept_stage, epoch, ids, features, weight, y, bias in net.kept:
        if kept_stage == stage:
            scores = naive_scores(features, weight, y, bias)
            names = [i if isinstance(i, str) else f"data:{int(i)}" for i in ids]
            for row, name in enumerate(names):
                found.setdefault((epoch + 1, name), {key: values[row] for key, values in scores.items()})
    return found


def assert_recorded(run, expected, rtol=3e-5):
    dynamics = hs.Dynamics(run)
    assert {epoch for epoch, _ in expected} == set(dynamics.epochs.tolist())
    for epoch in dynamics.epochs.tolist():
        table = dynamics.at(epoch)
        assert set(table["id"]) == {id_ for e, id_ in expected if e == epoch}
        for name in ("avh", "angle", "nll", "norm", "margin", "el2n", "confidence", "pred"):
            theirs = [expected[epoch, id_][name] for id_ in table["id"]]
            np.testing.assert_allclose(table[name], theirs, rtol=rtol, atol=3e-5, err_msg=name)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"accumulate_grad_batches": 2},
        {"gradient_clip_val": 0.5, "accumulate_grad_batches": 3},
        {"manual": True},
        {"form": "dict"},
        {"loader": {"drop_last": True}},
        {"max_epochs": 1, "loader": {"num_workers": 2}},
        {"limit_train_batches": 2},
    ],
    ids=str,
)
def test_what_is_recorded_is_what_the_head_saw_in_each_training_step(tmp_path, case):
    case = dict(case)
    net, data = Net(case.pop("manual", False)), Points(form=case.pop("form", "tuple"))
    batches = loader(data, **case.pop("loader", {}))
    trainer(tmp_path, [RecorderCallback(tmp_path / "run")], **case).fit(net, batches)
    expected = witness(net)
    assert len(expected) >= 10
    assert_recorded(tmp_path / "run", expected)
    assert not net.head._forward_hooks


def test_mixed_precision_records_what_the_head_saw(tmp_path):
    net = Net()
    trainer(tmp_path, [RecorderCallback(tmp_path / "run")], precision="bf16-mixed").fit(net, loader())
    expected = witness(net)
    dynamics = hs.Dynamics(tmp_path / "run")
    table = dynamics.at(2)
    theirs = [expected[2, id_]["avh"] for id_ in table["id"]]
    np.testing.assert_allclose(table["avh"], theirs, rtol=0.05)  # features have the eight bits of bfloat16
    assert len(table) == N


def test_validation_is_recorded_pass_by_pass_without_the_sanity_check(tmp_path):
    net = Net()
    both = [RecorderCallback(tmp_path / "train"), RecorderCallback(tmp_path / "val", stage="validation")]
    validation = loader(Points(9, first=100), shuffle=False)
    fitted = trainer(tmp_path, both, num_sanity_val_steps=2, val_check_interval=1.0)
    fitted.fit(net, loader(), validation)
    assert_recorded(tmp_path / "train", witness(net))
    assert_recorded(tmp_path / "val", witness(net, "validation"))
    assert hs.Dynamics(tmp_path / "val").ids.tolist() == [f"data:{i}" for i in range(100, 109)]
    fitted.validate(net, validation, verbose=False)  # not a pass of the training
    assert hs.Dynamics(tmp_path / "val").epochs.tolist() == [1, 2]


def test_a_validation_in_the_middle_of_an_epoch_is_a_pass_of_its_own(tmp_path):
    callback = RecorderCallback(tmp_path / "val", stage="validation", unit="pass")
    trainer(tmp_path, [callback], val_check_interval=2, max_epochs=1).fit(Net(), loader(), loader(Points(9)))
    assert hs.Dynamics(tmp_path / "val").epochs.tolist() == [1, 2]
    assert callback.recorder.epoch == 3


class Stops(pl.Callback):
    def __init__(self, epoch, batch):
        self.at = (epoch, batch)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == self.at:
            raise KeyError("killed")


@pytest.mark.parametrize("monitored", [False, True], ids=["end of epoch", "end of validation"])
@pytest.mark.parametrize("batch", [0, 2])
def test_resuming_from_a_checkpoint_goes_on_with_the_records(tmp_path, monitored, batch):
    """Killed in the third epoch; the checkpoint is of the end of the second."""

    def fit(extra, ckpt=None):
        net = Net()
        saving = pl.callbacks.ModelCheckpoint(
            tmp_path / "ckpt", filename="last", save_on_train_epoch_end=not monitored, enable_version_counter=False
        )
        both = [
            RecorderCallback(tmp_path / "train", overwrite=True),  # which is not meant for what it resumes
            RecorderCallback(tmp_path / "val", stage="validation"),
        ]
        fitted = trainer(tmp_path, [*both, saving, *extra], max_epochs=4, enable_checkpointing=True)
        fitted.fit(net, loader(), loader(Points(9)), ckpt_path=ckpt)
        return net

    with pytest.raises(KeyError, match="killed"):
        fit([Stops(2, batch)])
    before = {epoch: hs.Dynamics(tmp_path / "train").at(epoch) for epoch in (1, 2)}
    assert hs.Dynamics(tmp_path / "train").epochs.tolist() == [1, 2]
    second = fit([], tmp_path / "ckpt" / "last.ckpt")
    recorded = hs.Dynamics(tmp_path / "train")
    assert recorded.epochs.tolist() == [1, 2, 3, 4]
    assert not np.isnan(recorded.matrix("avh")).any()
    for epoch, table in before.items():
        np.testing.assert_array_equal(recorded.at(epoch)["avh"], table["avh"])
    later = {(e, i): v for (e, i), v in witness(second).items() if e > 2}
    for (epoch, id_), scores in later.items():
        curve = recorded.curve(id_)
        assert curve["avh"][epoch - 1].as_py() == pytest.approx(scores["avh"], rel=3e-5)
    assert hs.Dynamics(tmp_path / "val").epochs.tolist() == [1, 2, 3, 4]


def test_resuming_inside_an_epoch_repeats_and_loses_nothing(tmp_path):
    def fit(extra, ckpt=None):
        saving = pl.callbacks.ModelCheckpoint(
            tmp_path / "ckpt", filename="last", every_n_train_steps=3, enable_version_counter=False
        )
        callbacks = [RecorderCallback(tmp_path / "run"), saving, *extra]
        fitted = trainer(tmp_path, callbacks, enable_checkpointing=True, max_epochs=1)
        fitted.fit(Net(), loader(shuffle=False), ckpt_path=ckpt)

    with pytest.raises(KeyError, match="killed"):
        fit([Stops(0, 4)])
    assert hs.Dynamics(tmp_path / "run").ids.tolist() == sorted(f"data:{i}" for i in range(15))
    fit([], tmp_path / "ckpt" / "last.ckpt")
    recorded = hs.Dynamics(tmp_path / "run")
    assert recorded.epochs.tolist() == [1]
    assert len(recorded) >= 15  # Lightning shows a loader without state its first batches again
    assert (recorded.summary()["seen"] == 1).all()


def test_the_same_callback_goes_on_after_an_error(tmp_path):
    callback, stops = RecorderCallback(tmp_path / "run"), Stops(1, 2)
    saving = pl.callbacks.ModelCheckpoint(tmp_path / "ckpt", filename="last", save_on_train_epoch_end=True)
    options = {"max_epochs": 3, "enable_checkpointing": True}
    with pytest.raises(KeyError, match="killed"):
        trainer(tmp_path, [callback, saving, stops], **options).fit(Net(), loader())
    net = Net()
    trainer(tmp_path, [callback, saving], **options).fit(net, loader(), ckpt_path=tmp_path / "ckpt" / "last.ckpt")
    recorded = hs.Dynamics(tmp_path / "run")
    assert recorded.epochs.tolist() == [1, 2, 3]
    for (epoch, id_), scores in witness(net).items():
        assert recorded.curve(id_)["avh"][epoch - 1].as_py() == pytest.approx(scores["avh"], rel=3e-5)


def test_a_second_training_into_one_folder_is_refused(tmp_path):
    trainer(tmp_path, [RecorderCallback(tmp_path / "run")], max_epochs=1).fit(Net(), loader())
    with pytest.raises(FileExistsError, match="epochs 1–1"):
        trainer(tmp_path, [RecorderCallback(tmp_path / "run")], max_epochs=1).fit(Net(), loader())
    again = RecorderCallback(tmp_path / "run", overwrite=True, note="again")
    trainer(tmp_path, [again], max_epochs=1).fit(Net(), loader())
    assert hs.Dynamics(tmp_path / "run").meta.note == "again"


def test_two_trainings_of_one_trainer_go_on_and_another_model_is_refused(tmp_path):
    recorder = hs.Recorder(tmp_path / "run", split="points")
    callback = RecorderCallback(recorder)  # which is used
    fitted, net = trainer(tmp_path, [callback], max_epochs=1), Net()
    fitted.fit(net, loader())
    assert recorder.summary()["id"][0] == "points:0"
    fitted.fit_loop.max_epochs = 3
    fitted.fit(net, loader())
    assert hs.Dynamics(tmp_path / "run").epochs.tolist() == [1, 2, 3]
    other = Net()
    nn.init.normal_(other.head.weight)
    with pytest.raises(ValueError, match="head was replaced"):
        trainer(tmp_path, [callback], max_epochs=1).fit(other, loader())


def test_samplers_are_told_the_epoch_by_lightning(tmp_path):
    sampler = CurriculumSampler(np.arange(N), "linear", 2, num_samples=N)
    net = Net()
    trainer(tmp_path, [RecorderCallback(tmp_path / "run")], max_epochs=3).fit(
        net, DataLoader(Points(), batch_size=5, sampler=sampler)
    )
    seen = {epoch: {id_ for e, id_ in witness(net) if e == epoch} for epoch in (1, 2, 3)}
    assert [len(seen[epoch]) for epoch in (1, 2, 3)] == [round(0.2 * N), round(0.6 * N), N]
    matrix = hs.Dynamics(tmp_path / "run").matrix("avh")
    assert (~np.isnan(matrix)).sum(0).tolist() == [len(seen[epoch]) for epoch in (1, 2, 3)]


@pytest.mark.slow
def test_two_processes_record_each_sample_once(tmp_path):
    subprocess.run([sys.executable, __file__, tmp_path], check=True, timeout=240)
    recorded = hs.Dynamics(tmp_path / "run")
    assert len(recorded) == 23  # one of them is shown twice an epoch, so that both processes have as many
    assert not np.isnan(recorded.matrix("avh")).any()
    assert recorded.meta.recorded.repeated == 2


def train_with_two_processes(folder):
    """Lightning starts this file again for the second process."""
    trainer(folder, [RecorderCallback(f"{folder}/run")], devices=2, strategy="ddp").fit(Net(), loader(Points(23)))


def test_batches_in_the_usual_forms_are_read():
    y = torch.tensor([0, 1])
    for batch in ((["a", "b"], None, y), [torch.tensor([4, 7]), None, y], {"index": [4, 7], "image": 0, "target": y}):
        ids, labels = ids_and_labels(batch)
        assert len(ids) == 2
        assert labels is y


@pytest.mark.parametrize(
    ("batch", "form"),
    [
        ((torch.ones(2, 3), torch.ones(2)), "tuple"),
        ([torch.ones(2, 3), torch.ones(2), torch.ones(2)], "list"),  # (inputs, labels, ids)
        ({"x": 1, "label": 2}, "x, label"),
        ({"id": ["a"], "x": 1}, "id, x"),
        (torch.ones(3), "Tensor"),
    ],
)
def test_a_batch_without_ids_is_a_sentence(batch, form):
    with pytest.raises(TypeError, match=rf"\(ids, inputs, labels\) .*{form}\."):
        ids_and_labels(batch)


def test_own_batches_are_read_by_a_function(tmp_path):
    class Turned(Net):
        def training_step(self, batch, i):
            return super().training_step((batch[2], batch[0], batch[1]), i)

    class Swapped(Points):
        def __getitem__(self, i):
            return self.x[i], self.y[i], i

    net = Turned()
    callback = RecorderCallback(tmp_path / "run", read=lambda batch: (batch[2], batch[1]))
    trainer(tmp_path, [callback]).fit(net, loader(Swapped()))
    assert_recorded(tmp_path / "run", witness(net))


class TwoViews(Net):
    def training_step(self, batch, _):
        _ids, x, y = batch
        return nn.functional.cross_entropy(self(torch.cat([x, x])), torch.cat([y, y]))


class NoHead(Net):
    def forward(self, x):
        return nn.functional.linear(self.body(x), self.head.weight)


class Compiled(Net):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(nn.Sequential(self.body, self.head))
        del self.body, self.head


@pytest.mark.parametrize(
    ("net", "error", "message"),
    [
        (TwoViews, RuntimeError, "'head' .*10 rows .*5 ids"),
        (NoHead, RuntimeError, "'head' did not"),
        pytest.param(Compiled, ValueError, "compiled module", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_recorded_is_a_sentence(tmp_path, net, error, message):
    module = net()
    with pytest.raises(error, match=message):
        trainer(tmp_path, [RecorderCallback(tmp_path / "run")]).fit(module, loader())
    assert not any(m._forward_hooks for m in module.modules())


def test_an_unknown_stage_and_two_validation_loaders_are_sentences(tmp_path):
    with pytest.raises(ValueError, match=r"stage .*got 'both'"):
        RecorderCallback(tmp_path / "run", stage="both")
    callback = RecorderCallback(tmp_path / "run", stage="validation")
    net = Net()
    net.validation_step = lambda batch, _, dataloader_idx=0: None
    with pytest.raises(ValueError, match="validation loader, got 2"):
        trainer(tmp_path, [callback]).fit(net, loader(), [loader(), loader()])


if __name__ == "__main__":
    train_with_two_processes(sys.argv[1])


def test_the_trainers_loggers_get_the_mean_of_each_score(tmp_path):
    class Fake(pl.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.calls = []

        def log_metrics(self, metrics, step=None):
            self.calls.append((metrics, step))

    logger, run = Fake(), tmp_path / "run"
    trainer = pl.Trainer(
        accelerator="cpu", logger=logger, max_epochs=2, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[RecorderCallback(run)], log_every_n_steps=1000,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(Points(), batch_size=4))
    calls = [call for call in logger.calls if "hardsight/train/avh" in call[0]]
    assert [step for _, step in calls] == [6, 12]
    for epoch, (metrics, _) in enumerate(calls, 1):
        at = hs.Dynamics(run).at(epoch)
        for name in ("avh", "confidence", "nll"):
            assert metrics[f"hardsight/train/{name}"] == pytest.approx(at[name].mean(), rel=1e-6)
        right = (at["pred"] == at["label"]).mean()
        assert metrics["hardsight/train/accuracy"] == pytest.approx(right)
