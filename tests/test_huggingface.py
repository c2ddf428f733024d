"""The callback in real Hugging Face trainers: what is recorded is what a witness inside the model kept."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from naive import naive_scores
from torch import nn

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
pytest.importorskip("accelerate", reason="the extra hf is not installed")
datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")

import hardsight as hs  # noqa: E402
from hardsight.integrations.huggingface import RecorderCallback, with_ids  # noqa: E402

N, CLASSES = 22, 3
# On a machine without a GPU there is nothing to pin, and torch says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
collator = transformers.default_data_collator


class Witness(transformers.BertForSequenceClassification):
    """Keeps what its classifier saw, without hardsight."""

    def __init__(self, config):
        super().__init__(config)
        self.kept = []

    def forward(self, input_ids=None, labels=None, **rest):
        out = super().forward(input_ids=input_ids, labels=labels, **rest)
        weight, bias = (p.detach().clone() for p in (self.classifier.weight, self.classifier.bias))
        self.kept.append((self.training, input_ids[:, 0].tolist(), self.seen, weight, bias))
        return out


def model(dropout=0.1, **options):
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=dropout, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    net = Witness(config)
    # The witness looks at the classifier's input by replacing its call, not by a hook.
    plain = net.classifier.forward

    def forward(x):
        net.seen = x.detach().clone()
        return plain(x)

    net.classifier.forward = forward
    return net


def data(n=N, first=0, ids=str, **more):
    """The first token of each text is its number, so that the model itself can tell which sample it sees."""
    random = np.random.default_rng(first)
    columns = {
        "id": [f"t{i}" if ids is str else i for i in range(first, first + n)],
        "input_ids": [[i, *random.integers(100, 200, 4).tolist()] for i in range(first, first + n)],
        "label": random.integers(0, CLASSES, n).tolist(),
    }
    return datasets.Dataset.from_dict(columns | more)


def trainer(tmp_path, net, callbacks, train=None, collate=None, kind=transformers.Trainer, evaluation=None, **options):
    defaults = {
        "num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "learning_rate": 0.05, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "remove_unused_columns": False, "use_cpu": True, "logging_strategy": "no",
    }  # fmt: skip
    made = kind(
        net, transformers.TrainingArguments(str(tmp_path / "out"), **{**defaults, **options}),
        train_dataset=data() if train is None else train, eval_dataset=evaluation,
        data_collator=collate or with_ids(collator), callbacks=callbacks,
    )  # fmt: skip
    made.remove_callback(transformers.PrinterCallback)
    return made


def assert_recorded(run, net, sets, training=True, name="t{}", rtol=3e-5):
    """Every batch of the witness against the rows of the run, in the order in which they came."""
    labels = {row["input_ids"][0]: row["label"] for rows in sets for row in rows}
    dynamics = hs.Dynamics(run)
    tables = {epoch: dynamics.at(epoch) for epoch in dynamics.epochs.tolist()}
    rows = {e: {id_: row for row, id_ in enumerate(table["id"])} for e, table in tables.items()}
    epoch, seen = 1, set()
    for was_training, numbers, features, weight, bias in net.kept:
        if was_training != training:
            continue
        if seen & set(numbers):
            epoch, seen = epoch + 1, set()
        seen |= set(numbers)
        expected = naive_scores(features.float(), weight, [labels[i] for i in numbers], bias)
        at = [rows[epoch][name.format(i)] for i in numbers]
        for score in ("avh", "angle", "nll", "norm", "margin", "el2n", "confidence", "pred"):
            np.testing.assert_allclose(tables[epoch][score][at], expected[score], rtol=rtol, atol=3e-5, err_msg=score)
    assert epoch == len(dynamics.epochs)
    return dynamics


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"bf16": True},
        {"dataloader_drop_last": True},
        {"label_smoothing_factor": 0.1},
        {"dataloader_num_workers": 2, "num_train_epochs": 1},
        {"ids": int},
        {"max_steps": 8},
    ],
    ids=str,
)
def test_what_is_recorded_is_what_the_classifier_saw(tmp_path, case):
    case = dict(case)
    net, train = model(), data(ids=case.pop("ids", str))
    trainer(tmp_path, net, [RecorderCallback(tmp_path / "run")], train, **case).train()
    name = "t{}" if isinstance(train[0]["id"], str) else "data:{}"
    dynamics = assert_recorded(tmp_path / "run", net, [train], name=name)
    whole = not case.get("dataloader_drop_last") and "max_steps" not in case
    assert not whole or (len(dynamics) == N and not np.isnan(dynamics.matrix("avh")).any())
    assert not net.classifier._forward_hooks


def test_evaluations_during_training_are_passes_of_their_own(tmp_path):
    net, evaluation = model(), data(9, first=50)
    both = [RecorderCallback(tmp_path / "train"), RecorderCallback(tmp_path / "val", stage="validation")]
    made = trainer(tmp_path, net, both, evaluation=evaluation, eval_strategy="epoch")
    made.train()
    assert_recorded(tmp_path / "train", net, [made.train_dataset])
    dynamics = assert_recorded(tmp_path / "val", net, [evaluation], training=False)
    assert dynamics.epochs.tolist() == [1, 2]
    assert dynamics.ids.tolist() == sorted(f"t{i}" for i in range(50, 59))
    made.evaluate()  # after training: the collator still puts ids in, and the model must not meet them
    made.predict(evaluation)
    assert hs.Dynamics(tmp_path / "val").epochs.tolist() == [1, 2]


class Stops(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyError("killed")


@pytest.mark.parametrize(
    ("saving", "killed_at", "evaluations"),
    [
        ({"save_strategy": "epoch"}, 14, 4),
        ({"save_strategy": "steps", "save_steps": 4}, 10, 4),
        # Saved at the last step of epoch 2 and before its evaluation, which the Trainer does not make up for.
        ({"save_strategy": "steps", "save_steps": 6}, 14, 3),
    ],
    ids=["after epoch 2", "inside epoch 2", "at its last step"],
)
def test_resuming_from_a_checkpoint_goes_on_with_the_records(tmp_path, saving, killed_at, evaluations):
    """22 samples are 6 steps an epoch."""
    evaluation = data(9, first=50)

    def make(extra=(), net=None):
        both = [RecorderCallback(tmp_path / "train"), RecorderCallback(tmp_path / "val", stage="validation")]
        options = {"evaluation": evaluation, "eval_strategy": "epoch", "num_train_epochs": 4, **saving}
        return trainer(tmp_path, net or model(), [*both, *extra], **options)

    with pytest.raises(KeyError, match="killed"):
        make([Stops(killed_at)]).train()
    first = hs.Dynamics(tmp_path / "train")
    before = {epoch: dict(zip(first.at(epoch)["id"], first.at(epoch)["avh"], strict=True)) for epoch in (1, 2)}
    assert first.epochs.tolist() == [1, 2]
    assert len(before[2]) == (N if killed_at == 14 else 8)  # of the unfinished epoch what was there at the checkpoint
    net = model()
    make(net=net).train(resume_from_checkpoint=True)
    recorded = hs.Dynamics(tmp_path / "train")
    assert recorded.epochs.tolist() == [1, 2, 3, 4]
    assert [len(recorded.at(epoch)) for epoch in (1, 3, 4)] == [N] * 3
    rest = [numbers for training, numbers, *_ in net.kept if training][: 0 if killed_at == 14 else 4]
    assert set(recorded.at(2)["id"]) == {*before[2], *(f"t{i}" for numbers in rest for i in numbers)}
    for epoch, rows in before.items():
        now = dict(zip(recorded.at(epoch)["id"], recorded.at(epoch)["avh"], strict=True))
        assert {id_: now[id_] for id_ in rows} == rows
    assert len(hs.Dynamics(tmp_path / "val").epochs) == evaluations


@pytest.mark.parametrize("resume", [False, True])
def test_training_again_after_an_error_forgets_what_the_error_took_back(tmp_path, resume):
    callback, net = RecorderCallback(tmp_path / "run"), model()
    made = trainer(tmp_path, net, [callback, Stops(9)], save_strategy="epoch", num_train_epochs=3)
    with pytest.raises(KeyError, match="killed"):
        made.train()
    made.remove_callback(Stops)
    net.kept.clear()
    made.train(resume_from_checkpoint=resume)
    recorded = hs.Dynamics(tmp_path / "run")
    assert len(recorded.epochs) == (3 if resume else 4)  # not resumed: an epoch, and then three
    assert (recorded.summary()["seen"] == len(recorded.epochs)).all()
    numbers, features, weight, bias = next(rest for training, *rest in net.kept if training)
    labels = [made.train_dataset[i]["label"] for i in numbers]
    second = dict(zip(recorded.at(2)["id"], recorded.at(2)["avh"], strict=True))
    expected = naive_scores(features, weight, labels, bias)["avh"]
    np.testing.assert_allclose([second[f"t{i}"] for i in numbers], expected, rtol=3e-5)


def test_the_column_of_ids_may_have_another_name(tmp_path):
    """And an evaluation set need not have it where only training is recorded."""
    train, evaluation = data().rename_column("id", "name"), data(9, first=50).remove_columns("id")
    callback = RecorderCallback(tmp_path / "run", class_names=["a", "b", "c"])
    options = {"evaluation": evaluation, "eval_strategy": "epoch"}
    trainer(tmp_path, model(), [callback], train, with_ids(collator, key="name"), **options).train()
    assert hs.Dynamics(tmp_path / "run").ids.tolist() == sorted(train["name"])


def test_batches_of_a_tokenizers_collator_keep_their_ids():
    def encode(features):
        assert all("id" not in feature for feature in features)
        made = {"input_ids": torch.tensor([f["input_ids"] for f in features]), "labels": torch.tensor([0, 1])}
        return transformers.BatchEncoding(made)

    rows = [{"id": 7, "input_ids": [1]}, {"id": 9, "input_ids": [2]}]
    batch = with_ids(encode)(rows)
    assert isinstance(batch, transformers.BatchEncoding)
    assert batch["hardsight"]["ids"].tolist() == [7, 9]
    assert rows[0]["id"] == 7  # the data set's own rows are left as they are
    with pytest.raises(ValueError, match="labels, got x"):
        with_ids(lambda rows: {"x": torch.ones(1)})([{"id": 1, "x": 1}])


@pytest.mark.slow
def test_two_processes_record_each_sample_once(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, __file__, tmp_path], check=True, timeout=240)
    recorded = hs.Dynamics(tmp_path / "run")
    assert len(recorded) == 21  # some are shown twice, so that both processes have as many
    assert not np.isnan(recorded.matrix("avh")).any()
    assert json.loads((tmp_path / "repeated.json").read_text()) > 0


def train_with_two_processes(folder):
    from pathlib import Path

    callback = RecorderCallback(f"{folder}/run")
    trainer(Path(folder), model(), [callback], data(21)).train()
    if torch.distributed.get_rank() == 0:
        repeated = hs.Dynamics(f"{folder}/run").meta.recorded.repeated
        Path(folder, "repeated.json").write_text(json.dumps(repeated))
    torch.distributed.destroy_process_group()


# Sentences.


def tokens(net):
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    labeled = data().remove_columns("label").add_column("labels", [[0, 1, 2, 0, 1]] * N)
    return {"net": transformers.BertForTokenClassification(config), "train": labeled}


def spare_head(net):
    net.spare = nn.Linear(16, CLASSES)
    return {"head": "spare"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda net: {"remove_unused_columns": True}, ValueError, "remove_unused_columns=False"),
        (lambda net: {"train": data().remove_columns("id")}, RuntimeError, r"train .*ids: .*data_collator=with_ids"),
        (
            lambda net: {"stage": "validation", "evaluation": {"a": data(5, first=50), "b": data(5, first=60)}},
            RuntimeError,
            r"one evaluation .*eval_a_loss",
        ),
        (lambda net: {"stage": "eval"}, ValueError, r"stage .*got 'eval'"),
        (tokens, RuntimeError, "head 'classifier'"),
        (spare_head, RuntimeError, "head 'spare' did"),
    ],
    ids=["dropped columns", "no ids", "several evaluations", "unknown stage", "tokens", "head that never runs"],
)
def test_what_cannot_be_recorded_is_a_sentence(tmp_path, change, error, message):
    net = model()
    options = {"net": net, **change(net)}
    recorder = {key: options.pop(key) for key in ("stage", "head") if key in options}
    if "evaluation" in options:
        options["eval_strategy"] = "epoch"
    with pytest.raises(error, match=message):
        trainer(tmp_path, callbacks=[RecorderCallback(tmp_path / "run", **recorder)], **options).train()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"n_gpu": 4}, "process.*GPU"),
        ({"torch_compile": True}, "torch_compile=False"),
        ({"deepspeed": "ds.json"}, "DeepSpeed"),
    ],
)
def test_ways_of_training_that_hide_the_head_are_refused(tmp_path, setting, message):
    class Arguments:
        n_gpu, torch_compile, fsdp, deepspeed = 1, False, None, None

    arguments = Arguments()
    vars(arguments).update(setting)
    with pytest.raises(ValueError, match=message):
        RecorderCallback(tmp_path / "run").on_train_begin(arguments, transformers.TrainerState(), None, model=model())


if __name__ == "__main__":
    train_with_two_processes(sys.argv[1])


def test_metrics_go_through_the_trainers_log(tmp_path):
    callback, run = RecorderCallback(tmp_path / "run"), tmp_path / "run"
    made = trainer(tmp_path, model(), [callback])
    callback.log_metrics = lambda metrics, step: made.log(metrics | {"at": step})
    made.train()
    entries = [entry for entry in made.state.log_history if "hardsight/train/avh" in entry]
    assert [(entry["at"], entry["step"]) for entry in entries] == [(6, 6), (12, 12)]
    for epoch, entry in enumerate(entries, 1):
        at = hs.Dynamics(run).at(epoch)
        assert entry["hardsight/train/avh"] == pytest.approx(at["avh"].mean(), rel=1e-6)
