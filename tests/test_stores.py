"""Runs and data on object stores, against a local S3 server: rows as on a disk, kills, other writers, bad input."""

import json
import os
import pickle
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import failure, run
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer
from report_runs import in_page
from shard_files import network, rows_of, write_tars
from test_runfolder import PLAN, finished, part

import hardsight as hs
from hardsight import stores
from hardsight.data import open_data, read_features
from hardsight.errors import ExistingPathError, InputError, MissingPathError, StateError, StoreError
from hardsight.runs import RunWriter, write_unit
from hardsight.stores import StorePath, as_path

BUCKETS = count()


@pytest.fixture(scope="module")
def server():
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _new_connections():
    stores._filesystem.cache_clear()


@pytest.fixture
def environment(server, monkeypatch):
    """What a user's environment says of the store."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    values = {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    for name, value in values.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # loopback only


@pytest.fixture
def bucket(server, environment):
    from pyarrow.fs import S3FileSystem

    name = f"bucket-{next(BUCKETS)}"
    S3FileSystem(endpoint_override=server, allow_bucket_creation=True).create_dir(name)
    return as_path(f"s3://{name}")


def upload(path, file):
    path.write(lambda temporary: temporary.write_bytes(file.read_bytes()))
    return str(path)


def write_features(folder):
    generator = np.random.default_rng(0)
    features = generator.standard_normal((60, 8)).astype(np.float32)
    rows = {"features": list(features), "label": generator.integers(0, 3, 60), "id": [f"s{i}" for i in range(60)]}
    pq.write_table(pa.table(rows), folder / "features.parquet", row_group_size=16)
    return folder / "features.parquet"


def same_tables(one, other):
    assert one.to_arrow().equals(other.to_arrow())
    assert one.bad.equals(other.bad)
    assert (one.vectors is None) == (other.vectors is None)
    assert one.vectors is None or one.vectors.equals(other.vectors)


# Paths.


def test_a_path_on_a_store_keeps_its_slashes_and_never_touches_the_disk():
    path = as_path("s3://bucket/a/run")
    assert str(path / "parts" / "x.json") == "s3://bucket/a/run/parts/x.json"
    assert as_path(Path("s3://bucket/a/run")) == path == pickle.loads(pickle.dumps(path))
    assert str(pickle.loads(pickle.dumps(path))) == str(path.parent / "run") == "s3://bucket/a/run"
    assert (path.name, path.absolute(), path.resolve()) == ("run", path, path)
    for function in (os.fspath, open, Path.touch, Path.iterdir, pq.read_table):
        with pytest.raises(StoreError, match=r"s3://bucket/a/run .*store"):
            list(function(path) or ())


def test_what_is_no_store_is_a_local_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("run", "/tmp/run", "C:/run", "a:b/c"):
        assert as_path(text) == Path(text)
        assert not isinstance(as_path(text), StorePath)
    Path("odd:").mkdir()
    assert as_path(Path("odd:/run")) == Path("odd:/run")  # a folder of that name


def test_file_urls_are_local_paths(tmp_path):
    table = hs.score_features(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]))
    assert table.save(tmp_path.as_uri() + "/run") == tmp_path / "run"
    same_tables(hs.SampleTable.load((tmp_path / "run").as_uri()), hs.SampleTable.load(tmp_path / "run"))
    features = write_features(tmp_path)
    by_url, by_path = (read_features(name) for name in (features.as_uri(), features))
    assert torch.equal(by_url.features, by_path.features)
    assert (by_url.ids, by_url.origin) == (by_path.ids, by_path.origin)


def test_a_file_url_is_decoded_and_names_no_other_machine(tmp_path):
    (tmp_path / "ä 1%20").mkdir()
    table = hs.score_features(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]))
    assert table.save((tmp_path / "ä 1%20").as_uri() + "/run") == tmp_path / "ä 1%20" / "run"
    assert as_path("file://localhost/a%20b") == as_path("file:/a%20b") == Path("/a b")
    with pytest.raises(InputError, match="another machine, 'disk'"):
        as_path("file://disk/run")


def test_shards_by_a_file_url_are_those_of_the_path(tmp_path):
    tars = write_tars(tmp_path)
    by_url, by_path = (open_data(f"{name}/images-{{000..002}}.tar") for name in (tars.as_uri(), tars))
    assert by_url.source == by_path.source
    assert by_url.fingerprint() == by_path.fingerprint()


# Runs.


def test_a_table_comes_back_as_it_was_saved(bucket, tmp_path):
    torch.manual_seed(0)
    features, weight = torch.randn(50, 6), torch.randn(4, 6)
    features[3] = torch.nan
    table = hs.score_features(features, weight, torch.arange(50) % 4)
    assert str(table.save(f"{bucket}/run")) == f"{bucket}/run"
    table.save(tmp_path / "run")
    stored, local = hs.SampleTable.load(f"{bucket}/run"), hs.SampleTable.load(tmp_path / "run")
    same_tables(stored, local)
    assert stored.meta == local.meta
    assert len(stored.bad) == 1
    with pytest.raises(ExistingPathError, match=r"/run .*already"):
        table.save(f"{bucket}/run")
    table.head(10).save(f"{bucket}/run", overwrite=True)
    assert len(hs.SampleTable.load(f"{bucket}/run")) == 10
    assert not list(Path().glob("s3:*"))


def test_a_run_on_a_store_is_the_run_on_a_disk(bucket, tmp_path):
    data = open_data(write_tars(tmp_path))
    arguments = {"preprocess": "raw", "batch_size": 8, "progress": False}
    local = hs.score(network(), data, out=tmp_path / "run", **arguments)
    stored = hs.score(network(), data, out=f"{bucket}/run", **arguments)
    same_tables(stored, local)
    same_tables(hs.SampleTable.load(f"{bucket}/run"), hs.SampleTable.load(tmp_path / "run"))
    names = [sorted(p.name for p in (place / "parts").glob("*")) for place in (bucket / "run", tmp_path / "run")]
    assert names[0] == names[1]
    assert len(names[0]) == 3
    assert hs.score(network(), data, out=f"{bucket}/run", **arguments).meta.already_complete
    with pytest.raises(ExistingPathError, match=r"s3://.*/run .*bias"):
        hs.score(network(), data, out=f"{bucket}/run", use_bias=False, **arguments)


def test_folds_on_a_store_are_those_on_a_disk(bucket, tmp_path):
    data = open_data(write_tars(tmp_path))
    arguments = {"preprocess": "raw", "batch_size": 8, "progress": False, "folds": 2}
    folds = [hs.score(network(), data, out=out, **arguments) for out in (tmp_path / "f", f"{bucket}/f")]
    same_tables(*folds)
    assert not [item for item in (bucket / "f").rglob("*") if "stages" in item.parts]


def test_a_killed_run_resumes_and_rescores_what_is_not_whole(bucket, tmp_path):
    data = open_data(write_tars(tmp_path))
    arguments = {"preprocess": "raw", "batch_size": 4, "progress": False, "out": f"{bucket}/run"}
    whole, path = hs.score(network(), data, **arguments), bucket / "run"
    (path / "meta.json").unlink()
    (path / "parts" / "u00000001.json").unlink()  # killed before the marker: the objects of the unit are orphans
    cut = next(file for file in (path / "scores").glob("u00000003-*"))
    content = cut.read_bytes()[:-10]
    cut.write(lambda file: file.write_bytes(content))
    with pytest.raises(StateError, match="scores/u00000003-"):
        hs.SampleTable.load(path, partial=True)
    again = hs.score(network(), data, **arguments)
    same_tables(again, whole)
    assert again.meta.resumed == 16
    assert len(list((path / "scores").glob("u00000001-*"))) == 2  # the orphan is still there, and in no table
    same_tables(hs.SampleTable.load(path), whole)


def test_a_finished_run_that_is_truncated_is_an_error(bucket):
    path = finished(bucket / "run", part(["a", "b"]))
    file = next((path / "scores").glob("*"))
    file.write(lambda temporary: temporary.write_bytes(b"PAR1"))
    with pytest.raises(StateError, match="scores/u00000000-"):
        hs.SampleTable.load(path)


def test_of_two_writers_of_a_unit_the_last_marker_counts(bucket):
    with RunWriter(bucket / "run", PLAN) as first, RunWriter(bucket / "run", PLAN):
        write_unit(first.path, 0, part(["a", "b"], value=0.1))
        write_unit(first.path, 0, part(["a", "b"], value=0.9))  # one that was thought dead
    table = hs.SampleTable.load(bucket / "run", partial=True)
    assert table["avh"].tolist() == [0.9, 0.9]
    marker = json.loads((bucket / "run/parts/u00000000.json").read_text())
    assert {p.name for p in (bucket / "run/scores").glob("*")} > {f"u00000000-{marker['token']}.parquet"}


def test_a_folder_of_others_is_never_written_to(bucket):
    upload(bucket / "mine/notes.txt", Path(__file__))
    with pytest.raises(ExistingPathError, match=r"/mine .*notes\.txt"):
        finished(bucket / "mine", part(["a"]))
    path = finished(bucket / "run", part(["a"]))
    upload(path / "notes.txt", Path(__file__))
    with RunWriter(path, {"another": "plan"}, overwrite=True):
        pass
    assert sorted(p.name for p in path.rglob("*")) == ["notes.txt", "plan.json"]


# Data.


def test_tar_shards_on_a_store_are_the_same_samples(bucket, tmp_path):
    tars = write_tars(tmp_path)
    for file in tars.iterdir():
        upload(bucket / "shards" / file.name, file)
    local = hs.score(network(), open_data(tars), preprocess="raw", progress=False)
    for name in (f"{bucket}/shards/images-{{000..2}}.tar", f"{bucket}/shards"):
        samples = open_data(name)
        assert samples.source["data"] == name
        assert samples.fingerprint() == open_data(name).fingerprint()
        same_tables(hs.score(network(), samples, preprocess="raw", progress=False), local)
    same_tables(hs.score(network(), samples, preprocess="raw", progress=False, workers=2), local)
    with pytest.raises(MissingPathError, match=r"s3://.*/images-003\.tar"):
        open_data(f"{bucket}/shards/images-{{000..3}}.tar")


def test_parquet_and_npz_on_a_store_are_the_same_samples(bucket, tmp_path):
    pq.write_table(pa.table(rows_of()), tmp_path / "images.parquet", row_group_size=5)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", test_images=images, test_labels=np.arange(9) % 3)
    for name, split in (("images.parquet", ""), ("set.npz", ":test")):
        url = upload(bucket / name, tmp_path / name)
        tables = [
            hs.score(network(), f"{place}{split}", preprocess="raw", progress=False) for place in (url, tmp_path / name)
        ]
        same_tables(*tables)


def test_an_object_that_changes_while_it_is_read_is_noticed(bucket, tmp_path):
    tars = write_tars(tmp_path)
    upload(bucket / "a.tar", tars / "images-000.tar")
    samples = open_data(f"{bucket}/a.tar")
    (bucket / "a.tar").write(lambda file: file.write_bytes((tars / "images-001.tar").read_bytes() + bytes(512)))
    with pytest.raises(InputError, match=r"a\.tar .*changed"):
        samples.load(0, 3)


def test_the_command_scores_features_of_a_store_into_a_store_and_reports_them(bucket, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features = write_features(tmp_path)
    url = upload(bucket / "features.parquet", features)
    code, printed, _ = run(capsys, "score", url, "--folds", 2, "-o", f"{bucket}/run")
    assert code == 0
    assert f"wrote {bucket}/run/" in printed
    assert run(capsys, "score", features, "--folds", 2, "-o", "local")[0] == 0
    stored, local = hs.SampleTable.load(f"{bucket}/run"), hs.SampleTable.load("local")
    same_tables(stored, local)
    assert stored.meta.source["table"] == url
    assert run(capsys, "report", f"{bucket}/run", "-o", "report.html")[0] == 0
    assert b"hardsight" in Path("report.html").read_bytes()
    assert run(capsys, "report", f"{bucket}/run")[0] == 0
    assert (bucket / "run/report.html").is_file()
    assert run(capsys, "clean", f"{bucket}/run", "-o", "lists")[0] == 0
    assert Path("lists/actions.csv").is_file()
    assert run(capsys, "clean", f"{bucket}/run", "--data", url, "-o", "lists", "--overwrite")[0] == 0
    assert not Path("s3:").exists()


def test_alignment_on_a_store_is_that_on_a_disk(bucket, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    features, weight = torch.randn(120, 6, generator=generator), torch.randn(4, 6, generator=generator)
    table = hs.score_features(features, weight, torch.arange(120) % 4, ids=[f"test:{i}" for i in range(120)])
    counts = np.random.default_rng(0).multinomial(20, [0.4, 0.3, 0.2, 0.1], 120)
    np.savez("people.npz", counts=counts)
    printed = []
    for place in ("local", f"{bucket}/run"):
        table.save(place)
        code, out, _ = run(capsys, "align", place, "--human", "people.npz")
        assert code == 0
        printed.append(out.replace(place, "RUN"))
    assert printed[0] == printed[1]
    local, stored = Path("local/alignment"), bucket / "run/alignment"
    names = sorted(file.name for file in local.iterdir())
    assert sorted(file.name for file in stored.glob("*")) == names
    differing = [name for name in names if (local / name).read_bytes() != (stored / name).read_bytes()]
    assert differing in ([], ["summary.json"])  # which says when it was written
    summaries = [json.loads((place / "summary.json").read_text()) for place in (local, stored)]
    different = {key for key in summaries[0] if summaries[0][key] != summaries[1][key]}
    assert different <= {"made"}, [[summary[key] for key in different] for summary in summaries]
    assert run(capsys, "report", f"{bucket}/run", "-o", "report.html")[0] == 0
    assert in_page(Path("report.html"))["people"]["tables"]
    assert not Path("s3:").exists()


def test_shares_of_a_run_on_a_store_are_the_run_of_one_process_on_a_disk(bucket, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tars = write_tars(tmp_path)
    for file in tars.glob("*.tar"):
        upload(bucket / "tars" / file.name, file)
    Path("net.py").write_text("from shard_files import network as build\n")
    options = ("--batch-size", 4)
    assert run(capsys, "score", "net.py:build", tars, "-o", "local", *options)[0] == 0
    local = hs.SampleTable.load("local")
    command = ("score", "net.py:build", f"{bucket}/tars", "-o", f"{bucket}/run", *options, "--shard")
    code, printed, _ = run(capsys, *command, "0/2")
    assert code == 0
    assert f"12 samples are safe in {bucket}/run/" in printed
    with pytest.raises(StateError, match=r"s3://.*/run"):
        hs.SampleTable.load(f"{bucket}/run")
    code, printed, _ = run(capsys, *command, "1/2")
    assert code == 0
    assert "24 samples scored" in printed
    stored = hs.SampleTable.load(f"{bucket}/run")
    same_tables(stored, local)
    assert stored.meta.counts == local.meta.counts
    assert len(list((bucket / "run/parts").glob("*"))) == 6


def test_what_a_run_names_on_a_store_is_not_opened(bucket, tmp_path):
    for file in (tars := write_tars(tmp_path)).glob("*.tar"):
        upload(bucket / file.name, file)
    table = hs.score(network(), f"{bucket}/{file.name}", preprocess="raw", progress=False)
    with pytest.raises(InputError, match="--data"):
        hs.data.data_of(table.meta)
    assert len(hs.data.data_of(table.meta, f"{bucket}/{file.name}")) == len(table)
    assert len(hs.data.data_of(table.meta, tars / file.name)) == len(table)


# Bad input: one sentence each.


class Refusing(BaseHTTPRequestHandler):
    """A store that answers every request with one status."""

    status, code = 403, "AccessDenied"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"" if self.command == "HEAD" else f"<Error><Code>{self.code}</Code></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, *_):
        pass


@pytest.fixture
def refusing(environment, monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()


def test_credentials_that_are_missing_are_one_sentence(refusing, monkeypatch, tmp_path, capsys):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    features = write_features(tmp_path)
    for arguments in (("report", "s3://bucket/run"), ("score", features, "--folds", 2, "-o", "s3://bucket/run")):
        message = failure(capsys, *arguments)
        assert "is refused: credentials are missing, wrong or without this permission" in message
        assert "AWS_ACCESS_KEY_ID" in message
        assert len(message.strip().splitlines()) == 1
    for read in (read_features, hs.SampleTable.load, open_data):
        with pytest.raises(StoreError, match="credentials"):
            read("s3://bucket/features.parquet")


def test_a_bucket_or_an_object_that_does_not_exist_is_one_sentence(bucket, tmp_path, capsys):
    for read in (hs.SampleTable.load, open_data, read_features):
        with pytest.raises(StoreError, match="bucket s3://nowhere"):
            read("s3://nowhere/a.parquet")
    with pytest.raises(StoreError, match="bucket s3://nowhere"):
        finished("s3://nowhere/run", part(["a"]))
    with pytest.raises(MissingPathError, match=r"s3://.*/run .*folder"):
        hs.SampleTable.load(f"{bucket}/run")
    for read in (open_data, read_features):
        with pytest.raises(MissingPathError, match=r"s3://.*/a\.parquet"):
            read(f"{bucket}/a.parquet")
    assert "there is no bucket" in failure(capsys, "score", "s3://nowhere/f.parquet", "-o", tmp_path / "run")


def test_a_store_that_does_not_answer_is_one_sentence(environment, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"s3://bucket/run.*http://127\.0\.0\.1:1"):
        hs.SampleTable.load("s3://bucket/run")


def test_samples_are_not_bad_because_a_store_fails(bucket, tmp_path, monkeypatch):
    samples = open_data(upload(bucket / "a.tar", write_tars(tmp_path) / "images-000.tar"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for workers in (0, 1):
        with pytest.raises(StoreError, match=r"a\.tar .*127\.0\.0\.1:1") as caught:
            hs.score(network(), samples, preprocess="raw", progress=False, workers=workers)
        assert "Traceback" not in str(caught.value)


def test_an_unknown_scheme_is_one_sentence(capsys, tmp_path):
    for function in (as_path, hs.SampleTable.load, open_data, read_features):
        with pytest.raises(InputError, match=r"'s4://bucket/x\.parquet'.* s3"):
            function("s4://bucket/x.parquet")
    with pytest.raises(InputError, match="'s4://bucket/run'"):  # as the user wrote it, and not as `Path` does
        as_path(Path("s4://bucket/run"))
    assert "did you mean" in failure(capsys, "report", "s4://bucket/run")
    for text in ("s3://", "file://", "file:///", "http://"):
        for path in (text, Path(text)):  # as the command has it
            with pytest.raises(InputError):
                as_path(path)


def test_hugging_face_is_read_through_fsspec(monkeypatch, tmp_path):
    files, features = MemoryFileSystem(), write_features(tmp_path)
    files.pipe("/datasets/me/set/features.parquet", features.read_bytes())
    files.pipe("/datasets/me/set/a.tar", (write_tars(tmp_path) / "images-000.tar").read_bytes())
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfFileSystem=lambda: files))
    assert torch.equal(
        read_features("hf://datasets/me/set/features.parquet").features, read_features(features).features
    )
    samples = open_data("hf://datasets/me/set/a.tar")
    assert (samples.ids[0], len(samples)) == ("a/00", 8)
    with pytest.raises(MissingPathError, match=r"hf://datasets/me/set/b\.parquet"):
        read_features("hf://datasets/me/set/b.parquet")


def test_hugging_face_needs_its_library_and_is_only_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(StateError, match="pip install huggingface_hub"):
        read_features("hf://datasets/me/set/x.parquet")
    with pytest.raises(StoreError, match=r"hf://.*/meta\.json .*read"):
        as_path("hf://datasets/me/run/meta.json").write(lambda file: None)


def test_what_needs_a_disk_says_so(bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"s3://.*/run .*disk"):
        hs.Recorder(f"{bucket}/run")
    path = finished(bucket / "run", part(["a", "b"]))
    for arguments in (
        ("train", "digits", "--model", "cifar-resnet18", "-o", f"{bucket}/new"),
        ("evaluate", path, "--data", "digits"),
        ("figure", "dynamics", path),
        ("clean", path),
    ):
        assert "is on an object store, and this needs a disk" in failure(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []
