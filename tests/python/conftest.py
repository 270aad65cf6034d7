"""Tests of the package headlab, in a Python that has it and torch: `.ci/run python` makes one. In a
Python without them nothing here is collected."""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("headlab") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import pytest
    import torch

    @pytest.fixture(autouse=True)
    def same_numbers():
        torch.manual_seed(7)
        torch.set_num_threads(1)
