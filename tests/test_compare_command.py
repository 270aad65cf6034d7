"""`headlab compare`: arms that are trained, chosen and compared; a comparison that is cut short goes on.
scripts/studies/compare_heads.py runs one; its tables are what the command reports."""

import csv
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

import pytest
from matplotlib import pyplot as plt

from comparison_testing import COMPARISON, TASK, compare, folder_of, start
from conftest import ROOT, in_this_python, program

sys.path.insert(0, str(ROOT / "scripts/studies"))
import compare_heads  # noqa: E402
import headlab_log as hl  # noqa: E402
from headlab_log import plots  # noqa: E402


@pytest.fixture
def bench(tmp_path):
    (tmp_path / "small.yaml").write_text(TASK)
    (tmp_path / "c.yaml").write_text(COMPARISON)
    return tmp_path


@pytest.fixture
def finished(bench, compared):
    """Another folder with the runs of the comparison, and without its results."""
    shutil.copytree(compared[0] / "runs/small", bench / "runs/small", symlinks=True)
    return bench


def arms_of(printed):
    task, = json.loads(printed)["tasks"]
    return {arm["name"]: arm for arm in task["arms"]}


def runs_below(bench, out="runs"):
    return sorted((bench / out).glob("small/[!.]*/status.json"))


def metrics(run):
    return [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]


def final_losses(arm):
    return [[row["val/loss"] for row in metrics(run["run"]) if "val/loss" in row][-1]
            for run in arm["runs"]]


def sessions(bench, out="runs"):
    return {path.parent.name: len(json.loads(path.read_text()).get("previous", []))
            for path in (bench / out).glob("small/*/manifest.json")}


@pytest.fixture(scope="module")
def told(compared):
    """The table of that, and what was said: nothing is trained again."""
    return compare(compared[0])


def test_rates_are_chosen_by_short_trainings_on_another_seed(compared):
    bench, printed, _ = compared
    arm = arms_of(printed)["wider"]
    tried = {one["rate"]: one["val/loss"] for one in arm["rate"]["tried"]}
    assert sorted(tried) == [1e-3, 4e-3]
    assert arm["rate"]["chosen"] == min(tried, key=tried.get)
    assert arm["rate"]["at_edge"]  # of two rates both are
    short = [json.loads(path.read_text()) for path in runs_below(bench) if path.parent.name.endswith("s9")]
    assert {one["step"] for one in short} == {6}
    assert len(short) == 4  # two rates of mha, which `again` shares, and two of wider
    folder, = (bench / "runs/comparisons").iterdir()
    configs = "".join(path.read_text() for path in (folder / "choose/configs").iterdir())
    assert set(re.findall(r"warmup: (\S+?)[,}\n]", configs)) == {"1"}
    floors = set(map(float, re.findall(r"min_lr: (\S+?)[,}\n]", configs)))
    assert floors == {1e-4, 4e-4}  # a tenth of the peak, as it is written


def test_figures_are_those_of_the_runs(compared):
    _, printed, _ = compared
    arms = arms_of(printed)
    for name in ("mha", "wider", "again"):
        values = arms[name]["metrics"]["val/loss"]["values"]
        assert values == pytest.approx(final_losses(arms[name]))
        assert [run["seed"] for run in arms[name]["runs"]] == [1, 2, 3]
    differences = [a - b for a, b in zip(final_losses(arms["wider"]), final_losses(arms["mha"]))]
    found = arms["wider"]["metrics"]["val/loss"]["difference"]
    assert found["values"] == pytest.approx(differences)
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    half = 4.302652730 * deviation / math.sqrt(3)
    assert found["interval"] == pytest.approx([mean - half, mean + half], rel=1e-6)
    t = mean / (deviation / math.sqrt(3))
    assert found["p"] == pytest.approx(1 - abs(t) / math.sqrt(t * t + 2), rel=1e-6)  # closed, df 2
    assert found["p_holm"] == pytest.approx(min(1, 2 * found["p"]))
    assert found["bootstrap"] is None
    assert arms["mha"]["metrics"]["val/loss"]["difference"] is None


