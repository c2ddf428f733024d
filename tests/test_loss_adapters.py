"""Losses inside other people's loops: Hugging Face's Trainer against a plain loop, timm's losses, Lightning."""

import math
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("transformers", reason="the extra hf is not installed")

from hardsight.integrations.huggingface import compute_loss
from hardsight.losses import EncouragingBCELoss, EncouragingLoss, FocalLoss

# On a machine without a GPU there is nothing to pin, and torch says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
LOSSES = [nn.CrossEntropyLoss(), EncouragingLoss(), EncouragingLoss(label_smoothing=0.1), FocalLoss()]


def tokens(n=5, t=7, c=4, seed=0):
    """Logits (n, t, c) and labels of which some are padding."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, t, c, generator=draw, dtype=torch.float64) * 3
    labels = torch.randint(c, (n, t), generator=draw)
    return logits, labels.masked_fill(torch.rand(n, t, generator=draw) < 0.4, -100)


# Hugging Face: the function.


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_tokens_count_one_by_one_and_padding_does_not(loss):
    logits, labels = tokens()
    places = [(i, j) for i in range(5) for j in range(7) if labels[i, j] != -100]
    each = torch.stack([loss(logits[i, j][None], labels[i, j][None]) for i, j in places])
    torch.testing.assert_close(compute_loss(loss)({"logits": logits}, labels), each.mean())
    torch.testing.assert_close(compute_loss(loss)({"logits": logits}, labels, 100), each.sum() / 100)
    assert loss.reduction == "mean"


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_shifted_logits_are_judged_at_the_next_token(loss):
    logits, labels = tokens()
    expected = loss(logits[:, :-1].reshape(-1, 4), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(compute_loss(loss, shift=True)({"logits": logits}, labels), expected)


def test_shifting_copies_no_logits():
    class Looks(nn.CrossEntropyLoss):
        def forward(self, input, target):
            self.address = input.data_ptr()
            return super().forward(input, target)

    (logits, labels), loss = tokens(), Looks()
    compute_loss(loss, shift=True)({"logits": logits}, labels)
    assert loss.address == logits.data_ptr()


FORMS = {
    "mapping": lambda z: {"logits": z, "hidden": 1},
    "tuple": lambda z: (z, 1),
    "object": lambda z: SimpleNamespace(logits=z),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_logits_are_found_in_every_form_of_output(form):
    logits, labels = torch.randn(5, 4), torch.arange(5) % 4
    assert compute_loss(LOSSES[0])(form(logits), labels) == F.cross_entropy(logits, labels)


@pytest.mark.parametrize("count", [int, torch.tensor], ids=["number", "tensor"])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_parts_of_a_batch_add_up_to_the_whole(loss, count):
    """Micro-batches with unequal padding: the gradient is that of one large batch."""
    logits, labels = tokens(6)
    logits.requires_grad_()
    whole = torch.autograd.grad(compute_loss(loss)({"logits": logits}, labels), logits)[0]
    items = count(int((labels != -100).sum()))
    parts = [compute_loss(loss)({"logits": logits[i]}, labels[i], items) for i in torch.arange(6).split(2)]
    torch.testing.assert_close(torch.autograd.grad(sum(parts), logits)[0], whole)


def test_class_weights_do_not_depend_on_how_a_batch_is_split():
    loss = EncouragingLoss(torch.tensor([1.0, 5.0, 0.1, 2.0], dtype=torch.float64))
    logits, labels = tokens(6)
    f, items = compute_loss(loss), int((labels != -100).sum())
    parts = sum(f({"logits": logits[i]}, labels[i], items) for i in torch.arange(6).split(2))
    torch.testing.assert_close(parts, f({"logits": logits}, labels, items))


@pytest.mark.parametrize("average", [True, False])
def test_under_data_parallel_the_count_of_each_device_gives_one_mean(average):
    """Two devices: the count comes as (2, 1); with averaging it is of all and the Trainer doubles the loss."""
    logits, labels = tokens()
    items = int((labels != -100).sum())
    counts = torch.tensor(items if average else items / 2).unsqueeze(0).expand(2, -1)
    actual = compute_loss(LOSSES[1])({"logits": logits}, labels, counts) * (2 if average else 1)
    torch.testing.assert_close(actual, compute_loss(LOSSES[1])({"logits": logits}, labels))


@pytest.mark.parametrize("loss", [*LOSSES, EncouragingBCELoss(), nn.BCEWithLogitsLoss()], ids=str)
def test_labels_as_probabilities_add_up_too(loss):
    """Of these the Trainer counts every entry."""
    logits = tokens()[0][:4, 0]
    labels = logits.flip(0).softmax(-1)
    f = compute_loss(loss)
    parts = [f({"logits": logits[i]}, labels[i], num_items_in_batch=labels.numel()) for i in torch.arange(4).split(2)]
    torch.testing.assert_close(sum(parts), loss(logits, labels))


def test_a_step_in_which_everything_is_padding_is_zero_without_a_gradient():
    logits = torch.randn(2, 3, 4, requires_grad=True)
    value = compute_loss(EncouragingLoss())({"logits": logits}, torch.full((2, 3), -100), torch.tensor(0))
    value.backward()
    assert value == 0
    assert not logits.grad.any()


def test_half_precision_logits_give_a_float32_loss():
    logits, labels = tokens()
    actual = compute_loss(EncouragingLoss())({"logits": logits.bfloat16()}, labels, torch.tensor(7))
    assert actual.dtype == torch.float32


def test_a_changed_option_takes_effect_and_the_function_travels():
    logits, labels = tokens()
    loss = EncouragingLoss()
    f = compute_loss(loss)
    loss.rho = 0.0  # as a schedule does
    torch.testing.assert_close(f({"logits": logits}, labels), F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    torch.testing.assert_close(pickle.loads(pickle.dumps(f))({"logits": logits}, labels), f({"logits": logits}, labels))


@pytest.mark.slow
def test_a_compiled_loss_serves_with_and_without_a_count():
    logits, labels = tokens()
    plain = compute_loss(EncouragingLoss())
    compiled = compute_loss(torch.compile(EncouragingLoss(), backend="eager", fullgraph=True))
    for items in (None, torch.tensor(40)):
        expected = plain({"logits": logits}, labels, items)
        torch.testing.assert_close(compiled({"logits": logits}, labels, items), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, y: compute_loss(nn.CrossEntropyLoss(reduction="sum")), "reduction='mean', got 'sum'"),
        (lambda z, y: compute_loss(nn.Linear(1, 1)), "reduction='mean', got None"),
        (lambda z, y: compute_loss(EncouragingLoss(ignore_index=0)), "ignore_index=-100, got 0"),
        (lambda z, y: compute_loss(LOSSES[0])({"logits": z}, None), "without labels"),
        (lambda z, y: compute_loss(LOSSES[0])({"logits": z}, y[:, 1:]), "\\(5, 7\\), got \\(5, 6\\)"),
    ],
)
def test_what_cannot_be_computed_is_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(*tokens())


@pytest.mark.parametrize("outputs", [{"loss": 1}, (), (None,), torch.ones(2, 2)], ids=str)
def test_outputs_without_logits_are_a_sentence(outputs):
    with pytest.raises(TypeError, match="return logits"):
        compute_loss(LOSSES[0])(outputs, torch.tensor([0, 1]))


# Hugging Face: the real Trainer.

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture
def transformers():
    pytest.importorskip("accelerate", reason="the extra hf is not installed")
    return pytest.importorskip("transformers", reason="the extra hf is not installed")


def sentences(transformers):
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, **STILL, num_labels=3))


def tagger(transformers):
    return transformers.BertForTokenClassification(transformers.BertConfig(**SMALL, **STILL, num_labels=3))


def causal(transformers):
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def translator(transformers):
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def rows(build, n=8):
    """Texts of six tokens; labels of tokens are padded, very unequally."""
    draw = torch.Generator().manual_seed(0)
    batch = []
    for i in range(n):
        ids = torch.randint(1, 50, (6,), generator=draw)
        if build is sentences:
            batch.append({"input_ids": ids, "labels": torch.tensor(i % 3)})
            continue
        labels = ids % 3 if build is tagger else ids.clone()
        labels[1 + i % 5 :] = -100
        labels[0] = labels[0] if build is not causal else -100  # nothing predicts the first; older Trainers count it
        if build is causal:
            labels[1] = ids[1]
        batch.append({"input_ids": ids, "labels": labels})
        if build is translator:  # what DataCollatorForSeq2Seq(model=model) adds
            batch[-1]["decoder_input_ids"] = torch.cat([torch.zeros(1, dtype=torch.long), labels.clamp_min(0)[:-1]])
    return batch


def trained(build, loss, tmp_path, transformers, **options):
    """The weights that a Trainer ends with. Eight samples make every step, so that their order does not matter."""
    torch.manual_seed(0)
    net = build(transformers)
    arguments = {
        "num_train_epochs": 3, "optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True,
        "logging_strategy": "no",
    }  # fmt: skip
    trainer = transformers.Trainer(
        net, transformers.TrainingArguments(str(tmp_path), **{**arguments, **options}), train_dataset=rows(build),
        eval_dataset=rows(build), compute_loss_func=None if loss is None else compute_loss(loss, shift=build is causal),
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return net.state_dict(), trainer


def looped(build, loss, transformers):
    """The same with no Trainer, no accumulation and nothing of the adapter."""
    torch.manual_seed(0)
    net = build(transformers).train()
    batch = {k: torch.stack([row[k] for row in rows(build)]) for k in rows(build)[0]}
    labels = batch.pop("labels")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(3):
        logits = net(**batch).logits
        if build is causal:
            value = loss(logits[:, :-1].transpose(1, 2), labels[:, 1:])
        else:
            value = loss(logits if labels.ndim == 1 else logits.transpose(1, 2), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return net.state_dict()


def assert_same_weights(actual, expected):
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, rtol=1e-4, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("build", [sentences, tagger, causal, translator])
def test_accumulation_trains_as_one_large_batch_in_a_plain_loop_does(tmp_path, build, transformers):
    split = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    actual, _ = trained(build, EncouragingLoss(), tmp_path, transformers, **split)
    assert_same_weights(actual, looped(build, EncouragingLoss(), transformers))


@pytest.mark.parametrize("build", [tagger, causal])
def test_cross_entropy_trains_as_the_models_own_loss_does(tmp_path, build, transformers):
    whole = {"per_device_train_batch_size": 8}
    actual, trainer = trained(build, nn.CrossEntropyLoss(), tmp_path, transformers, **whole)
    expected, plain = trained(build, None, tmp_path, transformers, **whole)
    assert_same_weights(actual, expected)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)


def test_the_trainers_own_label_smoothing_is_not_applied_on_top(tmp_path, transformers):
    options = {"per_device_train_batch_size": 8, "label_smoothing_factor": 0.3}
    actual, _ = trained(sentences, EncouragingLoss(), tmp_path, transformers, **options)
    assert_same_weights(actual, looped(sentences, EncouragingLoss(), transformers))


# timm: the loss object.


def mixed(n=16, c=10, smoothing=0.1, size=8):
    mixup = pytest.importorskip("timm.data").Mixup(mixup_alpha=0.8, label_smoothing=smoothing, num_classes=c)
    return mixup(torch.rand(n, 1, size, size), torch.arange(n) % c)


def test_without_a_bonus_they_are_timms_losses():
    (_, soft), hard, logits = mixed(), torch.arange(16) % 10, torch.randn(16, 10) * 5
    timm = pytest.importorskip("timm.loss")
    for ours, theirs, target in (
        (EncouragingLoss(rho=0), timm.SoftTargetCrossEntropy(), soft),
        (EncouragingLoss(rho=0, label_smoothing=0.1), timm.LabelSmoothingCrossEntropy(0.1), hard),
        (EncouragingBCELoss(rho=0), timm.BinaryCrossEntropy(smoothing=0.0), soft),
    ):
        torch.testing.assert_close(ours(logits, target), theirs(logits, target))


def test_timms_loop_with_mixup_and_mixed_precision_trains():
    """As timm's train.py calls it: moved to the device, on soft targets, under autocast."""
    import timm
    from timm.optim import create_optimizer_v2

    model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
    loss_fn = EncouragingLoss().to(device="cpu")
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2)
    x, target = mixed(size=32)  # of a single pixel, as 8 leaves at the end, AMX kernels in bfloat16 return NaN
    values = []
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            value = loss_fn(model(x), target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert value.dtype == torch.float32
    assert math.isfinite(values[-1])
    assert values[-1] < values[0]
    assert not list(loss_fn.parameters())


# Lightning: the loss is one line of a module.


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches.*:UserWarning")
def test_a_lightning_module_learns_digits_with_it():
    pl = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)

    class Digits(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss = nn.Linear(64, 10), EncouragingLoss(log_end=0.75)

        def training_step(self, batch, index):
            return self.loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02)

    module = Digits()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:1500], y[:1500]), 250, shuffle=True)
    trainer = pl.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    assert (module.net(x[1500:]).argmax(1) == y[1500:]).float().mean() > 0.8
