"""The same images as a folder, as tar shards and as Parquet, and tars of any members."""

import io
import tarfile

import datasets
import numpy as np
import torch
from PIL import Image
from torch import nn

CLASSES = ["cat", "dog", "owl"]
COUNT = 24


def encoded(seed, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file, kind)
    return file.getvalue()


def write_tar(path, members, **options):
    """A tar of names and contents; a `TarInfo` instead of a name is taken as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members.items() if isinstance(members, dict) else members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def sample(key, seed=0, label=None, **other):
    members = {f"{key}.png": encoded(seed)} | ({} if label is None else {f"{key}.cls": str(label).encode()})
    return members | {f"{key}.{ending}": content for ending, content in other.items()}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


def write_folder(tmp_path):
    for i in range(COUNT):
        path = tmp_path / f"pics/{CLASSES[i // 8]}/{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(i))
    return tmp_path / "pics"


def write_tars(tmp_path):
    """Three shards; the labels lie before, after and between the images."""
    for shard in range(3):
        members = {}
        for i in range(8 * shard, 8 * shard + 8):
            members |= dict(sorted(sample(f"{i:02}", i, i // 8, txt=b"a caption").items(), reverse=shard > 0))
        write_tar(tmp_path / f"tars/images-{shard:03}.tar", members)
    (tmp_path / "tars/README.md").write_text("about them")
    return tmp_path / "tars"


def rows_of(count=COUNT):
    return {"image": [encoded(i) for i in range(count)], "label": [i // 8 for i in range(count)]}


def write_parquet(tmp_path):
    """By Hugging Face: structs of bytes and path, and class names in the metadata."""
    types = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=CLASSES))
    content = rows_of()
    images = [{"bytes": content, "path": None} for content in content["image"]]
    (tmp_path / "rows").mkdir()
    for part in range(2):
        half = slice(12 * part, 12 * part + 12)
        table = datasets.Dataset.from_dict({"image": images[half], "label": content["label"][half]}, features=types)
        table.to_parquet(tmp_path / f"rows/test-{part}.parquet", batch_size=5)
    return tmp_path / "rows"


def pixels(samples, row):
    return np.asarray(samples.load(row, 3)[0])


class Indexed(torch.utils.data.Dataset):
    """Images of a data set as tensors; here, because a worker that is spawned cannot import a test."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return torch.from_numpy(pixels(self.samples, index).copy())
