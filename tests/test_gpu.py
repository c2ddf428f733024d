"""The same numbers on a GPU, whatever TF32, autocast or half precision is switched on."""

import numpy as np
import pytest
import torch
from naive import naive_scores, triple
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.scores import SCORES, compute_scores

# Scores need torch alone; what else is tested here needs the whole package, and is imported where it is used.
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on_gpu(*tensors):
    return [t.cuda() for t in tensors]


def small_network(seed=0):
    pytest.importorskip("tyro")
    from hardsight.demo import small_cnn

    torch.manual_seed(seed)
    return small_cnn().eval()


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 10, 1500])
def test_all_scores_agree_with_the_naive_loop(precision, dtype, classes):
    features, weight, labels, bias = triple(20, 32, classes, dtype=dtype)
    truth = naive_scores(features.double(), weight.double(), labels, bias.double())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = compute_scores(*on_gpu(features, weight, labels, bias))
    assert found["pred"].tolist() == truth["pred"].tolist()
    for name, score in SCORES.items():
        relative, absolute = score.tolerance
        np.testing.assert_allclose(
            found[name].cpu(), truth[name], rtol=relative, atol=max(absolute, 1e-12), err_msg=name
        )


def test_angles_are_not_rounded_by_tf32(precision):
    u, v = torch.randn(64, 256), torch.randn(32, 256)
    truth = hs.angles.angle_matrix(u.double(), v.double())
    assert (hs.angles.angle_matrix(u.cuda(), v.cuda()).cpu() - truth).abs().max() < 2e-6


def test_hundred_thousand_classes_in_bounded_memory():
    features, weight, labels, bias = on_gpu(*triple(512, 256, 100_000))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = compute_scores(features, weight, labels, bias)
    assert torch.cuda.max_memory_allocated() - before < 2 * 2**30
    few = compute_scores(*(t[:8].cpu() for t in (features,)), weight.cpu(), labels[:8].cpu(), bias.cpu())
    np.testing.assert_allclose(found["avh"][:8].cpu(), few["avh"], rtol=1e-6)


def test_gradients_agree_with_the_cpu():
    features, weight, labels, _ = triple(8, 16, 5)
    grads = []
    for device in ("cpu", "cuda"):
        x = features.detach().to(device).requires_grad_()
        hs.avh(x, weight.to(device), labels.to(device)).sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it compiles
@pytest.mark.parametrize("wrap", ["plain", "compiled", "half"])
def test_a_network_on_the_gpu(wrap, tmp_path):
    network = small_network()
    x, y = torch.rand(300, 1, 8, 8), torch.randint(0, 10, (300,))
    truth = hs.score(network, TensorDataset(x, y), device="cpu")
    if wrap == "compiled":
        network = torch.compile(network)
    if wrap == "half":
        network, x = network.half(), x.half()
    table = hs.score(network, TensorDataset(x, y), out=tmp_path / "run", workers=2)
    assert table.meta.device == torch.cuda.get_device_name()
    assert next(network.parameters()).device.type == "cpu"  # back where it was
    loose = {"rtol": 2e-2, "atol": 2e-2} if wrap == "half" else {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(table["avh"], truth["avh"], **loose)
    np.testing.assert_allclose(table["confidence"], truth["confidence"], **loose)


def test_scores_of_gpu_features_come_back_on_the_gpu():
    features, weight, labels, _ = on_gpu(*triple())
    assert hs.avh(features, weight, labels).device.type == "cuda"
    pytest.importorskip("tyro")
    assert hs.score_features(features, weight, labels)["avh"].shape == (40,)


def test_capture_keeps_the_graph_on_the_gpu():
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 5)).cuda()
    with hs.capture(network) as head:
        network(torch.rand(4, 16, device="cuda", requires_grad=True))
    hs.avh(head.features, head.weight, torch.arange(4).cuda()).sum().backward()
    assert network[1].weight.grad is not None


