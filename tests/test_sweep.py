"""A sweep of kinds with several seeds: killed, started twice, stopped, handed to others, it ends as
an undisturbed one does, and trains no point twice."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import ROOT, headlab, program
from sweep_testing import (SETTINGS, TWO_KINDS, bench, children_of, finished, folder_of, needed, one_kind,
                           slurm_script, start, statuses, sweep, table, trained, wait_until)  # noqa: F401


def sessions(bench, out):
    """run -> how many sessions before its last one it was gone on from."""
    return {path.parent: len(json.loads(path.read_text()).get("previous", []))
            for path in (bench / out).glob("char_mha/[!.]*/manifest.json")}


def gone(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def same_rows(bench, out, trained):
    """How many points a sweep has, each as in the larger one, of which the table may have more columns."""
    found, whole = ({row["point"]: {key: value for key, value in row.items() if value} for row in table(folder, runs)}
                    for folder, runs in ((bench, out), (trained.parent.parent.parent, "runs")))
    assert found == {point: whole[point] for point in found}
    return len(found)


def test_a_sweep_killed_twice_ends_with_the_table_of_one_that_never_was(bench, trained):
    (bench / "kinds.yaml").write_text(TWO_KINDS)

    def under_way(more):
        """Children train, beyond what was finished before."""
        return lambda: len([one for one in statuses(bench, "parts").values() if one["step"] > 0]) >= more

    process = start(bench, "parts")
    wait_until(under_way(2), process)
    children = children_of(process)
    process.kill()  # the parent alone: its children stop by themselves
    process.communicate()
    while not all(gone(child) for child in children):
        time.sleep(.002)
    assert {one["status"] for one in statuses(bench, "parts").values()} <= {
        "finished", "stopped", "running"}

    process = start(bench, "parts")
    wait_until(under_way(3), process)
    for pid in [process.pid, *children_of(process)]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    sweep(bench, "parts")
    assert same_rows(bench, "parts", trained) == 6
    assert {one["status"] for one in statuses(bench, "parts").values()} == {"finished"}


def test_two_sweeps_in_one_folder_at_once_train_no_point_twice(one_kind):
    bench = one_kind
    both = [start(bench, "runs", "train.steps=20"), start(bench, "runs", "train.steps=20")]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(sessions(bench, "runs")) == 3
    assert set(sessions(bench, "runs").values()) == {0}  # none was gone on with, or begun anew
    trained = [line for text in said for line in text.splitlines() if line.endswith("finished")]
    assert len(trained) == 3, said
    for text in said:
        assert "failed" not in text


def test_a_sweep_that_is_finished_trains_nothing_and_says_the_same(trained):
    bench = trained.parent.parent.parent
    before = {path: path.stat().st_mtime_ns for path in (bench / "runs").glob("char_mha/*/*")}
    again, said = sweep(bench, "runs", "--json", "--keep-going")
    assert said.count("finished before") == 6
    assert json.loads(again)["means"] == json.loads((trained / "summary.json").read_text())["means"]
    assert before == {path: path.stat().st_mtime_ns
                      for path in (bench / "runs").glob("char_mha/*/*")}
    for path in (bench / "runs").rglob("status.json"):
        assert "sweeps" not in path.parts


def test_the_directory_of_a_point_is_the_one_that_run_takes(finished):
    bench = finished
    sweep(bench, "runs", "--emit", "joblist")
    points = [line.split("\t") for line in (folder_of(bench, "runs") / "points.tsv").read_text().splitlines()]
    assert [pathlib.Path(run) in statuses(bench, "runs") for run, _ in points] == [True] * 3
    run, config = points[1]
    shutil.rmtree(run)
    assert json.loads(headlab("run", config, "--out", bench / "runs", "--json"))["run"] == run


def test_a_sweep_keeps_its_program_though_it_is_built_anew(one_kind):
    """As a build does it: another file in its place."""
    bench = one_kind
    (bench / "kinds.yaml").write_text((bench / "kinds.yaml").read_text().replace("[1, 2, 3]", "[1, 2]"))
    built = bench / "headlab"
    shutil.copy(program(), built)
    process = subprocess.Popen([built, "sweep", "kinds.yaml", *SETTINGS, "train.steps=10", "--out", "runs",
                                "--jobs", "1"], cwd=bench,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: statuses(bench, "runs"), process)
    built.unlink()
    built.write_text("#!/bin/sh\nexit 99\n")
    built.chmod(0o755)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    digest = hashlib.sha256(pathlib.Path(program()).read_bytes()).hexdigest()
    manifests = [json.loads((run / "manifest.json").read_text()) for run in statuses(bench, "runs")]
    assert [one["program"] for one in manifests] == [digest] * 2


def test_what_a_path_says_is_no_state_of_a_point(finished):
    """A run that cannot be made, in a folder whose name is what another process's run is told by."""
    bench, out = finished, "is being written by a run is there already"
    (bench / "runs").rename(bench / out)
    run = sorted(statuses(bench, out))[0]
    shutil.rmtree(run)
    run.write_text("no directory")
    _, said = sweep(bench, out, code=4)
    assert "is a file where the run's directory should be" in said


