"""Tars of somebody else: headers as tarfile reads them; damaged and hostile members; labels that are none."""

import gzip
import io
import random
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from shard_files import (
    encoded,
    network,
    sample,
    write_tar,
)

import hardsight as hs
from hardsight.data import open_data
from hardsight.data.tars import _members
from hardsight.images import open_image


@pytest.fixture
def tiny():
    return network()


names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(names, min_size=1, max_size=4).map("/".join), max_size=6),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from([0, 1.5]),
)
def test_headers_are_read_as_tarfile_reads_them(paths, form, mtime):
    """Witness: Python's tarfile, for prefixes, long names of GNU, and pax headers."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for number, name in enumerate(paths):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 300 * number, mtime
            info.type = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)[number % 4]
            try:
                tar.addfile(info, io.BytesIO(bytes(info.size)))
            except ValueError:  # a name that ustar cannot hold
                assert form == tarfile.USTAR_FORMAT
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as tar:
        expected = [(m.name, m.offset_data) + ((m.size,) if m.isreg() else ()) for m in tar]
    found = []
    for raw, kind, start, length in _members(io.BytesIO(file.getvalue()), "x.tar"):
        name = raw.decode("utf-8", "surrogateescape")
        found.append((name.rstrip("/"), start) + ((length,) if kind in b"0\0" and not name.endswith("/") else ()))
    assert found == [(name.rstrip("/"), *rest) for name, *rest in expected]


def test_sizes_beyond_octal_digits_and_in_pax_headers():
    """As in members of 8 GiB and more, whose content here is missing."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("large.jpg")
        info.size = 9 << 30
        content = info.tobuf(form)
        ((name, _, start, length), end) = list(_members(io.BytesIO(content), "x.tar"))
        assert (name, start, length) == (b"large.jpg", len(content), 9 << 30)
        assert end[1] == b""


def test_a_size_in_a_pax_header_is_that_of_one_member(tmp_path):
    """Witness: tarfile."""
    info = tarfile.TarInfo("a.png")
    info.pax_headers = {"size": "700"}
    path = write_tar(tmp_path / "x.tar", [(info, bytes(700)), ("b.png", b"1"), ("c.png", b"2")])
    with tarfile.open(path) as tar, path.open("rb") as file:
        expected = [(m.name.encode(), m.offset_data, m.size) for m in tar]
        assert [(name, start, length) for name, _, start, length in _members(file, "x.tar")] == expected


def test_times_of_access_in_a_header_of_gnu_are_no_part_of_the_name():
    """GNU tar keeps them in incremental archives, where ustar has the beginning of a long name."""
    block = bytearray(tarfile.TarInfo("a.png").tobuf(tarfile.GNU_FORMAT))
    block[345:357] = b"14000000000\0"
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + 256 + sum(block[156:]))
    assert [name for name, *_ in _members(io.BytesIO(block + bytes(1024)), "x.tar")] == [b"a.png"]


def bad(members):
    return lambda path: write_tar(path, members)


