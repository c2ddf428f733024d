"""Numbers for maps against naive loops, captum and networks whose answer is known."""

import re

import captum.metrics
import numpy as np
import pyarrow as pa
import pytest
import torch
from attacked_networks import answer_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import csv, parquet
from torch import nn
from torchvision.transforms.v2.functional import gaussian_blur

from hardsight.data import ArraySamples, open_data
from hardsight.evaluation.maps import cam_gallery, overlay
from hardsight.models import Model
from hardsight.networks import build_network
from hardsight.questions import QUESTIONS, Subject, area, entropy, infidelity, insertion_deletion, mass_inside
from hardsight.questions.boxes import masks_of, read_boxes
from hardsight.questions.mapmeasures import blur, cells

some_maps = arrays(np.float32, (2, 3, 4), elements=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))


class TestCompactness:
    @settings(max_examples=40)
    @given(some_maps)
    def test_entropy_and_area_are_those_of_a_naive_loop(self, values):
        for got, share, one in zip(entropy(tensor(values)), area(tensor(values)), values.astype(float), strict=True):
            flat = one.flatten()
            p = flat / flat.sum() if flat.sum() else np.full(12, 1 / 12)
            assert float(got) == pytest.approx(sum(-x * np.log(x) for x in p if x > 0) / np.log(12), abs=1e-6)
            assert float(share) == pytest.approx(sum(x >= flat.max() / 2 for x in flat) / 12)

    def test_the_ends_and_a_map_of_zeros(self):
        one, flat, zero = torch.zeros(1, 4, 4), torch.ones(1, 4, 4), torch.zeros(1, 4, 4)
        one[0, 1, 2] = 1
        maps = torch.cat([one, flat, zero])
        assert entropy(maps).tolist() == pytest.approx([0, 1, 1])
        assert area(maps).tolist() == [1 / 16, 1, 1]
        quarter = torch.zeros(3, 4, 4, dtype=torch.bool)
        quarter[:, :2, :2] = True
        assert mass_inside(maps, quarter).tolist() == [0, 0.25, 0.25]
        assert entropy(torch.ones(2, 1, 1)).tolist() == [0, 0]

    @settings(max_examples=40)
    @given(some_maps, arrays(bool, (2, 3, 4)))
    def test_mass_inside_is_that_of_a_naive_loop(self, values, masks):
        for got, one, inside in zip(
            mass_inside(tensor(values), tensor(masks)), values.astype(float), masks, strict=True
        ):
            weight = one if one.sum() else np.ones_like(one)
            expected = weight[inside].sum() / weight.sum() if inside.any() else np.nan
            assert float(got) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def tensor(values):
    return torch.from_numpy(np.array(values))


def some_network():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)).eval()


