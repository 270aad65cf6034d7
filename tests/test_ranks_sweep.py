"""What headlab sweep --ranks does: points that are trained on several processes."""

import json
import signal
import time

from sweep_testing import bench, one_kind, start, statuses, sweep, table  # noqa: F401

SHARED = ("train.accumulate=2", "train.deterministic=true")


def weights_of(bench, out):  # noqa: F811
    return {run.name: (run / "ckpt/last/model.safetensors").read_bytes() for run in statuses(bench, out)}


def test_a_sweep_on_two_processes_a_point_has_the_numbers_of_one(one_kind):  # noqa: F811
    sweep(one_kind, "one", *SHARED)
    _, said = sweep(one_kind, "two", *SHARED, "--ranks", "2")
    assert table(one_kind, "two") == table(one_kind, "one")
    assert weights_of(one_kind, "two") == weights_of(one_kind, "one")
    for run in statuses(one_kind, "two"):
        assert len(json.loads((run / "manifest.json").read_text())["ranks"]) == 2
    assert "3 points" in said


def test_a_sweep_on_two_processes_stops_and_goes_on(one_kind):  # noqa: F811
    words = (*SHARED, "train.steps=2000", "--ranks", "2")
    process = start(one_kind, "runs", *words)
    while not any(one["status"] == "running" and one.get("step", 0) > 5 for one in statuses(one_kind, "runs").values()):
        assert process.poll() is None, process.communicate()
        time.sleep(.02)
    process.send_signal(signal.SIGUSR1)
    process.communicate()
    assert process.returncode == 75
    assert {one["status"] for one in statuses(one_kind, "runs").values()} <= {"stopped", "finished"}


def test_points_that_cannot_be_shared_fail_with_the_remedy(one_kind):  # noqa: F811
    _, said = sweep(one_kind, "runs", "--ranks", "2", code=2)
    assert "train.accumulate=2" in said


def test_ranks_are_of_this_machine(bench):  # noqa: F811
    _, said = sweep(bench, "runs", "--ranks", "2", "--emit", "joblist", code=2)
    assert "--ranks" in said
