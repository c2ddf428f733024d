"""Nothing is written over or removed that hardsight did not write, and what it removes it removes in a safe order."""

import os
from pathlib import Path

import pytest
import torch
from command_line import run
from killed import killed
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.data import load_digits
from hardsight.runs import RunWriter, discard, is_run, write_json
from hardsight.tablefiles import split_rows

MINE = "my own words"


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def table(n=6):
    torch.manual_seed(0)
    return hs.score_features(torch.rand(n, 4), torch.rand(3, 4), torch.arange(n) % 3)


@pytest.fixture
def saved(tmp_path):
    return table().save(tmp_path / "run")


@pytest.mark.parametrize("name", ["meta.json", "plan.json"])
def test_a_table_is_saved_over_a_damaged_run_when_asked_to(saved, name):
    (saved / name).write_text("{")
    with pytest.raises(hs.HardsightError):
        table(4).save(saved)
    assert len(hs.SampleTable.load(table(4).save(saved, overwrite=True))) == 4


# ---------------------------------------------------------------------------------------------------------------------
# Files that a user names.


@pytest.mark.parametrize("name", ["run/meta.json", "run/plan.json", "data.npz", "page.html", "empty", "link.html"])
def test_a_report_replaces_nothing_but_a_report(saved, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("data.npz").write_bytes(b"PK")
    Path("page.html").write_text(f"<html>{MINE}</html>")
    Path("empty").touch()
    Path("link.html").symlink_to("page.html")
    before = Path(name).read_bytes()
    code, _, err = run(capsys, "report", "run", "-o", name)
    assert code == 2
    assert name in err
    assert Path(name).read_bytes() == before


def test_a_report_replaces_a_report(saved, tmp_path):
    page = hs.write_report(saved, tmp_path / "page.html")
    first = page.stat().st_mtime_ns
    assert hs.write_report(saved, page).stat().st_mtime_ns > first
    (saved / "report.html").write_text(MINE)
    with pytest.raises(FileExistsError, match=r"report\.html"):
        hs.write_report(saved)
    assert (saved / "report.html").read_text() == MINE


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_figure_replaces_nothing_but_a_figure(tmp_path, kind):
    figures = pytest.importorskip("matplotlib.figure")
    from hardsight.figures import write_figure

    figure = figures.Figure()
    figure.subplots().plot([1, 2])
    mine = tmp_path / f"mine.{kind}"
    figure.savefig(mine)  # also matplotlib's, but the user's
    before = mine.read_bytes()
    with pytest.raises(FileExistsError, match="mine"):
        write_figure(figure, mine)
    assert mine.read_bytes() == before
    ours = write_figure(figure, tmp_path / f"ours.{kind}")
    first = ours.read_bytes()
    assert write_figure(figure, ours).read_bytes() == first


# ---------------------------------------------------------------------------------------------------------------------
# Folders.


def test_the_demo_replaces_nothing_but_a_demo(saved, capsys):
    before = (saved / "meta.json").read_bytes()
    code, _, err = run(capsys, "demo", "-o", saved)
    assert code == 2
    assert "run" in err
    assert (saved / "meta.json").read_bytes() == before


@pytest.mark.parametrize(
    "place",
    [
        "notes.txt",
        "scores/notes.parquet",
        "stages/notes.txt",
        "stages/net0/mine/a.txt",
        "dynamics/a",
        "parts/a.json",
        ".lists.0123abcd.tmp/a.txt",
        "report.html",
        "lists/a.txt",
        "alignment/a.txt",
        "alignment/summary.json",
        "degraded/blur=1/a.txt",
    ],
)
def test_what_others_put_into_a_run_stays_when_it_is_overwritten(saved, place):
    file = saved / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(MINE)
    table(3).save(saved, overwrite=True)
    assert file.read_text() == MINE
    assert len(hs.SampleTable.load(saved)) == 3


def test_stages_that_are_done_leave_the_users_files(tmp_path):
    """Put there while the run was being made."""
    images, labels = load_digits()
    x, y = torch.from_numpy(images[:30]).float() / 255, torch.from_numpy(labels[:30])
    file = tmp_path / "run" / "stages" / "net1" / "mine.txt"

    class Writes(nn.Sequential):
        def forward(self, x):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(MINE)
            return super().forward(x)

    hs.score([linear(), Writes(*linear())], TensorDataset(x, y), out=tmp_path / "run", device="cpu")
    assert file.read_text() == MINE
    assert [p.name for p in (tmp_path / "run" / "stages").iterdir()] == ["net1"]


def test_training_again_leaves_the_users_files(tmp_path):
    from hardsight.data import ArraySamples
    from hardsight.recipes import Recipe
    from hardsight.training import train

    images, labels = load_digits()
    data = ArraySamples(images[:40], labels[:40], "train", "a")
    options = {"recipe": Recipe(epochs=1, batch_size=20), "device": "cpu", "progress": False}
    train(linear(), data, out=tmp_path / "run", **options)
    mine = [tmp_path / "run" / "mine.txt", tmp_path / "run" / "train" / "dynamics" / "mine.txt"]
    for file in mine:
        file.write_text(MINE)
    train(linear(), data, out=tmp_path / "run", **options, overwrite=True)
    assert [file.read_text() for file in mine] == [MINE, MINE]


# ---------------------------------------------------------------------------------------------------------------------
# Killed at the worst moment.


def test_a_killed_discard_does_not_make_a_run_a_strangers(saved):
    (saved / "lists").mkdir()
    with killed("replace", 0):  # of the new plan
        table(3).save(saved, overwrite=True)
    assert is_run(saved)
    assert len(hs.SampleTable.load(table(3).save(saved, overwrite=True))) == 3


def test_discarding_removes_all_of_a_run(saved):
    discard(saved)
    assert not saved.exists()


def test_content_is_on_disk_before_its_name_is(tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor):
        done.append(("fsync", os.fstat(descriptor).st_ino))
        return sync(descriptor)

    def renamed(self, target):
        done.append(("rename", self.stat().st_ino))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_json(tmp_path / "a.json", {"a": 1})
    inode = (tmp_path / "a.json").stat().st_ino
    assert done == [("fsync", inode), ("rename", inode)]


@pytest.mark.parametrize("stage", range(4))
def test_a_saving_that_was_killed_can_be_done_again(tmp_path, stage):
    with killed("replace", stage):
        table().save(tmp_path / "run")
    table(4).save(tmp_path / "run")
    assert len(hs.SampleTable.load(tmp_path / "run")) == 4
    with pytest.raises(FileExistsError):
        table().save(tmp_path / "run")


def test_an_unfinished_run_of_a_model_is_not_replaced_by_a_saved_table(tmp_path):
    with RunWriter(tmp_path / "run", {"a": 1}) as writer:
        writer.write(split_rows(table(2).to_arrow(), table(2).bad, "m"))
    with pytest.raises(FileExistsError):
        table().save(tmp_path / "run")
    assert RunWriter(tmp_path / "run", {"a": 1}).done() == {0: 2}