class TestInsertionAndDeletion:
    @pytest.mark.parametrize("baseline", ["blur", "mean"])
    @pytest.mark.parametrize("steps", [1, 3, 10])
    def test_they_are_those_of_a_naive_loop(self, baseline, steps):
        net, x, y = some_network(), torch.rand(3, 2, 6, 5), torch.tensor([0, 2, 1])
        maps = torch.rand(3, 6, 5)  # no ties
        curves = insertion_deletion(net, x, maps, y, steps=steps, baseline=baseline)
        hidden = blur(x) if baseline == "blur" else x.mean((2, 3), keepdim=True).expand_as(x)
        for i in range(3):
            order = sorted(range(30), key=lambda at: -float(maps[i].flatten()[at]))
            for step in range(steps + 1):
                show, hide = hidden[i].clone(), x[i].clone()
                for at in order[: round(30 * step / steps)]:
                    show[:, at // 5, at % 5] = x[i, :, at // 5, at % 5]
                    hide[:, at // 5, at % 5] = hidden[i, :, at // 5, at % 5]
                for curve, picture in zip(curves, (show, hide), strict=True):
                    assert float(curve[i, step]) == pytest.approx(net(picture[None]).softmax(1)[0, y[i]].item())
        for curve, found in zip(curves, curves.areas(), strict=True):
            np.testing.assert_allclose(found, np.trapezoid(curve.numpy(), dx=1 / steps, axis=1), rtol=1e-5)

    def test_the_other_way_round_insertion_is_deletion(self):
        net, x, y, maps = some_network(), torch.rand(4, 2, 6, 6), torch.zeros(4).long(), torch.rand(4, 6, 6)
        forth, back = (insertion_deletion(net, x, m, y, steps=6) for m in (maps, -maps))
        torch.testing.assert_close(forth.insertion, back.deletion.flip(1))

    def test_an_order_by_chance_has_equal_areas_on_average(self):
        """So that insertion − deletion is 0 without an explanation, however confident the network."""
        net, x = build_network("small-cnn", 10, 1).eval(), torch.rand(1, 1, 8, 8).expand(400, -1, -1, -1)
        y, maps = net(x[:1]).argmax(1).expand(400), torch.rand(400, 8, 8)
        insertion, deletion = insertion_deletion(net, x, maps, y).areas()
        gap = insertion - deletion
        assert abs(gap.mean()) < 4 * gap.std() / 20
        assert abs(insertion.mean() - 0.5) > 4 * gap.std() / 20  # while the areas themselves say nothing

    def test_ties_do_not_come_from_top_to_bottom(self):
        class TopHalf(nn.Module):
            def forward(self, x):
                return torch.stack([x[:, 0, :8].mean((1, 2)), x[:, 0, 8:].mean((1, 2))], 1) * 20

        x, flat = torch.zeros(1, 1, 16, 16), torch.zeros(1, 16, 16)
        x[:, :, ::2] = 1
        insertion, deletion = insertion_deletion(TopHalf(), x, flat, torch.tensor([0])).areas()
        assert insertion.item() == pytest.approx(deletion.item(), abs=0.1)

    def test_maps_and_masks_of_another_size_and_no_steps(self):
        net, x, y = some_network(), torch.rand(1, 2, 6, 6), torch.tensor([0])
        with pytest.raises(ValueError, match=r"masks .*\(1, 4, 4\), got \(1, 2, 2\)"):
            mass_inside(torch.ones(1, 4, 4), torch.ones(1, 2, 2))
        with pytest.raises(ValueError, match=r"maps .*\(1, 6, 6\), got \(1, 3, 3\)"):
            insertion_deletion(net, x, torch.rand(1, 3, 3), y)
        with pytest.raises(ValueError, match=r"steps .*got 0"):
            insertion_deletion(net, x, torch.rand(1, 6, 6), y, steps=0)

    def test_the_blur_is_torchvision_s_and_keeps_colours_and_loses_forms(self):
        for shape in ((16, 24), (24, 16)):
            x = torch.rand(2, 3, *shape, generator=torch.Generator().manual_seed(0))
            torch.testing.assert_close(blur(x), gaussian_blur(x, [13, 13], [2.0, 2.0]), atol=1e-5, rtol=0)
        x = torch.zeros(1, 2, 16, 24)
        x[:, 0], x[:, 1, ::2] = 0.3, 1.0
        out = blur(x)
        assert (out[:, 0] - 0.3).abs().max() < 1e-6
        assert (out[:, 1] - 0.5).abs().max() < 0.05
        assert torch.equal(blur(torch.ones(1, 1, 1, 1)), torch.ones(1, 1, 1, 1))


class TestInfidelity:
    def test_it_is_captums_in_units_of_what_the_logit_does(self):
        net, x, y = some_network(), torch.rand(5, 2, 9, 8), torch.tensor([0, 1, 2, 0, 1])
        maps, masks, hidden = torch.rand(5, 9, 8), cells(9, 8).float(), blur(x)
        before = net(x).detach()
        falls = torch.stack([before - net(x * (1 - m) + hidden * m).detach() for m in masks], 1)
        falls = falls[torch.arange(5), :, y]
        maps = maps * (maps @ torch.ones(8, 1)).sign()
        ours = infidelity(net, x, maps, before, y)

        def shown(mask):  # captum perturbs the mask, which is 1 everywhere
            times = len(mask) // 5
            return net(x.repeat_interleave(times, 0) * mask + hidden.repeat_interleave(times, 0) * (1 - mask)).detach()

        def hide(mask):
            away = masks[:, None].repeat(5, 1, 1, 1)
            return away, mask - away

        theirs = captum.metrics.infidelity(
            shown, hide, torch.ones(5, 1, 9, 8), maps[:, None], target=y, n_perturb_samples=16, normalize=True
        )
        theirs = theirs / falls.square().mean(1)
        mass = (maps[:, None] * masks).sum((2, 3))
        forward = (mass * falls).sum(1) > 0  # captum also fits a map that points the wrong way
        assert forward.any()
        torch.testing.assert_close(ours[forward], theirs[forward], atol=1e-4, rtol=0)
        assert (ours[~forward] == 1).all()

    def test_its_ends(self):
        class Weighted(nn.Module):
            def forward(self, x):
                return torch.stack([(x[:, 0] * weight).sum((1, 2)), x[:, 0].sum((1, 2)) * 0], 1)

        weight, x = torch.rand(8, 8), torch.rand(1, 1, 8, 8)
        net, y = Weighted(), torch.tensor([0])
        true = (x - blur(x))[:, 0] * weight  # exactly what each pixel adds, negative too
        assert infidelity(net, x, true, net(x), y).item() < 1e-5
        assert infidelity(net, x, -true, net(x), y).item() == 1
        assert infidelity(net, x, torch.zeros(1, 8, 8), net(x), y).item() == 1
        assert infidelity(net, x, true, net(x), torch.tensor([1])).item() == 1  # the logit never changes

    def test_the_size_of_logits_and_maps_does_not_matter(self):
        net, x, y, maps = some_network(), torch.rand(3, 2, 8, 8), torch.tensor([0, 1, 2]), torch.rand(3, 8, 8)
        small = infidelity(net, x, maps, net(x), y)
        net[-1].weight.data.mul_(1000), net[-1].bias.data.mul_(1000)
        torch.testing.assert_close(infidelity(net, x, 5 * maps, net(x), y), small, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("size", [(8, 8), (9, 5), (3, 4), (1, 1)])
    def test_every_pixel_is_in_one_cell(self, size):
        assert torch.equal(cells(*size).sum(0), torch.ones(size, dtype=torch.long))


def pictures(n=6, size=8, seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (n, size, size), np.uint8)
    return ArraySamples(images, np.arange(n) % 2, "test", "noise")


class TestRegions:
    def test_a_pixel_is_inside_where_its_centre_is(self):
        table = {"id": ["test:2", "test:0", "test:2"], "x0": [1, 0, 0], "y0": [2, 0, 0], "x1": [3, 99, 1]}
        regions = read_boxes(table | {"y1": [4.4, 99, 1]}, pictures())
        found = masks_of(regions, np.array([0, 1, 2]), (8, 8)).numpy()
        expected = np.zeros((8, 8), bool)
        expected[2:4, 1:3] = expected[0, 0] = True
        assert found[0].all()
        assert not found[1].any()
        np.testing.assert_array_equal(found[2], expected)

    def test_files_of_boxes_and_masks(self, tmp_path):
        table = pa.table({"id": ["test:1"], "x0": [0], "y0": [0], "x1": [4], "y1": [8]})
        csv.write_csv(table, tmp_path / "boxes.csv")
        parquet.write_table(table, tmp_path / "boxes.parquet")
        for name in ("boxes.csv", "boxes.parquet"):
            assert masks_of(read_boxes(tmp_path / name, pictures()), np.array([1]), (8, 8)).float().mean() == 0.5
        masks = np.random.default_rng(1).integers(0, 2, (6, 8, 8), np.uint8)
        np.save(tmp_path / "masks.npy", masks)
        np.savez(tmp_path / "all.npz", masks=masks)
        np.savez(tmp_path / "some.npz", masks=masks[[4, 2]], ids=["test:4", "test:2"])
        for whole in (masks, tmp_path / "masks.npy", tmp_path / "all.npz"):
            found = masks_of(read_boxes(whole, pictures()), np.array([1, 2]), (8, 8))
            np.testing.assert_array_equal(found, masks[1:3] > 0)
        found = masks_of(read_boxes(tmp_path / "some.npz", pictures()), np.array([1, 2]), (8, 8))
        assert not found[0].any()
        np.testing.assert_array_equal(found[1], masks[2] > 0)

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"id": ["test:0"], "x0": [0], "y0": [0], "x1": [4]}, "there is no y1"),
            ({"id": ["x"], "x0": [0], "y0": [0], "x1": [4], "y1": [4]}, "ids .*'test:0'"),
            ({"id": ["test:0"], "x0": ["a"], "y0": [0], "x1": [4], "y1": [4]}, "must be numbers"),
            ({"id": ["test:0"], "x0": [None], "y0": [0], "x1": [4], "y1": [4]}, "must be numbers"),
            (np.zeros((5, 8, 8)), r"6 samples, got \(5, 8, 8\)"),
            (np.zeros((6, 8)), "masks"),
            (7, "boxes .*got int"),
        ],
    )
    def test_what_cannot_be_read(self, given, sentence):
        with pytest.raises((ValueError, TypeError), match=sentence):
            read_boxes(given, pictures())

    def test_files_that_are_not_and_regions_that_do_not_fit_the_picture(self, tmp_path):
        np.savez(tmp_path / "other.npz", things=np.zeros(3))
        np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
        for name in ("other.npz", "objects.npy"):
            with pytest.raises(ValueError, match="must hold masks"):
                read_boxes(tmp_path / name, pictures())
        with pytest.raises(FileNotFoundError, match="no file"):
            read_boxes(tmp_path / "none.npy", pictures())
        box = {"id": ["test:0"], "x0": [4], "y0": [0], "x1": [4], "y1": [4]}
        with pytest.raises(ValueError, match=r"box \(4, 0, 4, 4\) .*8 × 8"):
            masks_of(read_boxes(box, pictures()), np.array([0]), (8, 8))
        with pytest.raises(ValueError, match=r"masks .*\(8, 8\), got \(4, 4\)"):
            masks_of(read_boxes(np.zeros((6, 4, 4)), pictures()), np.array([0]), (8, 8))


