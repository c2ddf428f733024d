"""The page: one self-contained HTML file from a report's payload."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import ChainableUndefined, Environment, FunctionLoader
from markupsafe import Markup

from hardsight import __version__
from hardsight.errors import InputError
from hardsight.report.formatting import written

_FOLDER = files("hardsight.report")

# What every section may use, the scripts of sections that draw, ``section_KEY.js``, and the start.
_SCRIPTS = (
    *sorted(file.name for file in _FOLDER.iterdir() if re.match(r"(page|section)_.*\.js", file.name)),
    "page.js",
)

# Control characters and direction overrides could hide or reorder the text around them; they are shown as escapes.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def render(payload: dict[str, Any]) -> str:
    """The whole page as one HTML text: it needs no other file, asks no host, and runs no script but its own.

    Every text in the payload is untrusted. Without points the page has no script.
    """
    return fill("page.html.jinja", payload, payload, _SCRIPTS if "points" in payload else (), ("page.css",))


def fill(
    template: str, shown: dict[str, Any], data: dict[str, Any], scripts: Sequence[str], styles: Sequence[str]
) -> str:
    """A page whose policy allows its own scripts and styles, files beside this one, and nothing else.

    The template writes `shown`, as ``report``; the scripts draw `data`.
    """
    style = "\n".join(_beside(name) for name in styles)
    script = '(() => {\n"use strict";\n' + "\n".join(_beside(name) for name in scripts) + "\n})();"
    environment = Environment(
        loader=FunctionLoader(_beside), autoescape=True, undefined=ChainableUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"zip": zip, "written": written}
    policy = (  # this script and this style by their hashes, pictures from the page itself, no more
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = environment.get_template(template).render(
        report=shown,
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own files
        data=Markup(_embedded(data)),  # noqa: S704 - escaped for a script element
        version=__version__,
    )
    # A file name may hold bytes that are no text; the page must be encodable all the same.
    return page.encode("utf-8", "replace").decode("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(payload: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise InputError(f"payload: expected finite numbers and None, got {error}; write None for NaN.") from error
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _shown(value: Any) -> Any:
    """What jinja prints for a value: text with hidden characters as escapes."""
    if type(value) is not str:
        return value
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), value)


def _beside(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