def test_folds_on_the_gpu_agree_with_the_cpu(tmp_path):
    """A refitted head, a trained network and several networks; rows, sketches and probabilities."""
    network = small_network()
    from hardsight.demo import small_cnn
    from hardsight.ensemble import matrix

    options = {"preprocess": "raw", "folds": 3}
    gpu, cpu = (
        hs.score(network, "digits", device=device, out=tmp_path / device, **options) for device in ("cuda", "cpu")
    )
    assert gpu.accuracy == pytest.approx(cpu.accuracy, abs=0.01)
    assert np.corrcoef(gpu["avh"], cpu["avh"])[0, 1] > 0.99  # the fit ends elsewhere by a rounding
    probabilities = matrix(gpu.vectors, "probabilities")
    place = {id_: i for i, id_ in enumerate(gpu.vectors["id"].to_pylist())}
    rows = probabilities[[place[i] for i in gpu["id"]]]
    np.testing.assert_allclose(rows[np.arange(len(gpu)), gpu["label"]], gpu["confidence"], atol=1e-6)

    def train(data):
        x, y = torch.from_numpy(data.images).cuda().float()[:, None] / 255, torch.from_numpy(data.labels).cuda()
        net = small_cnn().cuda()
        optimiser = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(20):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        return net.eval()

    trained = hs.score(train, "digits", folds=3, seeds=2, out=tmp_path / "trained")
    assert trained.accuracy > 0.9
    assert trained.meta.models == ["train seed 0", "train seed 1"]
    several = hs.score([network, small_network(1)], "digits", preprocess="raw")
    assert (several["avh_sd"] > 0).all()


def test_a_gpu_degrades_like_a_cpu():
    pytest.importorskip("tyro")
    from hardsight.questions import DEGRADATIONS, degrade

    images, ids = torch.rand(40, 3, 12, 10), [f"test:{i}" for i in range(40)]
    for name, level in ((name, level) for name, how in DEGRADATIONS.items() for level in how.levels):
        here, there = (degrade(images.to(device), name, level, ids).cpu() for device in ("cpu", "cuda"))
        torch.testing.assert_close(here, there, atol=0 if name not in ("blur", "resolution") else 1e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [20, 333, 512])
def test_a_table_of_gpu_features_is_that_of_the_cpu(dtype, width):
    features, weight, labels, bias = triple(50, width, 7, dtype=dtype)
    features[3] = 0
    if dtype == torch.bfloat16:
        features[4] *= 1e37  # too long for a sum of squares
    there, here = (
        hs.score_features(*on_gpu(features, weight, labels, bias)),
        hs.score_features(features, weight, labels, bias),
    )
    assert there["id"].tolist() == here["id"].tolist()
    assert there.bad.to_pylist() == here.bad.to_pylist()
    assert there.meta.counts == here.meta.counts
    assert there.accuracy == here.accuracy == there.meta.accuracy
    for name in ("avh", "norm", "angle"):
        np.testing.assert_allclose(there[name], here[name], rtol=2e-6, atol=1e-6)
    for name in ("sketch", "probabilities"):
        values = [np.stack(table.vectors[name].to_pylist()).astype(float) for table in (there, here)]
        np.testing.assert_allclose(*values, atol=2e-3 if name == "sketch" else 1e-6)


def test_jpegs_are_decoded_on_the_gpu_as_by_pillow(tmp_path):
    image, v2 = pytest.importorskip("PIL.Image"), pytest.importorskip("torchvision.transforms.v2")
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "b").mkdir()
    for i in range(8):
        pixels = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        image.fromarray(pixels).resize((120 + 9 * i, 90)).save(
            tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg", quality=95
        )
    whole = (tmp_path / "photos" / "a" / "0.jpg").read_bytes()
    (tmp_path / "photos" / "a" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 2))
    steps = v2.Compose([v2.ToImage(), v2.Resize(64), v2.CenterCrop(64), v2.ToDtype(torch.float32, scale=True)])
    model = hs.Model(network, "small", steps, "pil")
    by_cpu, by_gpu = (
        hs.score(model, tmp_path / "photos", device="cuda", workers=0, decode=place) for place in ("cpu", "gpu")
    )
    assert by_gpu["id"].tolist() == by_cpu["id"].tolist()
    assert by_gpu.bad.to_pylist() == by_cpu.bad.to_pylist()
    assert len(by_gpu.bad) == 1
    np.testing.assert_allclose(by_gpu["norm"], by_cpu["norm"], rtol=0.02)