def link(name, kind, target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def sparse(path):
    info = tarfile.TarInfo("a.png")
    info.type = tarfile.GNUTYPE_SPARSE
    return write_tar(path, [(info, b"")])


def flipped(path):
    write_tar(path, sample("a") | sample("b"))
    content = bytearray(path.read_bytes())
    content[content.index(b"b.png")] ^= 1
    path.write_bytes(content)


def gzipped(path):
    path.write_bytes(gzip.compress(path.read_bytes()))


def pax_sparse(path):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.png")
        info.pax_headers = {"GNU.sparse.major": "1"}
        tar.addfile(info)


REFUSED = {
    "no tar": (lambda path: path.write_bytes(b"no tar at all" * 100), "not a tar"),
    "no bytes": (lambda path: path.write_bytes(b""), "not a tar"),
    "a few bytes": (lambda path: path.write_bytes(b"a.png"), "not a tar"),
    "half a header": (lambda path: path.write_bytes(write_tar(path, sample("a")).read_bytes()[:300]), "truncated"),
    "gzip": (lambda path: gzipped(write_tar(path, sample("a"))), "plain .tar"),
    "sparse": (sparse, "plain tar"),
    "sparse in pax": (pax_sparse, "plain tar"),
    "a damaged header": (flipped, "damaged at byte"),
    "no samples": (bad({}), "no images"),
    "no images": (bad({"README.md": b"x", ".hidden.png": b"x"}), "no images"),
    "two images of a key": (bad([("a.png", b"1"), ("a.png", b"2")]), "'a'"),
    "images of two formats": (bad([("a.png", b"1"), ("./a.JPG", b"2")]), "'a'"),
    "two labels of a key": (bad([*sample("a", 0, 1).items(), ("a.cls", b"2")]), "'a'"),
    "a label missing": (bad(sample("a", 0, 1) | sample("b")), "x/b.* label"),
    "a label that is a word": (bad(sample("a", 0, "cat")), "'a'.*class index"),
    "a label without end": (bad(sample("a", 0, "1" * 5000)), "'a'.*class index"),
    "no digits of ours": (bad(sample("a", 0, "٣")), "'a'.*class index"),
    "a label out of range": (bad(sample("a", 0, 10**30)), "class indices"),
    "too many classes": (bad(sample("a", 0, 10**12)), "class indices"),
    "no JSON": (bad(sample("a", json=b"{")), "'a'.*JSON"),
    "deep JSON": (bad(sample("a", json=b"[" * 100_000)), "'a'.*JSON"),
    "large JSON": (bad(sample("a", json=b'{"x": "' + b"x" * (1 << 20) + b'"}')), "'a'.*JSON"),
    "a number without end": (bad(sample("a", json=b'{"label": ' + b"1" * 5000 + b"}")), "'a'.*JSON"),
    "half a label": (bad(sample("a", json=b'{"label": 0.5}')), "'a'.*float"),
    "a label of yes": (bad(sample("a", json=b'{"label": true}')), "'a'.*bool"),
    "two labels in a list": (bad(sample("a", json=b'{"label": [0, 1]}')), "'a'.*list"),
    "half a character": (bad(sample("a", json=rb'{"label": "\ud800"}')), "'a'.*str"),
    "names and numbers": (bad(sample("a", json=b'{"label": "x"}') | sample("b", 0, 1)), "all"),
    "a header of 2 MB": (bad({"x" * (2 << 20) + ".png": b""}), "header"),
}


@pytest.mark.filterwarnings("ignore:DATA")
@pytest.mark.parametrize("case", REFUSED)
def test_a_tar_that_cannot_be_used_is_one_sentence_that_names_it(case, tmp_path):
    write, message = REFUSED[case]
    write(tmp_path / "x.tar")
    with pytest.raises(hs.HardsightError, match=f"DATA: .*{message}") as error:
        open_data(tmp_path / "x.tar")
    assert "x.tar" in str(error.value) or "x/b" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_negative_labels_are_refused_before_the_first_batch(tmp_path, tiny):
    with pytest.raises(ValueError, match="labels"):
        hs.score(tiny, write_tar(tmp_path / "x.tar", sample("a", 0, -1) | sample("b", 1, 0)), preprocess="raw")


def test_hostile_members_are_left_out_and_counted(tmp_path, monkeypatch):
    members = [
        *sample("good", 1, 2).items(),
        *(("../../x.png", b""), ("/etc/x.png", b""), ("a/../b.png", b""), ("new\nline.png", b""), ("bell\a.png", b"")),
        ("l" * 1_000_000 + ".png", b""),
        *(link("a.png", tarfile.SYMTYPE), link("b.png", tarfile.LNKTYPE), link("c.png", tarfile.CHRTYPE)),
        *(link("d.png", tarfile.BLKTYPE), link("e.png", tarfile.FIFOTYPE)),
        link("folder.png", tarfile.DIRTYPE),
        *(("alone.cls", b"1"), ("alone.txt", b""), ("other.mp4", b"")),
        *sample("sub/good", 2, 1).items(),
    ]
    path = write_tar(tmp_path / "in/x.tar", members)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="DATA: x.tar has") as caught:
        samples = open_data(path)
    text = str(caught[0].message)
    assert len(caught) == 1
    assert "6 members with hostile names" in text
    assert "5 members that are not plain files" in text
    assert "2 keys without" in text
    assert "\n" not in text
    assert samples.ids == ["x/good", "x/sub/good"]
    assert samples.labels.tolist() == [2, 1]
    for row, seed in enumerate((1, 2)):
        assert np.array_equal(samples.load(row, 3)[0], Image.open(io.BytesIO(encoded(seed))))
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")} == {"in", "in/x.tar"}


def test_bytes_that_are_no_utf8_are_names_all_the_same(tmp_path):
    info = tarfile.TarInfo("\udcff\udcfe.png")
    path = write_tar(tmp_path / "x.tar", [(info, encoded(0))], format=tarfile.GNU_FORMAT, errors="surrogateescape")
    samples = open_data(path)
    assert samples.ids == [r"x/\xff\xfe"]
    assert samples.load(0, 3)[0].size == (8, 8)


@pytest.mark.parametrize("last", ["png", "cls", "json", "whole image"])
def test_a_truncated_last_sample_is_a_bad_row(last, tmp_path, tiny):
    """Wherever the end is cut off: inside of the image, of its label, or between the two."""
    members = sample("a", 0, 1) | sample("b", 1, 2)
    members |= {"c.cls": b"0", "c.png": encoded(3)} if last == "png" else {"c.png": encoded(3), "c.cls": b"0" * 40}
    if last == "json":
        members = {f"{k}.{e}": c for k in "abc" for e, c in (("png", encoded(3)), ("json", b'{"label": 1}'))}
    path = write_tar(tmp_path / "x.tar", members)
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[: content.index(b"c.cls") + 100] if last == "whole image" else content[:-5])
    with pytest.warns(UserWarning, match=r"x\.tar .*truncated"):
        table = hs.score(tiny, path, preprocess="raw")
    assert table["id"].tolist() == ["x/a", "x/b"]
    assert table.bad["id"].to_pylist() == ["x/c"]
    assert "truncated" in table.bad["error"][0].as_py()


