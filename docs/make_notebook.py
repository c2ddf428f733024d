"""Write docs/tour.ipynb from examples/tour.py: python docs/make_notebook.py

A line ``# %%`` begins a cell of code, ``# %% [markdown]`` one of text, as in VS Code, Spyder and Jupytext. The notebook
holds no outputs: it is small, and whoever opens it runs it. A test fails when it is older than the script.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPT, NOTEBOOK = HERE.parent / "examples" / "tour.py", HERE / "tour.ipynb"
CELL = re.compile(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", re.M | re.S)


def cells(script: str) -> list[dict[str, Any]]:
    """The cells of a script, in nbformat 4.5."""
    made: list[dict[str, Any]] = []
    for text, body in CELL.findall(script):
        source = re.sub(r"^# ?", "", body, flags=re.M) if text else body
        kind = {"cell_type": "markdown"} if text else {"cell_type": "code", "execution_count": None, "outputs": []}
        lines = source.strip().splitlines(keepends=True)
        made.append({**kind, "id": f"cell-{len(made)}", "metadata": {}, "source": lines})
    return made


def notebook(script: str) -> str:
    """The notebook of a script, as text."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells(script), "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(SCRIPT.read_text("utf-8")), "utf-8")