def test_what_is_reported_is_of_the_test_part_and_what_is_chosen_by_of_validation(bench):
    (bench / "c.yaml").write_text(COMPARISON.replace(
        "{name: again, attention: mha}, linformer", "{name: large, set: {train.batch: 8}}") + "lengths: [0.5, 1]\n")
    printed, _ = compare(bench, "data.test=own", "train.steps=8", "--skip-pruning", "--json")
    task, = json.loads(printed)["tasks"]
    mha, wider, large = task["arms"]
    assert large["metrics"]["test/loss"]["difference"] is None and large["equal_time"]["val/loss"] is None
    assert large["effective_speedup"] is None
    assert "it differs from the baseline in train.batch; no difference is formed" in large["notices"]
    assert task["measured_on"]["split"] == "test" and task["measured_on"]["whole_split"] == 1
    assert list(wider["metrics"]) == ["test/accuracy", "test/loss"]
    for arm in (mha, wider):
        ends = [metrics(run["run"])[-1] for run in arm["runs"]]
        assert all(run["machine"] for run in [*arm["runs"], *arm["lengths"][0]["runs"]])
        assert arm["metrics"]["test/loss"]["values"] == [row["test/loss"] for row in ends]
        assert all(row["test/loss"] != row["val/loss"] for row in ends)
        assert [one["test/loss"] for one in arm["lengths"] if one["length"] == 1] == [
            arm["metrics"]["test/loss"]["values"]]
        assert all("val/loss" in one for one in arm["rate"]["tried"])
        assert arm["curve"][-1]["val/loss"] == pytest.approx(statistics.fmean(row["val/loss"] for row in ends))
    assert set(task["references"]["chance"]) == {"test/loss", "test/accuracy", "comment"}
    assert task["statistics"]["solved"]["metric"] == "test/accuracy"
    page = (folder_of(bench) / "compare.md").read_text()
    assert "Measured on the whole test split, " in page and "| test/loss [nat] after 0.5 of the steps |" in page
    assert "before the first evaluation with such a val/accuracy" in page
    assert re.search(r"- rates, by their mean final validation loss: mha 0.00\d with \d.\d+ on 1 seed, next", page)
    task = hl.open_comparison(bench / "runs")["small"]
    assert task.loss == "test_loss" and task.losses.sel(arm="wider").values.tolist() == (
        wider["metrics"]["test/loss"]["values"])
    assert list(task.differences["metric"].values)[0] == "test_loss"  # the loss first
    assert task.references.test_loss.sel(reference="chance").item() == pytest.approx(math.log(16), abs=1)
    figure = plots.comparison(task)
    assert {text.get_text() for text in figure.axes[0].texts} >= {"chance (test)"}
    plt.close(figure)