@pytest.mark.parametrize("size", [9 << 30, 1 << 62, 1 << 80, (1 << 88) - 1])
@pytest.mark.parametrize("ending", ["png", "cls", "txt"])
def test_a_size_beyond_the_file_is_a_truncated_file(size, ending, tmp_path):
    """Such a place can be neither read nor sought."""
    path, info = write_tar(tmp_path / "x.tar", sample("a", 0, 1)), tarfile.TarInfo(f"b.{ending}")
    info.size = size
    with path.open("r+b") as file:
        file.seek(len(path.read_bytes().rstrip(b"\0")) // 512 * 512 + 512)
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate()
    with pytest.warns(UserWarning, match=r"x\.tar .*truncated"):
        samples = open_data(path)
    assert samples.ids == ["x/a", "x/b"][: 1 + (ending == "png")]
    assert samples.load(0, 3)[1] == 1
    for row in range(1, len(samples)):
        with pytest.raises(ValueError, match="truncated"):
            samples.load(row, 3)


@pytest.mark.filterwarnings("ignore:DATA")
def test_a_tar_cut_anywhere_is_bad_rows_or_one_sentence(tmp_path, tiny):
    whole = write_tar(tmp_path / "x.tar", sample("a", 0, 1) | sample("b", 1, 2)).read_bytes()
    for end in range(0, len(whole), 100):
        (tmp_path / "x.tar").write_bytes(whole[:end])
        try:
            samples = open_data(tmp_path / "x.tar")
        except ValueError as error:
            assert "x.tar" in str(error) or "x/" in str(error)  # noqa: PT017 - either is right
            continue
        for row in range(len(samples)):
            try:
                assert samples.load(row, 3)[0].size == (8, 8)
            except ValueError as error:
                assert "truncated" in str(error)  # noqa: PT017


@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_never_end_in_another_error(tmp_path):
    """What a scan raises is an `InputError`, and what reading a sample raises is a bad row."""
    whole, generator = (
        write_tar(tmp_path / "y.tar", sample("a", 0, 1) | sample("b", 1, 2)).read_bytes(),
        random.Random(0),
    )
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(generator.choice([1, 1, 1, 20])):
            content[generator.randrange(4096)] = generator.choice([0, 255, 128, 48, generator.randrange(256)])
        if generator.random() < 0.7:  # a checksum that fits, so that more is read
            content[148:156] = b"%06o\0 " % (sum(content[:148]) + 256 + sum(content[156:512]))
        (tmp_path / "y.tar").write_bytes(content)
        try:
            samples = open_data(tmp_path / "y.tar")
        except hs.HardsightError:
            continue
        for row in range(len(samples)):
            try:
                samples.load(row, 3)
            except Exception as error:
                assert not isinstance(error, (MemoryError, AttributeError, KeyError))  # noqa: PT017


def test_a_corrupt_image_is_a_bad_row(tmp_path, tiny):
    path = write_tar(
        tmp_path / "x.tar", sample("a", 0, 1) | {"b.png": b"no image", "b.cls": b"1", "c.png": b"", "c.cls": b"0"}
    )
    table = hs.score(tiny, path, preprocess="raw", workers=2)
    assert table["id"].tolist() == ["x/a"]
    assert table.bad["id"].to_pylist() == ["x/b", "x/c"]
    assert "0x" not in table.bad["error"][0].as_py()  # an address in memory would differ from run to run
    images = [
        {"bytes": encoded(0), "path": "a"},
        {"bytes": None, "path": "/etc/hostname"},
        {"bytes": b"x", "path": ""},
        None,
    ]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2, 0]}), tmp_path / "x.parquet")
    table = hs.score(tiny, tmp_path / "x.parquet", preprocess="raw", workers=2)
    assert table["id"].tolist() == ["x:0"]
    assert table.bad["id"].to_pylist() == ["x:1", "x:2", "x:3"]


def test_bombs_and_postscript_are_never_decoded(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("a program was run"))
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "EPS")
    (tmp_path / "x.png").write_bytes(file.getvalue())
    for source in (file.getvalue(), tmp_path / "x.png"):
        with pytest.raises((ValueError, OSError)):
            open_image(source)
    samples = open_data(write_tar(tmp_path / "x.tar", {"a.png": encoded(0), "b.png": encoded(1)}))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 20)
    with pytest.raises(Image.DecompressionBombError):
        samples.load(0, 3)
    monkeypatch.setattr("hardsight.data.tars.MOST_IMAGE", 10)
    with pytest.raises(ValueError, match="bytes"):
        samples.load(0, 3)
