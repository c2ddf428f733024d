"""Pictures of the report, and the pages of runs that lack something."""

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from naive import triple
from PIL import Image
from report_runs import in_page, texts
from torch.utils.data import Dataset

import hardsight as hs
from hardsight import SampleTable
from hardsight.data import ArraySamples, Samples
from hardsight.report import write_report
from hardsight.report.page import MOST_BYTES
from hardsight.report.thumbnails import choose, make_thumbnails
from hardsight.runs import Meta


def opened(uri):
    kind, data = uri.split(",")
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


class Given(Samples):
    """Whatever values a test gives, under the ids ``data:0`` …"""

    def __init__(self, *values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def load(self, index, channels):
        value = self.values[index]
        if isinstance(value, Exception):
            raise value
        return value, None


def pictured(*values):
    return make_thumbnails(Given(*values), range(len(values)), [f"data:{i}" for i in range(len(values))], len(values))


def a_run(tmp_path, n=60, images=None, **meta):
    torch.manual_seed(0)
    features, weight, labels, bias = triple(n, 8, 4)
    table = hs.score_features(features, weight, labels, bias, [f"test:{i}" for i in range(n)])
    images = np.random.default_rng(0).integers(0, 256, (n, 8, 8), dtype=np.uint8) if images is None else images
    np.savez(tmp_path / "x.npz", test_images=images, test_labels=labels.numpy())
    table.meta = replace(table.meta, source={"data": f"{tmp_path / 'x.npz'}:test"}, **meta)
    return table


def test_lists_come_first_in_turn_then_the_scatter_is_covered():
    lists, parts = [np.array([1, 2, 3]), np.array([9, 1])], [np.array([20])]
    points = np.arange(30)
    chosen = choose(lists, parts, points, points % 10, 16)
    assert chosen[:5] == [1, 9, 2, 3, 20]
    assert len(chosen) == len(set(chosen)) == 16
    assert {row % 10 for row in chosen} == set(range(10))  # every cell of the scatter
    assert choose(lists, parts, points, points % 10, 2) == [1, 0]  # some are kept for the scatter
    assert sorted(choose(lists, parts, points, points % 10, 99)) == list(range(30))


def test_thumbnails_are_capped_and_said_so(tmp_path):
    payload = in_page(write_report(a_run(tmp_path), tmp_path / "p.html", pictures=10))
    assert len(payload["pictures"]) == 10
    assert re.match("10 of 60 .*--pictures", payload["picture_note"])
    assert sorted(i for i in payload["points"]["picture"] if i >= 0) == list(range(10))
    assert in_page(write_report(a_run(tmp_path), tmp_path / "p.html", pictures=0))["pictures"] == []


def test_each_point_has_its_own_picture(tmp_path):
    images = np.zeros((60, 8, 8), np.uint8)
    images[:] = np.arange(60)[:, None, None] * 4
    payload = in_page(write_report(a_run(tmp_path, images=images), tmp_path / "p.html"))
    assert payload["picture_note"] == "60 of 60 have pictures"
    assert payload["pixelated"] is True
    for id_, place in zip(payload["points"]["id"], payload["points"]["picture"], strict=True):
        shown = opened(payload["pictures"][place])
        assert shown.size == (8, 8)  # small pictures keep their size
        assert np.asarray(shown.convert("L"))[0, 0] == 4 * int(id_.split(":")[1])


def test_the_data_can_be_named(tmp_path):
    table = a_run(tmp_path)
    table.meta.source = {}
    assert "--data" in texts(in_page(write_report(table, tmp_path / "p.html")))
    data = ArraySamples(np.zeros((60, 5, 5), np.uint8), None, "test", "zeros")
    for given in (str(tmp_path / "x.npz"), data):
        assert len(in_page(write_report(table, tmp_path / "p.html", data=given))["pictures"]) == 60


def rgb(height, width, value=(200, 30, 60)):
    return np.full((height, width, 3), value, np.uint8)


@pytest.mark.parametrize(
    "value",
    [
        Image.fromarray(rgb(20, 30)),
        rgb(20, 30),
        rgb(20, 30).transpose(2, 0, 1),
        rgb(20, 30).astype(np.int64),
        rgb(20, 30).astype(np.float32) / 255,
        torch.from_numpy(rgb(20, 30)).permute(2, 0, 1),
        torch.from_numpy(rgb(20, 30)).permute(2, 0, 1).float() / 255,
        torch.from_numpy(rgb(20, 30)).permute(2, 0, 1)[None].half() / 255,
        {"pixel_values": torch.from_numpy(rgb(20, 30)).permute(2, 0, 1).float() / 255, "n": 3},
        Image.fromarray(np.dstack([rgb(20, 30), np.full((20, 30), 9, np.uint8)]), "RGBA"),
        rgb(20, 30).astype(np.uint16) * 257,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_picture_in_any_form(value):
    found = pictured(value)
    assert found.notices == []
    shown = opened(found.uris[0])
    assert shown.size == (30, 20)
    assert np.abs(np.asarray(shown.convert("RGB")).astype(int) - (200, 30, 60)).max() <= 2


@pytest.mark.parametrize(
    "value",
    [np.eye(12, dtype=bool), np.eye(12), torch.eye(12), torch.eye(12)[None], np.eye(12, dtype=np.uint16) * 65535,
     Image.fromarray((np.eye(12) * 65535).astype(np.uint16))],
)  # fmt: skip
def test_grey_in_any_form(value):
    shown = np.asarray(opened(pictured(value).uris[0]).convert("L"))
    assert (shown == np.eye(12) * 255).all()


def test_normalised_pictures_are_scaled_and_said_so():
    found = pictured(torch.linspace(-2, 2, 300).reshape(3, 10, 10), torch.full((1, 4, 4), 7.0))
    shown = np.asarray(opened(found.uris[0]))
    assert shown.min() == 0
    assert shown.max() == 255
    assert [note.startswith("2 pictures with ") for note in found.notices] == [True]


def test_other_channels_are_shown_as_their_mean_and_large_pictures_become_small():
    found = pictured(torch.rand(5, 8, 9))
    assert opened(found.uris[0]).size == (9, 8)
    assert "number of channels" in found.notices[0]
    found = pictured(rgb(400, 1000), rgb(1000, 50))
    assert [opened(uri).size for uri in found.uris] == [(96, 38), (5, 96)]
    assert not found.pixelated


def test_what_is_no_picture_is_counted():
    found = pictured(
        np.zeros(7), torch.zeros(2, 3, 4, 5), {"a": 1}, None, OSError("broken pipe"), np.zeros((0, 3)), rgb(9, 9)
    )
    assert len(found.uris) == 1
    assert found.of_row == {6: 0}
    assert re.match(r"6 pictures .*\(first: data:0: ", found.notices[0])
    assert found.note == "1 of 7 have pictures"


def test_files_are_turned_upright_and_broken_ones_said(tmp_path):
    folder = tmp_path / "pics" / "a"
    folder.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(rgb(300, 900)).save(folder / "turned.jpg", exif=exif)
    Image.fromarray(rgb(300, 900)).save(folder / "cmyk.png")
    Image.fromarray(rgb(300, 900)).convert("CMYK").save(folder / "cmyk.jpg")
    (folder / "broken.jpg").write_bytes(b"no picture")
    (folder / "cut.png").write_bytes((folder / "cmyk.png").read_bytes()[:60])
    names = ["broken.jpg", "cmyk.jpg", "cmyk.png", "cut.png", "gone.jpg", "turned.jpg"]
    table = SampleTable.from_columns({"id": [f"pics/a/{n}" for n in names], "avh": np.arange(6.0), "pred": [0] * 6})
    payload = in_page(write_report(table, tmp_path / "p.html", data=tmp_path / "pics"))
    assert payload["picture_note"] == "3 of 6 have pictures"
    assert opened(payload["pictures"][payload["points"]["picture"][5]]).size == (32, 96)
    assert "1 of 6 pictures" in texts(payload)
    assert re.search("2 pictures .*read", texts(payload))
    assert re.search("1 picture .*EXIF", texts(payload))


class Failing(Samples):
    def __len__(self):
        return 60

    def find(self, ids):
        raise RuntimeError("the archive is locked")


class Features(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.zeros(16), 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("/nowhere/at/all", "DATA: .*/nowhere/at/all"),
        (iter([]), "data .*list_iterator"),
        (Failing(), "archive is locked"),
        (3, "data .*got int"),
        ("digits", "60 of 60 pictures .*data"),
        (Given(*[OSError("moved")] * 60), "not in the data"),
    ],
)
def test_a_page_is_made_whatever_the_pictures(data, words, tmp_path):
    payload = in_page(write_report(a_run(tmp_path), tmp_path / "p.html", data=data))
    assert re.search(words, texts(payload))
    assert payload["n"] == 60
    assert payload["pictures"] == []
    assert payload["picture_note"].startswith("0 of 60")


def test_samples_that_are_no_pictures_say_so(tmp_path):
    table = a_run(tmp_path)
    rows = table.to_arrow().set_column(0, "id", pa.array([f"data:{i}" for i in range(60)]))
    payload = in_page(write_report(SampleTable(rows, table.meta), tmp_path / "p.html", data=Features()))
    assert re.search(r"60 pictures .*\(first: data:", texts(payload))
    assert "its shape is (16,)" in texts(payload)


def test_data_that_have_moved(tmp_path):
    table = a_run(tmp_path)
    table.save(tmp_path / "run")
    (tmp_path / "x.npz").rename(tmp_path / "y.npz")
    assert "--data" in texts(in_page(write_report(tmp_path / "run")))
    assert len(in_page(write_report(tmp_path / "run", data=tmp_path / "y.npz"))["pictures"]) == 60


@pytest.mark.slow
def test_the_page_stays_small_whatever_names_and_pictures(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    n, classes = 12_000, 5000
    label = draw.integers(0, classes, n)
    columns = {
        "id": [f"{'😀<&>' * 60}{i:06d}" for i in range(n)],
        "label": label,
        "pred": (label + (draw.random(n) < 0.5)) % classes,
        "avh": draw.random(n),
        "confidence": draw.random(n),
        "camera": ["\u202e<b>" * 99] * n,
    }
    names = [f"{'é<script>' * 30}{k}" for k in range(classes)]
    table = SampleTable(pa.table(columns), {"model": {"classes": classes}, "class_names": names})
    noise = draw.integers(0, 256, (120, 120, 3), dtype=np.uint8)

    class Noise(Samples):
        def find(self, ids):
            return list(range(len(ids)))

        def load(self, index, channels):
            return noise, None

    path = write_report(table, tmp_path / "p.html", data=Noise(), pictures=6000)
    assert path.stat().st_size <= MOST_BYTES
    payload = in_page(path)
    assert "not fit" in payload["picture_note"]
    assert 100 < len(payload["pictures"]) < 6000
    assert "300 hardest" in texts(payload)
    assert len(payload["classes"]) == classes
    assert max(map(len, payload["points"]["id"])) <= 160
    assert max(map(len, payload["classes"])) <= 60
    monkeypatch.setattr("hardsight.report.page.MOST_BYTES", 1000)  # no room at all
    payload = in_page(write_report(a_run(tmp_path), tmp_path / "p.html"))
    assert re.match("0 of 60 .*not fit", payload["picture_note"])


N = 120
DRAW = np.random.default_rng(0)
IDS = [f"x:{i}" for i in range(N)]
FULL = {"id": IDS, "label": DRAW.integers(0, 3, N), "pred": DRAW.integers(0, 3, N), "avh": DRAW.random(N)}


@pytest.mark.parametrize(
    ("columns", "meta", "words"),
    [
        (FULL, {}, "Scored by .*as given"),
        (FULL, {"out_of_sample": {"folds": 5, "retrained": "head"}}, r"\(5 folds\): .*refitted"),
        (FULL, {"out_of_sample": {"folds": 3, "retrained": "model", "seeds": 2}}, r"\(3 folds, 2 seeds\): .*whole"),
        (FULL, Meta(unfinished=True), "120 samples so far"),
        (FULL, {"counts": {"zero_features": 4}}, "4 samples .*zero"),
        (FULL, {"warnings": ["class order: odd"]}, "class order: odd"),
        (FULL, {"model": {"classes": 9000}}, "9,000 classes"),
        ({"id": IDS, "pred": [0] * N, "avh_pred": DRAW.random(N)}, {}, "no labels"),
        ({**FULL, "label": [1] * N}, {"class_names": ["a", "only"]}, r"one class \(only\)"),
        ({**FULL, "label": pa.array([None, 1] * 60)}, {}, "60 samples .*no label"),
        ({**FULL, "avh": np.r_[np.nan, DRAW.random(N - 1)]}, {}, "1 sample .*C·AVH"),
        ({"id": IDS}, {}, "no score"),
        ({"id": IDS, "norm": DRAW.random(N)}, {}, "no prediction"),
        ({"id": IDS, "label": [0] * N, "pred": [0] * N, "confidence": DRAW.random(N)}, {}, "ranked by confidence"),
        ({"id": ["one"], "label": [0], "pred": [0], "avh": [0.5]}, {}, "Label errors .*not"),
        ({**FULL, "avh": [0.5] * N, "nll": [1.0] * N, "norm": [0.0] * N}, {}, "Scored by"),
        ({"id": IDS, "label": [0] * N, "avh": DRAW.random(N), "norm": DRAW.random(N)}, {}, "no prediction"),
        ({**FULL, "label": DRAW.integers(0, 10**12, N)}, {}, "classes; .*occur"),
        ({**FULL, "nll": np.r_[np.inf, DRAW.random(N - 1)]}, {"class_names": ["fewer"]}, "Scored by"),
    ],
)  # fmt: skip
def test_every_lack_gives_a_page_that_says_so(columns, meta, words, tmp_path):
    payload = in_page(write_report(SampleTable(pa.table(columns), meta), tmp_path / "p.html"))
    assert re.search(words, texts(payload))
    assert payload["n"] == len(columns["id"])


def test_a_run_still_being_written_and_its_bad_rows(tmp_path):
    table = a_run(tmp_path)
    bad = pa.table({"id": [f"bad{i}" for i in range(130)], "error": ["<b>truncated</b>"] * 130})
    SampleTable(table.to_arrow(), table.meta, bad).save(tmp_path / "run")
    (tmp_path / "run" / "meta.json").unlink()
    payload = in_page(write_report(tmp_path / "run"))
    assert "60 samples so far" in texts(payload)
    assert "130 samples" in texts(payload)
    assert "130 rows" in payload["bad"]["note"]
    (bad,) = payload["bad"]["tables"]
    assert bad["rows"][0] == ["bad0", "<b>truncated</b>"]
    assert len(bad["rows"]) == 100
