"""The studies: importing this registers all of them. One file holds one study, or several with the same cells."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
