"""Build: sphinx-build -W --keep-going -n -b html docs docs/_build/html. It needs no network."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hardsight import __version__

sys.path.insert(0, str(Path(__file__).parent / "ext"))
# Our callbacks are described without the libraries of their bases, which import for longer than these pages build.
for library, base in {"lightning.pytorch": "Callback", "transformers": "TrainerCallback"}.items():
    sys.modules[library] = cast(Any, SimpleNamespace(**{base: object}))

project = "hardsight"
author = "the hardsight authors"
project_copyright = "the hardsight authors"
version = release = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated",  # docs/ext: what is written from the code itself
    "documented",  # docs/ext: fails on a public name without documentation
]
exclude_patterns = ["_build"]
root_doc = "index"

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3

default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Returns"]  # text: types stand in the signature

# Names of other projects are not linked (that would need their inventories); our own are checked.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|np|numpy|scipy|sparse|pa|pyarrow|pd|pandas|pl|polars|collections|typing)(\..*)?"),
    ("py:.*", r"(pathlib|datetime)(\..*)?"),
    ("py:class", "low|start|command|versions|created|python|platform|device"),  # of several attributes in one line
    # Private.
    ("py:class", r"Run|hardsight\.storedrows\.StoredRows"),
    ("py:class", r"hardsight\.(losses\.grammar\.F|losses\.base\.Terms|userfile\.FileFunction|identity\.Identity)"),
    ("py:.*", r"(Any|Tensor|Path|Callable|Iterable|Iterator|Sequence|Mapping|Collection|Literal|optional|Figure)"),
]

html_theme = "furo"
html_title = f"hardsight {release}"
html_static_path = []
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