def test_points_by_epochs_show_how_far_they_are(bench):
    """As sweep, runs and watch show it; 48 examples, four at a time."""
    (bench / "kinds.yaml").write_text(f"base: {ROOT}/configs/mqar_64_4_mha.yaml\ngrid: {{seed: [1]}}\n")
    words = ("train.epochs=2", "train.batch=4", "train.threads=1", "model.layers=1", "model.d_model=16",
             "model.heads=2", "data.symbols=128", "data.train_examples=48", "data.eval_examples=8", "log.every=1")
    done = subprocess.run([os.path.abspath(program()), "sweep", "kinds.yaml", *words, "--out", "runs", "--json"], cwd=bench,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known, = json.loads(headlab("runs", bench / "runs", "--json"))["runs"]
    assert known["steps"] == known["step"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])  # of a training all: test_signals.py
def test_a_signal_stops_every_training_once_and_the_same_command_goes_on(one_kind, number):
    bench = one_kind
    process = start(bench, "runs", "train.steps=100000")
    wait_until(lambda: len([one for one in statuses(bench, "runs").values() if one["step"] > 0]) == 2,
               process)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == 75, said
    assert "the same command goes on" in said
    assert [one["status"] for one in statuses(bench, "runs").values()] == ["stopped"] * 2
    states = [row["status"] for row in table(bench, "runs")]
    assert sorted(states) == ["stopped"] * 2 + ["waiting"]


