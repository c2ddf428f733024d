"""hs.score: the same rows whichever way, resumable after any kill, bad samples listed."""

import contextlib
import dataclasses
import inspect
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import run
from naive import naive_scores
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import hardsight as hs
from hardsight import SampleTable
from hardsight.data import load_digits
from hardsight.demo import small_cnn
from hardsight.runs import Counts, read_run
from hardsight.scoring.options import ScoreOptions

NET = """
import os, time
import torch
from torch import nn

class Net(nn.Sequential):
    count = 0
    def forward(self, x):
        Net.count += len(x)
        if Net.count > int(os.environ.get("STALL_AFTER", 10**9)):
            print("stalled", flush=True)
            time.sleep(60)
        return super().forward(x)

def build():
    torch.manual_seed(3)
    return Net(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5))
"""


@pytest.fixture(scope="module")
def digits():
    pictures, labels = load_digits()
    return torch.from_numpy(pictures).float()[:, None] / 255, torch.from_numpy(labels)


@pytest.fixture(scope="module")
def first(digits):
    """The first so many digits as a data set."""
    return lambda count: TensorDataset(digits[0][:count], digits[1][:count])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return small_cnn().eval()


def features_of(network, x):
    with hs.capture(network) as head, torch.no_grad():
        network(x)
    return head.features, head.weight.detach(), head.bias.detach()


def test_model_features_and_naive_loop_give_the_same_rows(network, digits):
    x, y = (t[:300] for t in digits)
    table = hs.score(network, TensorDataset(x, y))
    features, weight, bias = features_of(network, x)
    same = hs.score_features(features, weight, y, bias)
    truth = naive_scores(features, weight, y, bias)
    assert table["id"].tolist() == same["id"].tolist()
    assert table["pred"].tolist() == truth["pred"].tolist()
    for name, score in hs.SCORES.items():
        # Batches of 64 and one of 300 differ in the last float32 digit of the features themselves.
        np.testing.assert_allclose(table[name], same[name], rtol=1e-5, atol=1e-6, err_msg=name)
        relative, absolute = score.tolerance
        np.testing.assert_allclose(same[name], truth[name], rtol=relative, atol=max(absolute, 1e-12), err_msg=name)


def test_rows_do_not_depend_on_batches_workers_or_order(network, first):
    plain = hs.score(network, first(200))
    many = hs.score(network, first(200), batch_size=7, workers=2)
    assert many["id"].tolist() == plain["id"].tolist()
    np.testing.assert_allclose(many["avh"], plain["avh"], rtol=1e-6)
    loader = DataLoader(first(200), batch_size=32, shuffle=True)
    assert hs.score(network, loader)["id"].tolist() == plain["id"].tolist()


def test_the_network_is_left_as_it_was(first):
    head = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10))  # whose buffers change in training mode
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(64), head)
    network[1].train()
    network[2].eval()
    before = [m.training for m in network.modules()]
    state = {k: v.clone() for k, v in network.state_dict().items()}
    rows = [hs.score(network, first(50))["avh"].tolist() for _ in range(2)]
    assert rows[0] == rows[1]  # dropout was off
    assert [m.training for m in network.modules()] == before
    assert all((state[k] == v).all() for k, v in network.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


def test_compiled_and_half_precision_networks(network, digits, first):
    plain = hs.score(network, first(64))["avh"].tolist()
    assert hs.score(torch.compile(network, backend="eager"), first(64))["avh"].tolist() == plain
    network.compile(backend="eager")  # in place
    assert hs.score(network, first(64))["avh"].tolist() == plain
    torch.manual_seed(0)
    half, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).bfloat16(), digits[0][:40].bfloat16()
    table = hs.score(half, TensorDataset(x, digits[1][:40]))
    truth = naive_scores(x.flatten(1).double(), half[1].weight.detach().double(), digits[1][:40])
    np.testing.assert_allclose(table["avh"], truth["avh"], rtol=1e-6)


class _Outputs(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.body, self.make = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), make

    def forward(self, x):
        return self.make(self.body(x))


class _TwoLayers(nn.Module):
    """Its first layer can be taken for the head, by its size."""

    def __init__(self, width, forward):
        super().__init__()
        self.a, self.b, self.run = nn.Linear(64, width), nn.Linear(width if width == 10 else 64, width), forward

    def forward(self, x):
        return self.run(self, x.flatten(1))