def spot_net():
    """Class 1 as far as a small bright spot is there."""
    net = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2)
    )
    net[0].weight.data.fill_(1 / 9), net[0].bias.data.fill_(-0.5)
    net[4].weight.data.copy_(torch.tensor([[0.0], [200.0]])), net[4].bias.data.copy_(torch.tensor([0.0, -2.0]))
    return net


def spots(n=20):
    """Noise with a bright spot of 4 × 4, and where it is."""
    rng = np.random.default_rng(3)
    images, boxes = rng.integers(0, 100, (n, 16, 16), np.uint8), []
    for i, (y, x) in enumerate(rng.integers(0, 12, (n, 2))):
        images[i, y : y + 4, x : x + 4] = 255
        boxes.append({"id": f"test:{i}", "x0": x, "y0": y, "x1": x + 4, "y1": y + 4})
    return ArraySamples(images, np.zeros(n, int), "test", "spots"), pa.Table.from_pylist(boxes)


class TestAnswer:
    def test_a_network_that_looks_at_the_object_is_found_to(self):
        samples, boxes = spots()
        found = answer_of("explanation", spot_net(), samples, boxes=boxes)
        value = {row["metric"]: row["value"] for row in found.rows}
        assert value["mass_inside"] > 0.8
        assert value["insertion"] - value["deletion"] == pytest.approx(value["faithfulness"], abs=1e-6)
        assert value["faithfulness"] > 0.5
        assert value["infidelity"] < 0.3
        assert value["area"] < 0.1

    def test_rows_are_means_of_the_columns_and_curves_have_ends(self):
        samples = open_data("digits")
        found = answer_of("explanation", build_network("small-cnn", 10, 1), samples, limit=30)
        for row in found.rows:
            column = found.samples[row["metric"]]
            assert len(column) == len(samples)
            assert np.isfinite(column).sum() == row["n"] == 30
            assert row["value"] == pytest.approx(np.nanmean(column))
            assert row["low"] < row["value"] < row["high"]
            assert row["question"] == "explanation"
        curve = [point for point in found.points if point["curve"] == "insertion"]
        assert [point["x"] for point in curve] == pytest.approx(np.linspace(0, 1, 11))
        back = [point for point in found.points if point["curve"] == "deletion"]
        assert curve[0]["y"] == pytest.approx(back[-1]["y"])
        assert curve[-1]["y"] == pytest.approx(back[0]["y"])
        assert re.search(r"30 samples .*network\.5", found.notes[0].text)

    def test_the_same_samples_for_every_network_whatever_the_batches(self):
        samples, nets = open_data("digits"), [build_network("small-cnn", 10, 1) for _ in range(2)]
        found = [answer_of("explanation", net, samples, limit=20, seed=5) for net in nets]
        looked = [np.flatnonzero(np.isfinite(one.samples["entropy"])) for one in found]
        np.testing.assert_array_equal(*looked)
        again = answer_of("explanation", nets[0], samples, limit=20, seed=5, batch_size=7)
        for name, column in again.samples.items():
            np.testing.assert_allclose(column, found[0].samples[name], atol=1e-5)
        other = answer_of("explanation", nets[0], samples, limit=20, seed=6)
        assert not np.array_equal(np.isfinite(other.samples["entropy"]), np.isfinite(again.samples["entropy"]))

    def test_columns_are_in_the_order_of_the_predictions(self):
        samples, net = pictures(), build_network("small-cnn", 2, 1)
        masks = np.random.default_rng(0).random((6, 8, 8)) < 0.5
        whole = answer_of("explanation", net, samples, boxes=masks)
        subject = Subject("network", net, samples, forward={"device": "cpu"})
        object.__setattr__(subject.predictions, "rows", np.array([1, 3, 4]))  # the others cannot be read
        part = QUESTIONS["explanation"].ask(subject, boxes=masks)
        for name in part.samples:
            np.testing.assert_allclose(part.samples[name], whole.samples[name][[1, 3, 4]], atol=1e-5)

    def test_maps_of_zeros_are_counted_and_there_is_no_nan(self):
        net = spot_net()
        net[4].weight.data.fill_(-1.0)
        found = answer_of("explanation", net, spots(8)[0])
        assert any(note.text.startswith("8 of 8 maps") for note in found.notes)
        assert all(np.isfinite(column).all() for column in found.samples.values())

    def test_samples_without_a_box_are_left_out_of_its_mean(self):
        samples, boxes = spots(8)
        found = answer_of("explanation", spot_net(), samples, boxes=boxes.slice(0, 5))
        assert {row["metric"]: row["n"] for row in found.rows}["mass_inside"] == 5
        assert np.isnan(found.samples["mass_inside"][5:]).all()
        assert re.search("5 .* boxes", found.notes[-1].text)

    def test_preprocessing_and_train_mode(self):
        net = spot_net().train()
        model = Model(net, "spot", lambda x: x * 1.0, "tensor")
        found = answer_of("explanation", model, spots(6)[0], workers=0)
        plain = answer_of("explanation", net, spots(6)[0])
        np.testing.assert_allclose(found.samples["insertion"], plain.samples["insertion"], atol=1e-6)
        assert net.training
        assert not any(module._forward_hooks for module in net.modules())

    def test_what_cannot_be_answered(self):
        mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
        with pytest.raises(ValueError, match=r"model: .*positions"):
            answer_of("explanation", mlp, pictures())
        with pytest.raises(ValueError, match=r"limit .*1"):
            answer_of("explanation", spot_net(), pictures(), limit=0)


