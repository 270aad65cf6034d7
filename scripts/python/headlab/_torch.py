"""Asks for the torch that the extension was built against: another one would crash, not complain."""

import importlib.metadata
import re

BUILT_WITH = "2.11"


def require_torch(version: str) -> None:
    if re.match(r"\d+\.\d+", version).group() != BUILT_WITH:
        raise ImportError(f"headlab is built with torch {BUILT_WITH}, here is torch {version}: "
                          f'pip install "torch=={BUILT_WITH}.*"')


try:
    require_torch(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    import torch  # one that no package manager knows: what is imported says which it is

    require_torch(torch.__version__)

import torch  # noqa: E402,F401  its libraries are those that the extension links
