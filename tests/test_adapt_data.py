"""Data for adapting: samples of several data sets as one, pictures in one form, lists of pictures; starting weights."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from hardsight.checkpoints import start_from
from hardsight.data import ArraySamples, JoinedSamples, View, as_pixels, in_form, in_form_of, load_digits, open_data
from hardsight.heads import find_head
from hardsight.networks import build_network, small_cnn
from hardsight.presets import PRESETS
from hardsight.questions import DegradedSamples
from hardsight.recipes import Recipe
from hardsight.training import train
from hardsight.training.prepare import prepare

CPU = torch.device("cpu")


def arrays(shape, seed=0, labels=True, split="train", **options):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, shape[0]) if labels else None
    return ArraySamples(rng.integers(0, 256, shape, dtype=np.uint8), y, split, f"noise {seed}", **options)


class Unlisted(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.zeros(1, 4, 4), index


def joined(first, second, rows=((4, 1), (0, 2)), labels=((0, 1), (2, 2))):
    parts = zip(("source", "target"), (first, second), rows, labels, strict=True)
    return JoinedSamples({name: View(part, r, labels=np.array(y, int)) for name, part, r, y in parts})


def test_a_view_has_the_ids_of_the_rows_and_labels_of_its_own(tmp_path):
    whole = open_data(visda(tmp_path))
    view = View(whole, [5, 0], labels=np.array([0, 1]), classes=["x", "y"])
    assert (view.ids, view.path(0)) == ([whole.ids[5], whole.ids[0]], whole.path(5))
    assert [view.load(i, 3)[1] for i in range(2)] == view.labels.tolist() == [0, 1]
    assert (view.classes, view.source, view.tensor()) == (["x", "y"], None, None)
    assert view.fingerprint() not in (whole.fingerprint(), View(whole, [0, 5]).fingerprint())
    renamed = View(whole, labels=whole.labels[::-1])
    assert (renamed.ids, renamed.source) == (whole.ids, whole.source)
    assert renamed.fingerprint() == whole.fingerprint()
    plain = View(whole, [5])
    assert (plain.classes, plain.labels.tolist(), plain.load(0, 3)[1]) == (whole.classes, [2], 2)
    degraded = DegradedSamples(whole, "contrast", 0.5)
    assert (degraded.ids, degraded.path(0), degraded.tensor()) == (whole.ids, None, None)


def test_what_can_change_unnoticed_also_does_in_a_view():
    data = open_data(Unlisted())
    for samples in (View(data, [1]), JoinedSamples({"a": View(data, labels=np.array([0, 1]))})):
        assert samples.identity.gaps == data.identity.gaps != ()


@pytest.mark.parametrize("size", [6, 3])
def test_joined_data_opened_again_are_what_their_parts_are_now(size):
    source, target = arrays((5, 6, 6)), arrays((3, size, size), 1)
    both = joined(source, target)
    before, pixels = both.fingerprint(), both.tensor()
    target.images[0] = 255 - target.images[0]
    again, expected = open_data(both), joined(open_data(source), open_data(target))
    assert again.fingerprint() == expected.fingerprint() != before
    assert torch.equal(again.tensor(), expected.tensor())
    assert not torch.equal(again.tensor(), pixels)


def test_ids_labels_and_pictures_are_those_of_the_parts():
    source, target = arrays((5, 6, 6)), arrays((3, 6, 6), 1, labels=False, split="test")
    both = joined(source, target)
    assert len(both) == 4
    assert both.ids == ["source/train:4", "source/train:1", "target/test:0", "target/test:2"]
    assert both.labels.tolist() == [0, 1, 2, 2]
    assert both.find(["target/test:2", "nobody"]) == [3, None]
    for i, (part, row) in enumerate([(source, 4), (source, 1), (target, 0), (target, 2)]):
        x, label = both.load(i, None)
        np.testing.assert_array_equal(np.squeeze(x), part.images[row])
        assert label == both.labels[i]
    assert re.search("2 .*noise 0 .*2 .*noise 1", both.origin)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((5, 32, 32, 3), (3, 28, 28)),
        ((5, 28, 28), (3, 3, 32, 32)),
        ((5, 16, 16, 1), (3, 28, 28)),
        ((5, 8, 8), (3, 8, 8)),
    ],
)
def test_arrays_of_any_size_and_colour_are_one_tensor_in_the_form_of_the_first(first, second):
    source, target = arrays(first), arrays(second, 1)
    both = joined(source, target)
    form = as_pixels(source, None, CPU).shape[1:]
    pixels = as_pixels(both, None, CPU)
    assert pixels.shape == (4, *form)
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels[:2], as_pixels(source, None, CPU)[[4, 1]])
    # Pillow is the witness: grey by its own weights, bilinear by its own filter.
    for place, row in ((2, 0), (3, 2)):
        picture = Image.fromarray(
            np.squeeze(np.moveaxis(target.images[row], 0, 2) if len(second) == 4 else target.images[row])
        )
        picture = picture.convert("RGB" if form[0] == 3 else "L").resize((form[2], form[1]), Image.Resampling.BILINEAR)
        expected = np.asarray(picture).reshape(form[1], form[2], -1).transpose(2, 0, 1)
        assert np.abs(pixels[place].numpy().astype(int) - expected).max() <= 2  # each rounds twice on its own way
        np.testing.assert_array_equal(np.atleast_3d(both.load(place, None)[0]), pixels[place].permute(1, 2, 0).numpy())


def test_floats_make_the_whole_float():
    source = arrays((5, 8, 8))
    target = ArraySamples(np.random.default_rng(0).random((3, 8, 8)), None, "test", "floats")
    pixels = joined(source, target).tensor()
    assert pixels.dtype == torch.float32
    np.testing.assert_allclose(pixels[0, 0].numpy(), source.images[4] / 255, rtol=1e-6)
    np.testing.assert_allclose(pixels[2, 0].numpy(), target.images[0], rtol=1e-6)


def test_tensors_of_one_shape_join_and_others_say_so():
    flat, square = (open_data(TensorDataset(torch.rand(5, *s), torch.arange(5) % 3)) for s in ((6,), (1, 4, 4)))
    both = joined(flat, flat)
    assert as_pixels(both, None, CPU).shape == (4, 6)
    assert torch.equal(both.load(0, None)[0], flat.load(4, None)[0])
    with pytest.raises(ValueError, match=r"\(1, 4, 4\).*\(6,\)"):
        as_pixels(joined(flat, square), None, CPU)
    with pytest.raises(ValueError, match=r"\(4, 8, 8\).*\(3, 8, 8\)"):
        in_form(torch.zeros(1, 4, 8, 8), (3, 8, 8))


def test_the_fingerprint_tells_rows_labels_and_data_apart():
    source, target = arrays((5, 6, 6)), arrays((3, 6, 6), 1)
    prints = {
        joined(source, target).fingerprint(),
        joined(source, target, rows=((4, 2), (0, 2))).fingerprint(),
        joined(source, target, labels=((0, 1), (2, 1))).fingerprint(),
        joined(source, arrays((3, 6, 6), 2)).fingerprint(),
        joined(source, target, rows=((4,), (0, 2)), labels=((0,), (2, 2))).fingerprint(),
    }
    assert len(prints) == 5
    assert joined(source, target).fingerprint() in prints


def test_chosen_samples_and_joined_ones_nest():
    source = arrays((5, 6, 6))
    some = View(source, np.array([3, 1]))
    both = joined(some, joined(source, source), rows=((0,), (3,)), labels=((1,), (2,)))
    assert both.ids == ["source/train:3", "target/target/train:2"]
    np.testing.assert_array_equal(both.tensor()[:, 0].numpy(), source.images[[3, 2]])
    assert len(joined(source, source, rows=((1,), ()), labels=((1,), ()))) == 1  # an empty part is none


def test_a_data_set_is_brought_to_the_form_of_another():
    small, large = arrays((5, 6, 6), classes=["a", "b", "c"]), arrays((3, 12, 12, 3), 1)
    formed = in_form_of(small, large)
    assert formed.tensor().shape == (5, 3, 12, 12)
    assert formed.load(1, None)[0].shape == (12, 12, 3)
    assert (formed.labels == small.labels).all()
    # Else a report of its scores would say that the data have changed since.
    assert (formed.ids, formed.fingerprint()) == (small.ids, small.fingerprint())
    assert (formed.classes, formed.split) == (small.classes, small.split)
    assert in_form_of(large, large) is large
    rows, labels = ((0,), (1, 2)), ((0,), (1, 1))
    assert torch.equal(joined(large, small, rows, labels).tensor(), joined(large, formed, rows, labels).tensor())
    flat = open_data(TensorDataset(torch.rand(5, 6), torch.arange(5)))
    assert in_form_of(flat, large) is flat


def test_a_network_trains_on_joined_samples_with_rows_of_targets(tmp_path):
    images, labels = load_digits()
    names = list("0123456789")
    source = ArraySamples(images[:100], labels[:100], "train", "digits", names)
    target = ArraySamples(images[100:200].repeat(2, 1).repeat(2, 2), None, "train", "large digits", names)
    both = joined(source, target, (range(100), range(0, 100, 2)), (labels[:100], labels[100:200:2]))
    recipe = Recipe(epochs=1, batch_size=50, lr=0.01)
    options = {"recipe": recipe, "device": "cpu", "progress": False, "targets": np.eye(10)[both.labels]}
    result = train("small-cnn", both, out=tmp_path / "run", **options)
    assert result.history[0]["samples"] == 150


def visda(root, lines=None, names=("aeroplane", "bicycle", "bus")):
    """A small set in VisDA-17's layout."""
    folder, rng, written = root / "train", np.random.default_rng(0), []
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(rng.integers(0, 256, (9 + i, 8, 3), dtype=np.uint8)).save(folder / name / f"src {i}.png")
            written.append(f"{name}/src {i}.png {label}")
    (folder / "image_list.txt").write_text("\n".join(written if lines is None else lines) + "\n")
    return folder / "image_list.txt"


