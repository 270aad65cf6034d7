"""Packages that only parts of headlab_log need; pyproject.toml has them as extras."""

import importlib
import pathlib
import types

FOLDER = pathlib.Path(__file__).resolve().parents[1]  # of a checkout, or site-packages


def how_to_get(package: str, extra: str) -> str:
    """A command that works where headlab_log lies: no package index has it by this name."""
    if (FOLDER / "pyproject.toml").exists():
        return f'pip install "{FOLDER}[{extra}]"'
    return f"pip install {package}"


def needed(module: str, extra: str) -> types.ModuleType:
    """The module, imported. ModuleNotFoundError: it is missing, and how to get it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is there and lacks something itself
            raise
        raise ModuleNotFoundError(f"this needs {package}: {how_to_get(package, extra)}",
                                  name=package) from None