def test_a_task_that_is_solved_or_not_is_compared_by_what_was_solved(compared, told):
    """24 updates solve nothing: all seeds are censored, and no mean has a star."""
    _, printed, _ = compared
    task, = json.loads(printed)["tasks"]
    assert task["statistics"] == {
        "metrics": [{"name": "val/loss", "units": "nat", "better": "lower"},
                    {"name": "val/accuracy", "units": "1", "better": "higher"}],
        "solved": {"metric": "val/accuracy", "at": .9}, "arms": 2, "strictest_p": .025, "power": .8}
    arms = arms_of(printed)
    same = {"p": 1, "p_holm": 1, "reported": False}
    assert arms["wider"]["solved"] == {"seeds": [False] * 3, "count": 0, "of": 3, "fisher": same,
                                       "updates": [None] * 3, "median": None, "log_rank": same}
    assert arms["mha"]["solved"] == {**arms["wider"]["solved"], "fisher": None, "log_rank": None}
    for metric in arms["wider"]["metrics"].values():
        assert not metric["difference"]["reported"] and metric["difference"]["tellable"] is None
    table, _ = told
    assert "Solved: val/accuracy of at least 0.9 at the end." in table
    assert "Where 0 of 3 seeds of mha solved it, Fisher's test tells no other number from that" in table
    head, _, *rows = [line.strip("|\n").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {len(head)}
    row = dict(zip(map(str.strip, head), rows[1]))
    assert row["seeds that solved it"] == "0 of 3" and row["updates until solved, median"] == "> 24"
    assert "could be told" not in row and "less mha's [95 %]" not in row


def test_of_what_is_no_such_task_the_table_has_the_difference_that_could_be_told(bench):
    """Twelve updates of memorization: its own accuracy, and an arm that differs in nothing else than its heads' width."""
    (bench / "small.yaml").write_text(TASK.replace("induction", "memorization"))
    (bench / "c.yaml").write_text(COMPARISON.replace("[1.0e-3, 4.0e-3]", "1.0e-3").replace(", linformer", "")
                                  + "lengths: [0.5, 1]\n")
    printed, _ = compare(bench, "train.steps=12", "--skip-pruning", "--json")
    task, = json.loads(printed)["tasks"]
    assert task["settled"]["tau"] is not None and task["settled"]["interval"][0] <= task["settled"]["tau"]
    assert [metric["name"] for metric in task["statistics"]["metrics"]] == ["val/loss", "val/macro_accuracy"]
    assert task["statistics"]["solved"] is None
    wider = arms_of(printed)["wider"]
    assert list(wider["metrics"]) == ["val/loss", "val/macro_accuracy"] and wider["solved"] is None
    found = wider["metrics"]["val/loss"]["difference"]
    # By scipy: effect of the noncentral t distribution of two degrees with power .8 at .025, two arms.
    assert found["tellable"] == pytest.approx(4.624820368 * found["std"], rel=1e-6)
    assert arms_of(printed)["again"]["metrics"]["val/loss"]["difference"]["tellable"] is None
    table, _ = compare(bench, "train.steps=12", "--skip-pruning")
    assert "val/macro_accuracy, higher is better, mean ± sd" in table
    assert "in 80 of 100 trials, at p below 0.025 (Holm's strictest step, 0.05 over 2 arms)" in table
    assert task["settled"]["text"] in table
    table, lengths = table.split("Each length is a training of its own")
    assert "| val/loss [nat] after 0.5 of the steps |" in lengths
    head, _, *rows = [line.strip("|\n").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {len(head)} and sum("could be told" in cell for cell in head) == 2


def test_an_arm_with_the_baselines_settings_is_trained_once_and_not_reported(compared):
    _, printed, _ = compared
    arms = arms_of(printed)
    again = arms["again"]["metrics"]["val/loss"]["difference"]
    assert again["values"] == [0, 0, 0]
    assert (again["p"], again["interval"], again["reported"]) == (1, [0, 0], False)
    assert [run["run"] for run in arms["again"]["runs"]] == [run["run"] for run in arms["mha"]["runs"]]
    assert any("it has the settings of 'mha'" in notice for notice in arms["again"]["notices"])


def test_parameters_are_matched_and_kinds_without_a_place_have_a_dash(compared, told):
    _, printed, _ = compared
    arms = arms_of(printed)
    assert arms["wider"]["adapted"] and abs(arms["wider"]["excess"]) <= .02
    assert arms["wider"]["d_ff"] < arms["mha"]["d_ff"] == 64
    assert arms["linformer"]["state"] == "impossible"
    assert "| linformer | - |" in told[0] and "('linformer' heads cannot be causal)" in told[0]


def test_the_table_names_what_it_was_measured_on(compared, told):
    bench, printed, _ = compared
    table, said = told
    assert "64 examples" in table and "seeds 1, 2, 3" in table
    assert "chosen by validation loss of 0.001, 0.004 on seed 9 after 6 of 24 steps" in table
    assert "val/accuracy" in table and "val/loss [nat]" in table
    assert f"code {arms_of(printed)['mha']['code']}: mha, wider, again" in table
    folder, = (bench / "runs/comparisons").iterdir()
    assert (folder / "compare.md").read_text() == table
    assert json.loads((folder / "compare.json").read_text()) == json.loads(printed)
    assert said.count("finished before") == 10  # 4 that choose, 6 that are compared


def test_curves_hold_means_and_say_how_much_compute_a_loss_takes(compared):
    _, printed, _ = compared
    arms = arms_of(printed)
    curve = arms["mha"]["curve"]
    assert [point["step"] for point in curve] == [8, 16, 24]
    mean = statistics.fmean(arms["mha"]["metrics"]["val/loss"]["values"])
    assert curve[-1]["val/loss"] == pytest.approx(mean)
    assert curve[-1]["flops"] == pytest.approx(3 * arms["mha"]["flops_per_token"] * 24 * 4 * 16)
    assert arms["mha"]["effective_speedup"] is None  # after 24 updates it is not above chance
    assert arms["mha"]["equal_time"]["val/loss"] == pytest.approx(mean)


def test_chance_stands_below_the_arms_and_what_is_not_above_it_has_no_speedup(compared, told):
    _, printed, _ = compared
    task, = json.loads(printed)["tasks"]
    chance = {"val/loss": math.log(16), "val/accuracy": 1 / 16}
    assert list(task["references"]) == ["chance"]
    assert {name: task["references"]["chance"][name] for name in chance} == pytest.approx(chance)
    table, _ = told
    head, *rows = [line.strip("|\n ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    last = dict(zip(head, rows[-1]))
    assert (last["arm"], last["val/loss [nat], mean ± sd"], last["rate"]) == ("chance", "2.7726", "-")
    guessed = 1 / 16 + 1.959964 * math.sqrt(15 / 16 / 16 / task["measured_on"]["tokens"])
    above = {}
    for name, arm in arms_of(printed).items():
        if arm["state"] != "compared":
            continue
        values = arm["metrics"]["val/accuracy"]["values"]
        low = statistics.fmean(values) - 4.302652730 * statistics.stdev(values) / math.sqrt(3)
        above[name] = low > guessed
        assert arm["above_chance"] == above[name]
        assert above[name] or arm["effective_speedup"] is None
    assert ("No arm is above chance (a guess: any of 16 symbols)" in table) is not any(above.values())


def test_what_the_heads_did_stands_in_the_row(compared):
    _, printed, _ = compared
    heads = arms_of(printed)["mha"]["heads"]
    assert 0 < heads["entropy"] < math.log(16)
    assert 0 < heads["first_token"] < 1
    assert heads["max_logit"] is not None
    assert heads["built"] == 2 and 0 <= heads["surviving"] <= 2


def test_heads_that_survive_are_ranked_on_the_training_split(compared):
    """Another entry is of a version that ranked and judged on one split, and is measured anew."""
    bench, _, _ = compared
    folder, = (bench / "runs/comparisons").iterdir()
    kept = json.loads((folder / "surviving_heads.json").read_text())
    assert kept and all(one["ranked_on"] == "train" for one in kept.values())


def test_a_comparison_killed_in_either_stage_ends_as_one_that_never_was(finished, compared):
    """Of each stage some trainings are left."""
    words, runs = ["--skip-pruning", "--json"], [path.parent for path in runs_below(finished)]
    choosing, *others = [next(run for run in runs if run.name.endswith(seed)) for seed in ("s9", "s2", "s3")]
    for run in choosing, *others:
        shutil.rmtree(run)

    def killed_when_begun(*of):
        process = start(finished, *words)
        while not any((run / "status.json").is_file() for run in of):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    killed_when_begun(choosing)
    killed_when_begun(*others)
    parts, _ = compare(finished, *words)
    for name in ("mha", "wider"):
        assert arms_of(parts)[name]["metrics"] == arms_of(compared[1])[name]["metrics"]
    assert set(sessions(compared[0]).values()) == {0}
    assert len(sessions(finished)) == len(sessions(compared[0])) == 10


def test_a_signal_stops_a_comparison_and_says_how_it_goes_on(bench):
    process = start(bench, "train.steps=100000")
    while not runs_below(bench):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(.01)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    assert process.returncode == 75, said
    assert "the same command goes on" in said


def test_a_signal_in_the_trainings_begins_no_pruning(bench):
    """Which takes minutes, of arms whose trainings had all ended by then."""
    (bench / "c.yaml").write_text(COMPARISON.replace("[1.0e-3, 4.0e-3]", "1.0e-3").replace("[1, 2, 3]", "[1, 2]"))
    process = start(bench, "train.steps=400", "train.eval_every=100", "log.every=50", "log.stats_every=0",
                    "train.checkpoint.every=100")

    def finished():
        states = [json.loads(path.read_text())["status"] for path in runs_below(bench)
                  if not path.parent.name.endswith("s9")]
        return states.count("finished"), len(states)

    while finished()[0] < 2 or finished()[1] < 4:  # an arm, and two of the next
        assert process.poll() is None, process.communicate()[1]
        time.sleep(.01)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    assert process.returncode == 75, said
    assert "prunes" not in said


def manifests_of_wider(bench):
    return [path.parent / "manifest.json" for path in runs_below(bench)
            if not path.parent.name.endswith("s9")
            and "head_dim: 16" in (path.parent / "config.yaml").read_text()]


def change(manifest, part, value):
    """The digest of a part of the code that a run was trained by."""
    known = json.loads(manifest.read_text())
    known["code"] |= {part: value}
    manifest.write_text(json.dumps(known))


def test_a_point_that_fails_leaves_no_statistic_of_fewer_seeds(finished):
    manifest, = [path for path in manifests_of_wider(finished) if path.parent.name.endswith("s2")]
    change(manifest, "kinds", {"mha": "0" * 64})
    printed, _ = compare(finished, "--skip-pruning", "--json", code=4)
    wider = arms_of(printed)["wider"]
    assert wider["state"] == "incomplete"
    assert "seed 2 is failed" in wider["reason"] and "tag=WORD" in wider["reason"]
    assert wider["metrics"] == {}
    assert arms_of(printed)["mha"]["state"] == "compared"


def test_trainings_of_different_code_are_not_compared(finished):
    wider = manifests_of_wider(finished)
    assert len(wider) == 3
    for manifests, said in ((wider[:1], "its seeds were trained by different code"), (wider, "than the baseline")):
        for manifest in manifests:
            change(manifest, "rest", "0" * 64)
        arm = arms_of(compare(finished, "--skip-pruning", "--json")[0])["wider"]
        assert arm["state"] == "incomplete" and arm["metrics"] == {}
        assert said in arm["reason"]


def test_a_comparison_on_two_processes_has_the_weights_of_one(bench):
    (bench / "small.yaml").write_text(TASK.replace("batch: 4,", "batch: 4, accumulate: 2, deterministic: true,"))
    (bench / "c.yaml").write_text(COMPARISON.replace("[mha, ", "[mha, moh]\n#").replace("seeds: [1, 2, 3]", "seeds: [1, 2]"))
    compare(bench, out="one")
    compare(bench, "--ranks", "2", out="two")
    one, two = ({run.parents[2].name: run.read_bytes() for run in (bench / out).glob("small/*/ckpt/last/model.safetensors")}
                for out in ("one", "two"))
    assert len(one) >= 4
    assert one == two


def test_a_dry_run_counts_the_points_of_both_stages_and_trains_nothing(bench):
    printed, _ = compare(bench, "--dry-run", "--json")
    costs = json.loads(printed)
    assert costs["points"] == costs["left"] == 10
    assert {one["point"]: (one["points"], one["steps"]) for one in costs["configs"]} == {
        "small mha": (3, 24), "small mha, to choose": (2, 6),
        "small wider": (3, 24), "small wider, to choose": (2, 6)}
    assert costs["hours"] > 0
    assert not (bench / "runs").exists()


def test_a_rate_at_which_a_training_diverges_loses(bench):
    few = COMPARISON.replace("4.0e-3", "1.0e+30").replace("{name: wider, set: {model.head_dim: 16}}, ", "")
    (bench / "c.yaml").write_text(few.replace("[1, 2, 3]", "[1, 2]"))
    printed, said = compare(bench, "train.steps=8", "--skip-pruning", "--json")
    arm = arms_of(printed)["mha"]
    assert "not finite" in said
    assert arm["rate"]["tried"][1] == {"rate": 1e30, "val/loss": None, "seeds": 0, "lost": "it diverged"}
    assert arm["rate"]["chosen"] == 1e-3 and arm["state"] == "compared"
    assert "rate 1e+30: it diverged" in arm["notices"]


SEARCH = """tasks: [small.yaml]
kinds: [mha, {name: wider, set: {model.head_dim: 16}}]
rates: {from: 1.0e-3, factor: 4, most: 5}
choose_seeds: [8, 9]
seeds: [1, 2]
lengths: [0.5, 1]
"""


def test_a_search_for_rates_widens_until_the_best_lies_inside(bench):
    (bench / "c.yaml").write_text(SEARCH)
    printed, _ = compare(bench, "--skip-pruning", "--json")
    task, = json.loads(printed)["tasks"]
    assert task["search"] == {"from": 1e-3, "factor": 4, "most": 5} and task["rates"] == []
    for arm in task["arms"]:
        rate, tried = arm["rate"], {one["rate"]: one for one in arm["rate"]["tried"]}
        assert set(tried) <= {6.25e-5, 2.5e-4, 1e-3, 4e-3, 1.6e-2, 6.4e-2, .256} and 3 <= len(tried) <= 5
        best, grid = rate["chosen"], sorted(tried)
        if not rate["at_edge"]:  # both neighbours were trained with both seeds, or lost
            for neighbour in (best / 4, best * 4):
                one = tried[min(grid, key=lambda each: abs(each - neighbour))]
                assert one["rate"] == pytest.approx(neighbour)
                assert one["seeds"] == 2 or one["lost"]
                assert one["lost"] or one["val/loss"] >= tried[best]["val/loss"]
        assert tried[best]["seeds"] == 2
        assert rate["runner_up"]["val/loss"] >= tried[best]["val/loss"]
        chosen_on = [json.loads(path.read_text()) for path in runs_below(bench)
                     if path.parent.name.endswith(("s8", "s9"))]
        assert {one["step"] for one in chosen_on if one["status"] == "finished"} == {24}
    ends = {json.loads(path.read_text())["step"] for path in runs_below(bench)
            if path.parent.name.endswith(("s1", "s2"))}
    assert ends == {12, 24}  # half the length is a training of its own
    for arm in task["arms"]:
        half, full = arm["lengths"]
        assert (half["length"], full["length"]) == (.5, 1)
        assert full["val/loss"] == arm["metrics"]["val/loss"]["values"] == pytest.approx(final_losses(arm))
        assert len(half["val/loss"]) == 2 and half["val/loss"] != full["val/loss"]
    with open(pathlib.Path(json.loads(printed)["comparison"]) / "compare.csv", newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    assert [float(row[f"lengths.0.5.val/loss.{seed}"]) for seed in (1, 2)] == task["arms"][0]["lengths"][0]["val/loss"]
    assert task["settled"]["settled"] is None and "not asked" in task["settled"]["text"]
    before = sessions(bench)
    again, _ = compare(bench, "--skip-pruning", "--json")
    assert arms_of(again) == arms_of(printed) and sessions(bench) == before


def test_a_dry_run_counts_trainings_of_every_length(bench):
    (bench / "c.yaml").write_text(SEARCH)
    costs = json.loads(compare(bench, "--dry-run", "--json")[0])
    assert {one["point"]: (one["points"], one["steps"]) for one in costs["configs"]} == {
        f"small {arm}{what}": of for arm in ("mha", "wider")
        for what, of in {"": (2, 24), ", length 0.5": (2, 12), ", to choose, at most": (8, 24)}.items()}
    whole, half = (next(one for one in costs["configs"] if one["point"] == f"small mha{what}")
                   for what in ("", ", length 0.5"))
    assert half["flops"] == whole["flops"] / 2 and half["seconds"] == whole["seconds"] / 2


def test_a_kind_is_compared_with_another_by_a_protocol(bench):
    (bench / "c.yaml").write_text(COMPARISON.replace("[1.0e-3, 4.0e-3]", "1.0e-3").replace("[1, 2, 3]", "[1, 2]"))
    process = subprocess.run(
        [os.path.abspath(program()), "compare", "talking", "--against", "mha", "--protocol", "c.yaml", "--jobs",
         "2", "--skip-pruning", "--figure", "--json"], cwd=bench, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert list(arms_of(process.stdout)) == ["mha", "talking"]
    assert "4 points, 4 to train: " in process.stderr.split(" begins")[0]  # told before it begins
    folder, = (bench / "runs/comparisons").iterdir()
    assert folder.name.startswith("talking-against-mha-")
    assert (folder / "compare.png").read_bytes()[:4] == b"\x89PNG" and (folder / "compare.svg").exists()
    assert "wider" not in (folder / "compare.yaml").read_text()
    for words in (["talkin"], ["talking", "--against", "mh"]):
        process = subprocess.run([os.path.abspath(program()), "compare", *words, "--protocol", "c.yaml"],
                                 cwd=bench, capture_output=True, text=True)
        assert process.returncode == 2 and "did you mean" in process.stderr


def test_text_is_compared_by_its_loss_alone(bench):
    (bench / "text.txt").write_text("The quick brown fox jumps over a lazy dog, and naps.\n" * 60)
    text = TASK.replace("{kind: induction, symbols: 16, context: 16, eval_examples: 64}",
                        "{kind: char, path: text.txt, context: 16}")
    (bench / "small.yaml").write_text(text.replace("eval_batches: 1,", "eval_batches: 1, eval_batch: 4,"))
    (bench / "c.yaml").write_text(COMPARISON.replace("[1.0e-3, 4.0e-3]", "1.0e-3").replace("[1, 2, 3]", "[1, 2]"))
    printed, said = compare(bench, "--skip-pruning", "--json")
    arms = arms_of(printed)
    assert list(arms["wider"]["metrics"]) == ["val/loss"]
    assert "choose" not in said  # there is one rate
    assert arms["wider"]["rate"] == {"chosen": 1e-3, "at_edge": False, "runner_up": None, "tried": []}
    notice, few, *_ = json.loads(printed)["tasks"][0]["notices"]
    assert "on the first 4 validation examples" in notice
    assert few.startswith("2 seeds do not show how far seeds differ. No difference is starred.")
    found = arms["wider"]["metrics"]["val/loss"]["difference"]
    assert found["tellable"] is None and not found["reported"]
    examples = [point["examples"] for point in arms["mha"]["curve"]]
    assert examples[:2] == [4, 4] and examples[2] > 4


@pytest.mark.parametrize("old, new, message", [  # others: tests/experiments/comparison/test_comparison_file.cpp
    ("small.yaml", "none.yaml", "none.yaml"),
    ("model.head_dim: 16", "model.hed_dim: 16", "unknown key; did you mean 'head_dim'?"),
])
def test_mistakes_end_with_2_and_what_is_wrong(bench, old, new, message):
    (bench / "c.yaml").write_text(COMPARISON.replace(old, new))
    _, said = compare(bench, code=2)
    assert message in said


def study(*words):
    """The script, without a start of Python."""
    return in_this_python(compare_heads.main, "--program", program(), *words)


@pytest.fixture(scope="module")
def results(compared):
    """The folder of the comparison with the study's results, and what that printed."""
    bench = compared[0]
    script = [sys.executable, str(ROOT / "scripts/studies/compare_heads.py"), "--program", program()]
    done = subprocess.run([*script, bench / "c.yaml", "--speed-rounds", "1", "--out", bench / "runs",
                           "--results", bench / "results.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return bench, done.stdout


def rows_of(text):
    """Of each table in it the rows by their first cell."""
    tables = []
    for line in text.splitlines():
        if line.startswith("| kind "):
            tables.append({})
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            tables[-1][cells[0].strip("` ")] = cells
    return tables


def test_a_row_an_arm_with_its_figures(results):
    bench, text = results
    report = json.loads((bench / "results.json").read_text())
    task, = report["tasks"]
    assert 0 < 3600 * task["choosing_hours"] < sum(run["wall_s"] for arm in task["arms"] for run in arm.get("runs", []))
    arms = {arm["name"]: arm for arm in task["arms"]}
    costs, measured = rows_of(text)
    assert list(costs) == list(measured) and next(iter(costs)) == "mha"
    assert set(costs) == {"mha", "wider", "again", "linformer"} == set(arms)
    metric = arms["wider"]["metrics"]["val/accuracy"]
    assert f"{metric['mean']:.3f} ± {metric['std']:.3f}" in measured["wider"]
    assert measured["wider"][3] == f"{arms['wider']['solved']['count']} of 3"  # induction is solved or not
    assert measured["mha"][4] == "-" and measured["linformer"][2] == "-"
    assert costs["mha"][-1] == "1.00" and arms["wider"]["steps_per_s"] > 0
    # Keys and values of one layer of two heads of 8, and of two of 16.
    assert costs["mha"][5] == f"{2 * 16 * 4}" and costs["wider"][5] == f"{2 * 32 * 4}"


def test_results_say_whence_and_hold_no_path_of_the_machine(results):
    bench, text = results
    kept = (bench / "results.json").read_text()
    assert str(bench) not in kept and str(bench) not in text
    said, = [line for line in text.splitlines() if "headlab compare c.yaml`" in line]
    assert said.count(";") == 3 and " hours of one thread, and 0.0 to choose" in said  # when, on what, by which commit, how long
    assert "seeds 1, 2, 3" in text and "64 examples" in text


def test_results_are_drawn_and_told_again_without_a_training(results, tmp_path):
    bench, text = results
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- side by side -->\nold\n<!-- end of side by side -->\nbelow\n")
    done = study(bench / "results.json", "--page", page, "--picture",
                 tmp_path / "losses.png", "--out", tmp_path / "none")
    assert done.returncode == 0, done.stderr
    assert done.stdout == text and not (tmp_path / "none").exists()
    assert page.read_text() == (
        f"above\n<!-- side by side -->\n{text}<!-- end of side by side -->\nbelow\n")
    assert (tmp_path / "losses.png").stat().st_size > 10_000


def test_a_task_alone_takes_its_place_among_the_others(results, tmp_path):
    bench, _ = results
    kept = json.loads((bench / "results.json").read_text())
    other = {**kept["tasks"][0], "name": "other", "command": "headlab compare c.yaml --task other"}
    path = tmp_path / "results.json"

    path.write_text(json.dumps({**kept, "tasks": [other, {**kept["tasks"][0], "arms": []}]}))
    done = study(bench / "c.yaml", "--task", "small", "--speed-rounds", 0, "--out", bench / "runs", "--results", path)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(path.read_text())["tasks"]
    assert first == other and second["name"] == "small" and len(second["arms"]) == 4
    assert "c.yaml --task other`" in done.stdout and "c.yaml --task small`" in done.stdout
    path.write_text(json.dumps({**kept, "seeds": [1, 2]}))
    with pytest.raises(compare_heads.ProgramError, match=r"has other seeds, \[1, 2\] instead of \[1, 2, 3\]"):
        compare_heads.with_others(kept, path)


def test_a_page_without_markers_is_refused_before_anything_is_trained(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no markers\n")
    done = study(results[0] / "c.yaml", "--page", page, "--out", tmp_path / "runs")
    assert done.returncode == 2 and "has no <!-- side by side -->" in done.stderr
    assert page.read_text() == "no markers\n" and not (tmp_path / "runs").exists()