def test_a_list_in_the_layout_of_visda_is_read(tmp_path):
    samples = open_data(str(visda(tmp_path)))
    assert len(samples) == 6
    assert samples.ids[3] == "train/bicycle/src 1.png"
    assert samples.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert samples.classes == ["aeroplane", "bicycle", "bus"]
    picture, label = samples.load(5, 3)
    assert (picture.size, label) == ((8, 10), 2)
    assert open_data(samples.source["data"]).fingerprint() == samples.fingerprint()


def test_a_list_trains_and_what_is_missing_is_a_bad_row(tmp_path):
    file = visda(tmp_path)
    (file.parent / "bus" / "src 1.png").unlink()
    options = {"recipe": Recipe(epochs=1, batch_size=6, lr=0.01), "device": "cpu", "progress": False, "record": ()}
    with pytest.warns(UserWarning, match=r"1 of 6 .*train/bus"):
        result = train("resnet18-32", str(file), out=tmp_path / "run", **options)
    assert result.history[0]["samples"] == 5


def test_random_parts_have_the_margin_also_when_a_network_is_trained_again(tmp_path):
    samples, recipe = open_data(visda(tmp_path)), Recipe(batch_size=6, resized_crop=True)
    model, new = prepare("cnn10", {"train": samples}, recipe, CPU, 0)
    _, again = prepare(model, {"train": samples}, recipe, CPU, 0)
    _, whole = prepare(model, {"train": samples}, Recipe(batch_size=6), CPU, 0)
    sizes = [sources["train"].example_pixels(6).shape[-2:] for sources in (new, again, whole)]
    assert sizes == [(256, 256), (256, 256), (224, 224)]