def subjects(samples, **models):
    return [Subject(name, model, samples, forward={"device": "cpu"}) for name, model in models.items()]


class TestGallery:
    def test_the_same_images_for_every_network_in_the_order_wanted(self):
        samples, nets = spots()[0], {"a": spot_net(), "b": build_network("small-cnn", 2, 1)}
        found = cam_gallery(subjects(samples, **nets), ["test:7", "test:2"])
        np.testing.assert_array_equal(found.images[..., 0], samples.images[[7, 2]])
        for name in nets:
            assert found.maps[name].shape == (2, 16, 16)
            assert found.classes[name].shape == found.confidence[name].shape == (2,)
        heat = overlay(found.images, found.maps["a"])
        assert heat.shape == found.images.shape
        assert heat.dtype == np.uint8

    def test_standardized_images_are_stretched_and_networks_that_see_other_sizes_share_the_first_ones(self):
        model = Model(spot_net(), "spot", lambda x: (x - 0.5) / 0.1, "tensor")
        shown = cam_gallery(subjects(spots()[0], a=model), ["test:0"]).images
        assert (shown.min(), shown.max()) == (0, 255)
        half = Model(spot_net(), "half", nn.AvgPool2d(2), "tensor")
        found = cam_gallery(subjects(spots()[0], whole=spot_net(), half=half), ["test:0"])
        assert found.maps["half"].shape == found.maps["whole"].shape == (1, 16, 16)

    @pytest.mark.parametrize("ids", [["test:0", "nobody"], []])
    def test_ids_that_are_not(self, ids):
        with pytest.raises(ValueError, match=r"^ids must"):
            cam_gallery(subjects(spots()[0], a=spot_net()), ids)
