"""The page: one self-contained HTML file from a report's payload."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import ChainableUndefined, Environment, FunctionLoader
from markupsafe import Markup

from hardsight import __version__
from hardsight.report.formatting import written

MOST_BYTES = 15_000_000
_FOLDER = files("hardsight.report")

# Scripts that every section may use, those of single sections, ``section_KEY.js``, and the start.
_SHARED = sorted(file.name for file in _FOLDER.iterdir() if re.match(r"(page|section)_.*\.js", file.name))

# Control characters and direction overrides could hide or reorder the text around them; they are shown as escapes.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_DATA = "\0data\0"  # placeholder for the data; no text of a page can equal it


def render(payload: dict[str, Any]) -> str:
    """The whole page as one HTML text: it needs no other file, contacts no server, and runs only its own script.

    Every text in the payload is untrusted. Without points the page has no script. Pictures that would make the page
    larger than `MOST_BYTES` are left out.
    """
    scripts = [*_SHARED, "page.js"] if "points" in payload else []
    page = fill("page.html.jinja", payload, scripts, ["page.css", "page_review.css"])
    if pictures := payload.get("pictures"):
        room = MOST_BYTES - sum(len(text.encode()) for text in (page, _embedded(payload | {"pictures": []})))
        kept = int((np.cumsum([len(uri) + 3 for uri in pictures]) <= room).sum())
        if kept < len(pictures):
            note = f"{kept:,} of {payload['n']:,} have pictures; more would not fit into the page"
            places = [place if place < kept else -1 for place in payload["points"]["picture"]]
            payload = payload | {"pictures": pictures[:kept], "picture_note": note}
            payload["points"] = payload["points"] | {"picture": places}
    return with_data(page, payload)


def fill(template: str, report: dict[str, Any], scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A page whose policy allows its own scripts and styles, files beside this one, and nothing else; without data."""
    style = "\n".join(map(_beside, styles))
    script = '(() => {\n"use strict";\n' + "\n".join(map(_beside, scripts)) + "\n})();"
    environment = Environment(
        loader=FunctionLoader(_beside), autoescape=True, undefined=ChainableUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"zip": zip, "written": written}
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (  # this script and this style by their hashes, pictures from the page itself, nothing else
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    ours = {"style": Markup(style), "script": Markup(script), "data": Markup(_DATA)}  # noqa: S704 - no untrusted text
    page = environment.get_template(template).render(report=report, policy=policy, version=__version__, **ours)
    return _encodable(page)


def with_data(page: str, data: dict[str, Any]) -> str:
    """A page with the data that its scripts draw."""
    return page.replace(_DATA, _embedded(data))


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element that contains it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _encodable(text)


def _encodable(text: str) -> str:
    """Text that can be written to a file, whatever bytes a file name holds."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(value: Any) -> Any:
    """What jinja prints for a value: text with hidden characters as escapes."""
    if type(value) is not str:
        return value
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), value)


def _beside(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