@pytest.mark.parametrize(
    ("lines", "classes", "labels"),
    [
        (
            ["trunk0/a.jpg 1", "trunk0/b.jpg 0", "trunk1/c.jpg 1"],
            None,
            [1, 0, 1],
        ),  # VisDA's test list: folders say nothing
        (["cat/a.jpg 0", "dog/b.jpg 2"], None, [0, 2]),
        (["cat/a.jpg 1", "dog/b.jpg 0", "", "  dog/c.JPEG 0  "], ["dog", "cat"], [1, 0, 0]),
        (["cat/a.jpg", "dog/b.jpg"], None, None),
    ],
)
def test_folders_name_classes_where_they_agree_with_the_labels(tmp_path, lines, classes, labels):
    samples = open_data(visda(tmp_path, lines))
    assert samples.classes == classes
    assert (None if samples.labels is None else samples.labels.tolist()) == labels


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["cat/a.jpg 0", "cat/b.jpg dog"], "line 2 must"),
        (["cat/a.jpg -1"], "line 1 must be"),
        (["0"], "line 1 must be"),
        (["cat/a.jpg 0", "cat/b.jpg"], "line 2 has"),
        (["/elsewhere/a.jpg 0"], "line 1: .*relative"),
        (["", "  "], "names no images"),
    ],
)
def test_a_line_that_says_nothing_is_named(tmp_path, lines, words):
    with pytest.raises(ValueError, match=words):
        open_data(str(visda(tmp_path, lines)))


def test_labels_and_edited_pictures_change_the_fingerprint_of_a_list(tmp_path):
    file = visda(tmp_path)
    prints = [open_data(file).fingerprint()]
    file.write_text(file.read_text().replace("src 1.png 2", "src 1.png 1"))
    prints.append(open_data(file).fingerprint())
    Image.new("RGB", (30, 30)).save(file.parent / "bus" / "src 0.png")
    prints.append(open_data(file).fingerprint())
    assert len(set(prints)) == 3