OUTPUTS = {
    "dict": (lambda: _Outputs(lambda z: {"logits": z}), None, None),
    "tuple": (lambda: _Outputs(lambda z: (z, None)), None, None),
    "object": (lambda: _Outputs(lambda z: SimpleNamespace(logits=z)), None, None),
    "log-softmax": (lambda: _Outputs(lambda z: z.log_softmax(1)), None, None),
    "softmax": (lambda: _Outputs(lambda z: z.softmax(1)), None, None),
    "changed": (lambda: _Outputs(lambda z: z.flip(1)), None, r"its head 'body\.1'"),
    "beside features as wide": (lambda: _TwoLayers(10, lambda m, x: (m.a(x).relu(), m.b(m.a(x).relu()))), None, None),
    "the head of two": (lambda: _TwoLayers(1000, lambda m, x: (m.b(x), m.a(x))[1]), "a", None),
    "the other of two": (lambda: _TwoLayers(1000, lambda m, x: (m.b(x), m.a(x))[1]), "b", "its head 'b'"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_any_kind_and_those_that_are_not_the_heads(first, name):
    build, head, warning = OUTPUTS[name]
    with pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext():
        table = hs.score(build(), first(30), head=head)
    assert len(table) == 30
    assert len(table.meta.warnings) == (warning is not None)


def test_inputs_that_are_mappings(digits):
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(64, 10)

        def forward(self, pixel_values):
            return {"logits": self.classifier(pixel_values.flatten(1))}

    rows = [({"pixel_values": x}, int(y)) for x, y in zip(digits[0][:20], digits[1][:20], strict=True)]
    assert len(hs.score(Mapped(), rows)) == 20


def test_bias_free_on_request(network, digits, first):
    features, weight, _ = features_of(network, digits[0][:50])
    plain = hs.confidence(features, weight, digits[1][:50]).numpy()
    np.testing.assert_allclose(hs.score(network, first(50), use_bias=False)["confidence"], plain, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Bad samples and bad data sets.


class _Broken(TensorDataset):
    def __getitem__(self, index):
        if index in (2, 5):
            raise OSError("cannot identify image file")
        x, y = super().__getitem__(index)
        return (x * float("nan"), y) if index == 9 else (x, y)


def test_bad_samples_are_listed_and_counted(network, digits, tmp_path):
    data = _Broken(digits[0][:20], digits[1][:20])
    table = hs.score(network, data, out=tmp_path / "run", batch_size=4)
    assert sorted(table.bad["id"].to_pylist()) == ["data:2", "data:5", "data:9"]
    assert table.meta.counts == Counts(17, 3, 0)
    again = SampleTable.load(tmp_path / "run")
    assert again.bad.num_rows == 3
    assert len(again) == 17
    assert json.loads((tmp_path / "run" / "meta.json").read_text())["counts"]["bad"] == 3
    with pytest.raises(ValueError, match="'data:2': OSError"):
        hs.score(network, data, strict=True)
    with pytest.raises(ValueError, match=r"'data:9': .*NaN"):
        hs.score(network, Subset(data, [8, 9, 10]), strict=True)
    with pytest.raises(ValueError, match="first: data:2: OSError"):
        hs.score(network, Subset(data, [2, 5]))


def test_data_that_could_not_be_read_at_all_are_tried_again(network, digits, tmp_path, monkeypatch):
    """A disk that was not mounted must not decide the run for good."""
    options = {"out": tmp_path / "run", "version": "1", "progress": False}
    read = TensorDataset.__getitem__
    data = TensorDataset(digits[0][:20], digits[1][:20])

    def not_mounted(self, index):
        raise OSError("no such device")

    monkeypatch.setattr(TensorDataset, "__getitem__", not_mounted)
    with pytest.raises(ValueError, match="no sample"):
        hs.score(network, data, **options)
    monkeypatch.setattr(TensorDataset, "__getitem__", read)
    assert hs.score(network, data, **options).meta.counts == Counts(20, 0, 0)


def test_data_that_do_not_fit(network, digits):
    x, y = (t[:20] for t in digits)
    with pytest.raises(ValueError, match="DATA is empty"):
        hs.score(network, TensorDataset(x[:0], y[:0]))
    with pytest.raises(ValueError, match=r"labels .*\[0, 9\].*got 10"):
        hs.score(network, TensorDataset(x, torch.full((20,), 10)))
    with pytest.raises(RuntimeError, match=r"model.*\(20, 3, 8, 8\).*preprocessing"):
        hs.score(network, TensorDataset(x.repeat(1, 3, 1, 1), y))
    with pytest.raises(ValueError, match="two data sets"):
        hs.score(network, [(x[0], 1), (x[1],)])
    with pytest.raises(TypeError, match=r"data set.* int"):
        hs.score(network, 7)
    with pytest.raises(TypeError, match=r"model.*nn\.Module"):
        hs.score(len, TensorDataset(x, y))
    with pytest.raises(ValueError, match="'same' repeats"):
        hs.score(network, TensorDataset(x, y), ids=["same"] * 20)
    with pytest.raises(TypeError, match="TensorDataset"):
        hs.score(network, x)


def test_raw_pictures_need_a_word_about_preprocessing(network):
    with pytest.raises(ValueError, match=r"preprocess must.*preprocess='raw'"):
        hs.score(network, "digits")
    table = hs.score(network, "digits", preprocess="raw")
    assert len(table) == 1797
    assert table.meta.preprocessing == "none: pixels in [0, 1]"
    assert table["id"][5] == "digits:5"


# ---------------------------------------------------------------------------------------------------------------------
# Run folders: resume, refuse, share.


def test_a_finished_run_is_not_done_again_and_says_how_it_was_made(network, first, tmp_path):
    table = hs.score(network, first(30), out=tmp_path / "run")
    file = tmp_path / "run" / "meta.json"
    stamp, meta = file.stat().st_mtime_ns, json.loads(file.read_text())
    assert {"torch", "hardsight"} <= meta["versions"].keys()
    assert len(meta["model"]["fingerprint"]) == len(meta["data"]["fingerprint"]) == 32
    assert meta["model"]["head"] == "9"
    assert {"command", "created", "python", "device", "seed", "preprocessing", "counts", "accuracy"} <= meta.keys()
    again = hs.score(network, first(30), out=tmp_path / "run")
    assert again.to_arrow().equals(table.to_arrow())
    assert file.stat().st_mtime_ns == stamp
    with pytest.raises(FileExistsError, match=r"same: model"):
        hs.score(small_cnn(), first(30), out=tmp_path / "run")
    assert len(hs.score(small_cnn(), first(30), out=tmp_path / "run", overwrite=True)) == 30


@pytest.fixture
def long_job(tmp_path, monkeypatch):
    """10,000 tiny pictures and a network that can be made to stall."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (10_000, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", test_images=images, test_labels=generator.integers(0, 5, 10_000))
    return [sys.executable, "-m", "hardsight", "score", "net.py:build", "data.npz", "-o", "run"], tmp_path


def started(command, cwd, **env):
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def here(command, capsys):
    """The same command in this process, where nothing has to be killed or limited."""
    return run(capsys, *command[3:])


def until_stalled(process):
    for line in process.stdout:
        if "stalled" in line:
            return
    raise AssertionError("the job ended too early")


def expected_rows(cwd):
    return hs.score(hs.load_model(f"{cwd}/net.py:build"), f"{cwd}/data.npz").to_arrow()


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_killed_run_resumes_and_loses_nothing(long_job, kill, capsys):
    command, cwd = long_job
    with started(command, cwd, STALL_AFTER="6000") as process:
        until_stalled(process)
        process.send_signal(kill)
        output = process.stdout.read()
    code = process.returncode
    assert not (cwd / "run" / "meta.json").exists()
    with pytest.raises(RuntimeError, match="not finished"):
        SampleTable.load(cwd / "run")
    safe = len(SampleTable.load(cwd / "run", partial=True))
    if kill == signal.SIGINT:
        assert code == 130
        assert "command resumes" in output
    assert safe in (5632, 5888)  # all units of 256 samples but, perhaps, the one that was being written
    assert here(command, capsys)[0] == 0
    assert SampleTable.load(cwd / "run").meta.resumed == safe
    assert SampleTable.load(cwd / "run").to_arrow().equals(expected_rows(cwd))


@pytest.mark.slow
def test_two_processes_share_a_run(long_job):
    """As under torchrun: each takes its half, the last one finishes the run, no id appears twice."""
    command, cwd = long_job
    jobs = [started(command, cwd, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    for job in jobs:
        output = job.communicate()[0]
        assert job.returncode == 0, output
    table = SampleTable.load(cwd / "run")
    assert table.to_arrow().equals(expected_rows(cwd))
    assert len([*(cwd / "run" / "parts").iterdir()]) == 40


@pytest.mark.parametrize(("rank", "world"), [("x", "2"), ("2", "2"), ("0", "0")])
def test_a_rank_that_no_job_has_is_one_sentence(monkeypatch, tmp_path, capsys, rank, world):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    code, _, err = run(capsys, "score", "net.py:build", "digits", "-o", tmp_path / "run")
    assert code == 2
    assert "RANK" in err
    assert "Traceback" not in err


def test_a_process_that_ends_while_another_commits_leaves_the_end_to_it(tmp_path, monkeypatch):
    """Else the run would be called whole with the rows that were there a moment before."""
    torch.manual_seed(0)
    net, data, load, counts = nn.Linear(6, 3), (torch.randn(96, 6), torch.arange(96) % 3), SampleTable.load, []

    def share(rank):
        options = {"shard": (rank, 2), "batch_size": 3, "version": "1", "progress": False}
        counts.append(hs.score(net, data, out=tmp_path / "run", **options).meta.counts)

    def loaded_before_the_other_ends(path, **options):
        table = load(path, **options)
        monkeypatch.setattr(SampleTable, "load", load)
        share(1)
        return table

    monkeypatch.setattr(SampleTable, "load", loaded_before_the_other_ends)
    share(0)
    assert counts == [Counts(96, 0, 0), None]  # of the second process, which ends first, and of the first
    assert load(tmp_path / "run").meta.counts.rows == len(load(tmp_path / "run")) == 96


@pytest.mark.parametrize("rows", [2, 6, 96])
def test_a_process_that_divided_the_data_otherwise_costs_time_and_no_rows(tmp_path, rows):
    """Two shares that begin at the same moment with different batches may both write the plan; the last one counts."""
    torch.manual_seed(0)
    net, data, run = nn.Linear(6, 3), (torch.randn(96, 6), torch.arange(96) % 3), tmp_path / "run"
    options = {"batch_size": 3, "version": "1", "progress": False}
    expected = hs.score(net, data, **options)
    hs.score(net, data, out=run, shard=(0, 2), **options)
    plan = json.loads((run / "plan.json").read_text())
    assert plan["unit_rows"] == 3
    (run / "plan.json").write_text(json.dumps(plan | {"unit_rows": rows}))
    hs.score(net, data, out=run, shard=(1, 2), **options)
    assert not (run / "meta.json").exists()  # the first half is missing
    hs.score(net, data, out=run, **options)
    table = SampleTable.load(run)
    assert table["id"].tolist() == expected["id"].tolist()
    np.testing.assert_allclose(table["avh"], expected["avh"], rtol=1e-6)
    assert len([*(run / "parts").iterdir()]) == 96 // rows


def test_a_marker_that_lost_its_scores_never_hides_rows(tmp_path):
    net, data, run = nn.Linear(6, 3), (torch.randn(96, 6), torch.arange(96) % 3), tmp_path / "run"
    options = {"batch_size": 6, "version": "1", "progress": False, "out": run}
    hs.score(net, data, **options)
    marker = run / "parts" / "u00000003.json"
    entries = json.loads(marker.read_text())
    marker.write_text(json.dumps({name: entry for name, entry in entries.items() if name in ("token", "samples")}))
    with pytest.raises(RuntimeError, match=r"damaged: .*96 samples"):
        SampleTable.load(run)
    (run / "meta.json").unlink()
    with pytest.raises(RuntimeError, match="90 of 96 samples"):
        hs.score(net, data, **options)
    entries["samples"]["rows"] = 10**30  # more than a unit has: it is scored again
    marker.write_text(json.dumps(entries))
    assert hs.score(net, data, **options).meta.resumed == 90
    assert len(SampleTable.load(run)) == 96


@pytest.mark.slow
def test_a_real_full_disk(long_job, capsys):
    """A limit on file size stands in for the end of the disk; with space again, the run goes on."""
    resource = pytest.importorskip("resource")
    command, cwd = long_job
    limited = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    assert limited.returncode == 2
    assert "is full" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert here(command, capsys)[0] == 0
    assert len(SampleTable.load(cwd / "run")) == 10_000


def test_changed_data_or_checkpoint_is_another_run(long_job, capsys):
    command, cwd = long_job
    assert here(command, capsys)[0] == 0
    with np.load(cwd / "data.npz") as arrays:
        np.savez(cwd / "data.npz", test_images=arrays["test_images"][:-1], test_labels=arrays["test_labels"][:-1])
    code, _, err = here(command, capsys)
    assert code == 2
    assert "not the same: data" in err


def test_a_new_run_is_not_read_again(network, first, tmp_path, monkeypatch):
    """Its rows are those that were written; vectors come from the folder, and only when somebody asks for them."""
    reads, forwards = [], []

    def recorded(path, *, kinds, partial):
        reads.append(kinds)
        return read_run(path, kinds=kinds, partial=partial)

    monkeypatch.setattr("hardsight.tablefiles.read_run", recorded)
    network.register_forward_pre_hook(lambda *_: forwards.append(1))
    table = hs.score(network, first(128), out=tmp_path / "run")
    assert len(forwards) == 2  # one per batch, also of the first, which is looked at more closely
    assert reads == []
    assert table.vectors.num_rows == 128
    assert reads == [("vectors",)]
    assert SampleTable.load(tmp_path / "run").to_arrow().equals(table.to_arrow())


# ---------------------------------------------------------------------------------------------------------------------
# Options are declared once.


def test_every_option_is_in_the_signature_and_the_docstring(network, first):
    parameters = inspect.signature(hs.score).parameters
    for field in dataclasses.fields(ScoreOptions):
        assert parameters[field.name].default == field.default
        assert f"        {field.name}: " in hs.score.__doc__
    with pytest.raises(TypeError, match=r"'bach_size'.*batch_size"):
        hs.score(network, first(4), bach_size=3)


# ---------------------------------------------------------------------------------------------------------------------
# Code and preprocessing.


def test_another_forward_is_another_run(first, tmp_path):
    class First(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    class Second(nn.Sequential):
        def forward(self, x):
            return super().forward(-x)

    layers = [nn.Flatten(), nn.Linear(64, 10)]
    hs.score(First(*layers), first(20), out=tmp_path / "run")
    Second.__qualname__, Second.__name__ = First.__qualname__, First.__name__
    with pytest.raises(FileExistsError, match=r"same: model"):
        hs.score(Second(*layers), first(20), out=tmp_path / "run")


def test_a_given_preprocess_is_applied_to_tensors_too(network, digits, first):
    turned = hs.score(network, first(30), preprocess=lambda x: x.flip(2))
    assert turned["avh"].tolist() != hs.score(network, first(30))["avh"].tolist()
    expected = hs.score(network, TensorDataset(digits[0][:30].flip(3), digits[1][:30]))
    assert turned["avh"].tolist() == expected["avh"].tolist()


def test_labels_are_the_items_own(network, digits):
    """A data set may change its targets on the way out (torchvision's target_transform)."""

    class Shifted(TensorDataset):
        targets = digits[1][:20]

        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x, (int(y) + 1) % 10

    data = Shifted(digits[0][:20], digits[1][:20])
    assert hs.score(network, data)["label"].tolist() == ((digits[1][:20] + 1) % 10).tolist()


def test_whatever_a_forward_raises_is_one_sentence_with_its_cause(first):
    class Breaks(nn.Sequential):
        def forward(self, x):
            return {}["missing"]

    with pytest.raises(RuntimeError, match=r"model.*KeyError: 'missing'") as error:
        hs.score(Breaks(nn.Flatten(), nn.Linear(64, 10)), first(4))
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "nonsense"}, "device must.*nonsense"),
        ({"batch_size": 0}, "batch_size.* 0"),
        ({"preprocess": "RAW"}, "preprocess.*'RAW'"),
        ({"workers": -1}, "workers.* -1"),
        ({"scores": ["avg"]}, "'avg'.*avh"),
        *(({"shard": share}, "shard must") for share in ((1, 1), (-1, 2), (0, 0), (0.5, 2), ("0", 2), (0,), 3)),
    ],
)
def test_arguments_are_checked_before_anything_is_written(network, first, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        hs.score(network, first(4), out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_features_that_overflow_or_are_zero():
    features = torch.tensor([[1e200, 0.0], [1.0, 0.0]], dtype=torch.float64)
    weight = torch.tensor([[1e200, 0.0], [0.0, 1e200]], dtype=torch.float64)
    table = hs.score_features(features, weight, torch.tensor([0, 1]))
    assert table.bad["id"].to_pylist() == ["data:0"]
    assert len(table) == 1
    table = hs.score_features(torch.zeros(3, 4), torch.eye(4), torch.arange(3), scores=["avh"])
    assert table.meta.counts.zero_features == 3  # whatever scores are asked for
    with pytest.raises(ValueError, match=r"denominator.*'exact'.*'series'"):
        hs.score_features(torch.eye(3), torch.eye(3), torch.arange(3), denominator="sereis")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", ">i4", ">i8"])
def test_labels_of_any_integer_type(dtype):
    labels = np.array([0, 1, 2]).astype(dtype)
    assert hs.score_features(np.eye(3, dtype=">f4"), torch.eye(3), labels)["label"].tolist() == [0, 1, 2]
