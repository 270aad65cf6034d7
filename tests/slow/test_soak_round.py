"""One round of scripts/studies/soak.py: a model of every host, of eight kinds of heads, is killed, stopped and left
without disk until it has finished, and ends as one that was left alone. Run by `scripts/test --slow`."""

import os

from test_soak import soak


def test_a_round_of_kills_signals_and_full_disks_loses_nothing():
    result, said = soak("--minutes", "0", "--seed", "3")
    assert result["counts"]["runs that ended alike"] == 9
    assert {"SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1"} <= set(result["counts"])
    assert result["full_disks"] or os.geteuid() != 0 or "root" in said
