"""`headlab compare`: a training that chooses a rate and is clearly behind at half of its steps is stopped there."""

import json
import pathlib

from comparison_testing import TASK, compare

# Some seconds of training each: what runs is looked at every five.
STEPS = 16000
COMPARISON = """tasks: [small.yaml]
kinds: [mha]
rates: {from: 4.0e-3, factor: 1000, most: 3}
choose_seeds: [9]
seeds: [1, 2]
"""


def test_a_rate_that_is_behind_at_half_is_given_up_and_stays_so(tmp_path):
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over a lazy dog, and naps.\n" * 60)
    task = TASK.replace("{kind: induction, symbols: 16, context: 16, eval_examples: 64}",
                        "{kind: char, path: text.txt, context: 16}")
    task = task.replace("every: 4}", "every: 1000}").replace("every: 4,", "every: 1000,")
    (tmp_path / "small.yaml").write_text(task.replace("steps: 24", f"steps: {STEPS}").replace(
        "eval_every: 8", f"eval_every: {STEPS // 16}"))
    (tmp_path / "c.yaml").write_text(COMPARISON)
    # The whole trainings are not what this is about: they are short.
    words = ["--skip-pruning", "--json", "--jobs", "1"]
    printed, _ = compare(tmp_path, *words)
    arm, = json.loads(printed)["tasks"][0]["arms"]
    tried = {one["rate"]: one for one in arm["rate"]["tried"]}
    assert arm["rate"]["chosen"] == 4e-3 and not arm["rate"]["at_edge"]
    behind = tried[4e-6]
    assert behind["lost"].startswith("it was given up: at step ") and behind["val/loss"] is None
    assert any("it was given up" in notice for notice in arm["notices"])
    runs = {path: json.loads(path.read_text()) for path in (tmp_path / "runs/small").glob("*-s9/status.json")}
    stopped = [status for status in runs.values() if status["status"] == "stopped"]
    assert stopped and all(STEPS // 2 <= status["step"] < STEPS for status in stopped)
    before = {path: path.read_bytes() for path in runs}
    again, _ = compare(tmp_path, *words)  # nothing is trained for it again
    assert json.loads(again)["tasks"][0]["arms"][0]["rate"] == arm["rate"]
    assert {path: path.read_bytes() for path in before} == before