def test_the_visda_network_starts_from_imagenet_but_for_its_head(tmp_path):
    from torchvision.models import resnet101

    imagenet = resnet101(weights=None).state_dict()
    torch.save(imagenet, tmp_path / "resnet101.pth")
    network = build_network("visda-resnet101", classes=12)
    new = network.state_dict()["network.fc.0.weight"].clone()
    words = start_from(network, tmp_path / "resnet101.pth")
    fresh = [f"network.fc.{i}.{name}" for i in (0, 2) for name in ("weight", "bias")]
    assert re.findall(r"network\.fc\.\d\.\w+", words) == fresh
    own = network.state_dict()
    assert all(
        torch.equal(own[f"network.{key}"], value) for key, value in imagenet.items() if not key.startswith("fc.")
    )
    assert torch.equal(own["network.fc.0.weight"], new)
    assert own["normalise.mean"].flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    head = find_head(network)
    assert (head.path, tuple(head.module.weight.shape)) == ("network.fc.2", (12, 512))


def test_the_visda_preset_is_what_its_code_says():
    recipe = PRESETS["visda"].recipe
    assert PRESETS["visda"].network == "visda-resnet101"
    told = {"epochs": 20, "batch_size": 16, "lr": 1e-5, "momentum": 0.9, "weight_decay": 5e-4, "steps": (7, 14)}
    told |= {"step_factor": 0.1, "smallest_part": 0.7, "nesterov": True, "flip": True}
    assert {name: getattr(recipe, name) for name in told} == told


def test_training_starts_from_the_weights_and_refuses_to_go_on_from_others(tmp_path):
    torch.manual_seed(1)
    for name in ("a", "b"):
        torch.save({f"module.{k}": v for k, v in small_cnn(7, 1).state_dict().items()}, tmp_path / f"{name}.pt")
    options = {"recipe": Recipe(epochs=1, batch_size=600, lr=0.0), "device": "cpu", "record": (), "progress": False}
    result = train("small-cnn", "digits", out=tmp_path / "run", weights=tmp_path / "a.pt", **options)
    held, own = torch.load(tmp_path / "a.pt", weights_only=True), result.model.module.state_dict()
    assert torch.equal(own["network.3.weight"], held["module.3.weight"])
    assert own["network.9.weight"].shape == (10, 256)
    pixels = load_digits()[0] / 255
    assert own["normalise.mean"].item() == pytest.approx(pixels.mean(), rel=1e-5)  # the weights do not say
    torch.save({**own, "normalise.mean": own["normalise.mean"] + 1}, tmp_path / "ours.pt")
    again = train("small-cnn", "digits", out=tmp_path / "again", weights=tmp_path / "ours.pt", **options)
    assert again.model.module.state_dict()["normalise.mean"].item() == pytest.approx(pixels.mean() + 1, rel=1e-5)
    with pytest.raises(FileExistsError, match="same: weights"):
        train("small-cnn", "digits", out=tmp_path / "run", weights=tmp_path / "b.pt", **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"0.weight": torch.zeros(9, 1, 3, 3)}, r"0\.weight .*\(9, 1, 3, 3\)"),
        ({"3.weight": None}, r"3\.weight is not"),
        ({key: None for key in small_cnn().state_dict() if key != "1.num_batches_tracked"}, r"0\.weight is not"),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, changes, words):
    state = {k: v for k, v in (small_cnn().state_dict() | changes).items() if v is not None}
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=words):
        start_from(small_cnn(), tmp_path / "other.pt")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod."])
@pytest.mark.parametrize("ours", [True, False])
def test_weights_are_taken_under_the_prefixes_that_training_puts_before_them(tmp_path, prefix, ours):
    saved, network = build_network("small-cnn", 4, 1), build_network("small-cnn", 4, 1)
    state = (saved if ours else saved.network).state_dict()
    torch.save({f"{prefix}{key}": value for key, value in state.items()}, tmp_path / "weights.pt")
    assert start_from(network, tmp_path / "weights.pt").endswith("new: nothing")
    assert all(torch.equal(network.state_dict()[key], value) for key, value in saved.state_dict().items())


def test_an_old_checkpoint_without_counts_of_batches_fits(tmp_path):
    state = {k: v for k, v in small_cnn().state_dict().items() if "num_batches" not in k}
    torch.save(state, tmp_path / "old.pt")
    assert start_from(small_cnn(), tmp_path / "old.pt").endswith("new: nothing")


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_tensors_in_another_form_are_still_tensors_with_channels_first(channels):
    large = open_data(TensorDataset(torch.rand(4, channels, 16, 16), torch.arange(4)))
    small = open_data(TensorDataset(torch.rand(4, channels, 8, 8), torch.arange(4)))
    formed = in_form_of(small, large)
    x, label = formed.load(1, None)
    assert isinstance(x, torch.Tensor)
    assert (x.shape, label) == ((channels, 16, 16), 1)
    assert torch.equal(x, formed.tensor()[1])
