"""`prune --tune` and `convert --tune`, stopped some ten times each. Run by `scripts/test --slow`; with fewer
stops: tests/test_tuning_resumed.py."""

import errno
import signal

import pytest

import test_tuning_resumed
from test_tuning_resumed import fault, source, whole  # noqa: F401


@pytest.mark.parametrize("name,at,number,error", [
    ("prune", 9, signal.SIGKILL, 0), ("prune", 31, 0, errno.ENOSPC), ("prune", 24, signal.SIGTERM, 0),
    ("sliced", 40, signal.SIGKILL, 0), ("gated", 21, signal.SIGKILL, 0), ("gated", 33, signal.SIGINT, 0),
    ("grouped", 26, 0, errno.ENOSPC), ("grouped", 14, signal.SIGUSR1, 0)])
def test_stopped_ten_times_it_ends_as_if_never_stopped(source, fault, whole, tmp_path,  # noqa: F811
                                                       name, at, number, error):
    test_tuning_resumed.test_stopped_again_and_again_it_ends_as_if_never_stopped(
        source, fault, whole, tmp_path, name, at, 17, number, error)