@contextlib.contextmanager
def locked(lock, host):
    """Holds the lock of a run, or of what a point prints, as a process of that host does."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()} {host}\n")
        file.flush()
        yield
        lock.unlink()


@pytest.mark.parametrize("begun", (True, False))
def test_a_point_that_this_host_trains_is_waited_for(finished, begun):
    """One whose run has begun, and one that another sweep has just started."""
    bench = finished
    if begun:
        lock = stopped(bench) / ".lock"
    else:
        sweep(bench, "runs", "--emit", "joblist")
        run, config = (folder_of(bench, "runs") / "points.tsv").read_text().splitlines()[0].split("\t")
        shutil.rmtree(run)
        lock = folder_of(bench, "runs") / f"output/{pathlib.Path(config).stem}.txt.lock"
        lock.parent.mkdir(exist_ok=True)
    with locked(lock, socket.gethostname()):
        process = start(bench, "runs")
        said = ""
        while "waits: is being written by process" not in said or said.count("finished before") < 2:
            said += process.stderr.readline()
            assert process.poll() is None, said
        assert process.poll() is None  # there is nothing else left to do
    assert process.communicate() and process.returncode == 0
    assert {row["status"] for row in table(bench, "runs")} == {"finished"}


def test_a_point_that_another_host_trains_is_left_to_it(finished):
    bench = finished
    with locked(stopped(bench) / ".lock", "another-host"):
        _, said = sweep(bench, "runs", code=75)
    assert "is left to another host: is being written by process" in said
    assert sorted(row["status"] for row in table(bench, "runs")) == ["elsewhere"] + ["finished"] * 2


def stopped(bench):
    """A run that was killed behind its last checkpoint, and before it said that it had finished."""
    run = sorted(statuses(bench, "runs"))[0]
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"status": "running", "metrics": {}}))
    return run


def test_a_point_that_fails_is_told_with_its_reason(one_kind):
    bench = one_kind
    words = ("train.lr=1e30", "train.clip=0", "train.warmup=0")
    _, said = sweep(bench, "runs", *words, "--fail-fast", code=5)
    assert 1 <= said.count(" failed: ") <= 2
    assert [row["status"] for row in table(bench, "runs")].count("waiting") >= 1
    _, said = sweep(bench, "runs", *words, code=5)
    assert said.count("failed: the loss or its gradient is not finite at step ") == 3
    _, said = sweep(bench, "none", "--fail-fast", "--keep-going", code=2)
    assert "exclude each other" in said


def change_manifest(bench, change):
    """Of the first run, as `change` does it to what it holds."""
    manifest = sorted(statuses(bench, "runs"))[0] / "manifest.json"
    known = json.loads(manifest.read_text())
    change(known)
    manifest.write_text(json.dumps(known))


def test_a_run_of_other_code_fails_its_point_and_a_tag_trains_beside_it(finished):
    bench = finished
    change_manifest(bench, lambda known: known["code"]["kinds"].update(mha="0" * 64))
    _, said = sweep(bench, "runs", code=4)
    assert "the source of mha was another" in said and "tag=WORD" in said
    (bench / "kinds.yaml").write_text((bench / "kinds.yaml").read_text().replace("[1, 2, 3]", "[1]"))
    printed, _ = sweep(bench, "runs", "tag=anew", "--json")
    assert len(json.loads(printed)["points"]) == 1 and len(statuses(bench, "runs")) == 4


def test_runs_of_different_code_are_never_averaged_together(finished):
    bench = finished
    change_manifest(bench, lambda known: known["code"].update(rest="0" * 64))
    printed, _ = sweep(bench, "runs")
    summary = json.loads((folder_of(bench, "runs") / "summary.json").read_text())
    assert sorted(len(mean["seeds"]) for mean in summary["means"]) == [1, 2]
    assert "different code" in summary["notices"][0]
    assert "not averaged together" in printed


def test_runs_of_different_devices_are_never_averaged_together(finished):
    """As a cluster makes them whose nodes differ: what a second device trains is put into a manifest."""
    bench = finished
    change_manifest(bench, lambda known: known.update(device="cuda", precision="bf16", gpus=["a GPU"]))
    printed, _ = sweep(bench, "runs", "--json")
    summary = json.loads(printed)
    assert {(mean["device"], len(mean["seeds"])) for mean in summary["means"]} == {
        ("cuda in bf16", 1), ("cpu in fp32", 2)}
    assert "different devices or in different precisions" in summary["notices"][0]
    assert len(summary["notices"]) == 1
    assert {row["device"] for row in table(bench, "runs")} == {"cuda in bf16", "cpu in fp32"}


def test_a_sweep_takes_a_run_that_was_made_alone(finished):
    """However the command wrote its settings and its data, and whatever an older version named it."""
    bench = finished
    gone_one, = [run for run in statuses(bench, "runs") if run.name.endswith("-s1")]
    shutil.rmtree(gone_one)
    others = set(statuses(bench, "runs"))
    subprocess.run([os.path.abspath(program()), "run", ROOT / "configs/char_mha.yaml", *SETTINGS,
                    f"data.path={bench / 'text.txt'}", "model.d_ff=64", "seed=1", "--out", "runs"],
                   cwd=bench, check=True, capture_output=True)
    alone, = set(statuses(bench, "runs")) - others
    assert alone == gone_one
    alone = alone.rename(alone.with_name("0123abcd-s1"))
    _, said = sweep(bench, "runs")
    assert said.count("finished before") == 3
    assert set(statuses(bench, "runs")) == others | {alone}
    assert set(sessions(bench, "runs").values()) == {0}


def test_a_dry_run_measures_each_config_once_and_leaves_nothing(bench):
    (bench / "kinds.yaml").write_text(TWO_KINDS)
    printed, said = sweep(bench, "runs", "--dry-run", "--json")
    assert said.count("measures ") == 2
    costs = json.loads(printed)
    assert costs["points"] == costs["left"] == 6
    assert costs["hours"] > 0 and costs["bytes"] > 0
    # Forward and backward, 60 updates of 4 texts of 16 tokens.
    sizes = json.loads(headlab("validate", ROOT / "configs/char_mha.yaml", *SETTINGS[:6],
                               *SETTINGS[7:], f"data.path={bench / 'text.txt'}", "--json"))
    assert costs["configs"][0]["flops"] == pytest.approx(
        3 * sizes["flops_per_token"] * 60 * 4 * 16)
    assert not (bench / "runs").exists()


def test_the_reader_opens_a_sweep_by_its_runs_and_by_its_grid(trained):
    import headlab_log as hl

    flat = hl.open_sweep(trained, "eval")
    assert dict(flat.sizes) == {"run": 6, "step": 1}
    assert flat["model.attention.kind"].values.tolist() == [
        kind for kind in ("mha", "moh") for _ in range(3)]
    grid = hl.open_sweep(trained.parent.parent, "eval", grid=True)
    assert dict(grid.sizes) == {"step": 1, "model.attention.kind": 2, "seed": 3}
    one = grid.val_loss.sel({"model.attention.kind": "moh", "seed": 2}).item()
    assert one == flat.val_loss.isel(run=4).item()
    means = {mean["group"]: mean["metrics"]["val/loss"]["mean"]
             for mean in json.loads((trained / "summary.json").read_text())["means"]}
    of_moh = grid.val_loss.mean("seed").sel({"model.attention.kind": "moh"}).item()
    assert of_moh == pytest.approx(means["model.attention.kind=moh"], rel=1e-6)
    assert "step" in hl.open_sweep(trained).dims
    with pytest.raises(hl.LogError, match="no sweep"):
        hl.open_sweep(trained.parent)


def test_settings_that_go_together_are_one_dimension():
    import xarray as xr

    from headlab_log.sweep import on_grid

    flat = xr.Dataset({"loss": ("run", [1., 2., 3., 4.])}, {"run": list("abcd")})
    grid = on_grid(flat, {"lr": [1, 2, 1, 2], "warmup": [10, 20, 10, 20], "seed": [1, 1, 2, 2]})
    assert dict(grid.sizes) == {"lr": 2, "seed": 2}
    assert grid.loss.sel(lr=2, seed=1).item() == 2
    assert on_grid(flat, {"seed": [4, 3, 2, 1]}).loss.sel(seed=3).item() == 2


def test_the_report_takes_a_sweep(trained, tmp_path):
    from headlab_log.report import command
    from headlab_log.sweep import runs_of

    command.main([str(trained), "-o", str(tmp_path / "sweep.html")])
    assert (tmp_path / "sweep.html").read_text().startswith("<!DOCTYPE html>")
    assert len(runs_of(trained)) == 6 and runs_of("elsewhere") == ["elsewhere"]


def test_gnu_parallel_takes_the_joblist_and_reruns_what_failed(one_kind):
    bench = one_kind
    needed("parallel", "parallel")
    command = sweep(bench, "runs", "train.steps=2", "--emit", "joblist")[0].strip()
    runs = [line.split("\t")[0] for line in
            (folder_of(bench, "runs") / "points.tsv").read_text().splitlines()]
    in_the_way = pathlib.Path(runs[1])
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("no folder")

    def parallel():
        return subprocess.run(command, shell=True, cwd="/", capture_output=True, text=True)

    done = parallel()
    assert done.returncode == 1, done.stderr
    in_the_way.unlink()
    done = parallel()
    assert done.returncode == 0, done.stderr
    log = (folder_of(bench, "runs") / "sweep.joblog").read_text().splitlines()[1:]
    codes = {line.split("\t")[0]: line.split("\t")[6] for line in log}  # the newest of each line
    assert len(log) == 4 and len(codes) == 3 and set(codes.values()) == {"0"}
    assert {run: one["status"] for run, one in statuses(bench, "runs").items()} == dict.fromkeys(
        map(pathlib.Path, runs), "finished")


def test_the_array_script_names_points_threads_and_time(bench):
    _, said = sweep(bench, "runs", "--emit", "slurm", code=2)
    assert "--time" in said
    _, said = sweep(bench, "runs", "--emit", "slurm", "--time", "tomorrow", code=2)
    assert "HH:MM:SS" in said
    _, said = sweep(bench, "runs", "--time", "00:10:00", code=2)
    assert "--emit slurm" in said
    text = slurm_script(bench).read_text()
    assert "--array=0-8%2 --time=00:10:00" in text and "--cpus-per-task=1" in text
    assert (slurm_script(bench).parent / "slurm").is_dir()


def test_the_array_script_asks_for_cores_and_a_gpu(bench):
    text = slurm_script(bench, "--cpus-per-task", "4", "--gpus-per-task", "1").read_text()
    assert "--ntasks=1 --cpus-per-task=4 --gpus-per-task=1 " in text
    assert "gpus" not in slurm_script(bench, "--gpus-per-task", "0").read_text()
    _, said = sweep(bench, "runs", "--emit", "slurm", "--time", "00:10:00", "--gpus-per-task", "2", code=2)
    assert "a training computes on one GPU" in said
    for word in "--cpus-per-task", "--gpus-per-task":
        _, said = sweep(bench, "runs", word, "1", code=2)
        assert f"{word}: goes with --emit slurm only" in said


def task(script, bench, number, **more):
    """A task of the array as Slurm starts it, with an scontrol that only says what it was asked."""
    fake = bench / "scontrol"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(bench / "asked"))}\n')
    fake.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{bench}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "1",
        "SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "12", **more}
    return subprocess.Popen(["bash", script], env=environment, cwd="/", stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_a_task_of_the_array_is_stopped_requeued_and_goes_on_to_the_same_weights(one_kind, trained):
    bench = one_kind
    script = slurm_script(bench)
    run = pathlib.Path((script.parent / "points.tsv").read_text().splitlines()[2].split("\t")[0])
    whole = trained.parent.parent / "char_mha" / run.name
    process = task(script, bench, 2)
    wait_until(lambda: any(one["step"] > 0 for one in statuses(bench, "runs").values()), process)
    process.send_signal(signal.SIGUSR1)
    said = process.communicate()[1]
    if process.returncode == 0:
        pytest.skip("the training was over before the signal reached it")
    assert process.returncode == 75, said
    assert (bench / "asked").read_text() == "requeue 12_2\n"
    again = task(script, bench, 2, SLURM_RESTART_COUNT="1")
    said = again.communicate()[1]
    assert again.returncode == 0, said
    last = "ckpt/last/model.safetensors"
    assert (run / last).read_bytes() == (whole / last).read_bytes()
    beyond = task(script, bench, 3)
    assert "no point 3" in beyond.communicate()[1] and beyond.returncode == 2
