"""Packages that only parts of headlab_log need; pyproject.toml has them as extras."""

import importlib
import types


def needed(module: str, extra: str) -> types.ModuleType:
    """The module, imported. ModuleNotFoundError: it is missing, and which extra brings it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is there and lacks something itself
            raise
        raise ModuleNotFoundError(f'this needs {package}: pip install "headlab_log[{extra}]"',
                                  name=package) from None
