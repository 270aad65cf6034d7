"""One run on several processes: the same weights as one process has, and the ends that processes can have."""

import json
import signal
import subprocess

import pytest

from conftest import ROOT, TINY, program
from ranks_testing import CLEAN, SETTINGS, Group, alone, free_port, metrics, numbers, run_of, weights

def statistics(out):
    import xarray
    with xarray.open_dataset(run_of(out) / "log.h5", group="heads/self", engine="h5netcdf") as heads:
        return heads.load()


@pytest.mark.parametrize("size, accumulate", [(2, 2), (3, 3), (4, 4), (2, 4), (2, 6), (3, 6)])
def test_any_number_of_processes_has_the_bits_of_one(tmp_path, size, accumulate):
    settings = (*SETTINGS, f"train.accumulate={accumulate}", "log.stats=[all]")
    alone(tmp_path / "one", *settings)
    group = Group(size, tmp_path / "several", *settings)
    assert group.end() == [0] * size, group.said
    assert weights(tmp_path / "several") == weights(tmp_path / "one")
    assert numbers(tmp_path / "several") == numbers(tmp_path / "one")
    assert statistics(tmp_path / "several").drop_attrs().identical(statistics(tmp_path / "one").drop_attrs())
    assert [said[0] for said in group.said[1:]] == [""] * (size - 1)  # rank 0 alone prints
    ranks = json.loads((run_of(tmp_path / "several") / "manifest.json").read_text())["ranks"]
    assert [(rank["device"], rank["threads"]) for rank in ranks] == [("cpu", 1)] * size


def test_the_table_has_no_row_that_its_own_seed_makes(tmp_path):
    """Another seed has other weights: the comparison above would see a difference."""
    alone(tmp_path / "one", *SETTINGS, "train.accumulate=2")
    alone(tmp_path / "other", *SETTINGS, "train.accumulate=2", "seed=2")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


def test_one_sum_an_update_is_within_rounding(tmp_path):
    """More than four rounds, and no train.deterministic: gradients are summed once an update."""
    settings = (*TINY, "train.batch=12", "train.accumulate=12")
    alone(tmp_path / "one", *settings)
    group = Group(2, tmp_path / "several", *settings)
    assert group.end() == [0, 0], group.said
    for one, several in zip(numbers(tmp_path / "one"), numbers(tmp_path / "several"), strict=True):
        assert several == pytest.approx(one, rel=1e-5)
    assert weights(tmp_path / "several") != weights(tmp_path / "one")


def test_pairs_of_texts_score_different_numbers_of_targets(tmp_path):
    """Unequal counts, and updates of fewer parts than processes."""
    words = "one two three four five six seven eight".split()
    texts = [" ".join(words[n % 5:n % 5 + 1 + n * 7 % 4]) for n in range(40)]
    for name in "s", "t", "vs", "vt":
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    config = tmp_path / "pairs.yaml"
    config.write_text("""
name: pairs
data: {kind: lines, source: s, target: t, validation_source: vs, validation_target: vt}
model: {kind: seq2seq, layers: 1, d_model: 24, heads: 3, dropout: 0.1}
train: {steps: 8, accumulate: 4, max_positions: 24, warmup: 2, label_smoothing: 0.1, eval_batch: 7, bleu_every: 4,
        eval_every: 4}
log: {every: 1, stats_every: 2, attention: {every: 0}}
""")
    alone(tmp_path / "one", config=config)
    group = Group(4, tmp_path / "several", config=config)
    assert group.end() == [0] * 4, group.said
    assert weights(tmp_path / "several") == weights(tmp_path / "one")
    assert numbers(tmp_path / "several") == numbers(tmp_path / "one")
    assert any("val/bleu" in line for line in metrics(tmp_path / "one"))


def test_processes_that_do_not_divide_the_update_are_refused(tmp_path):
    group = Group(2, tmp_path, *SETTINGS)
    assert group.end() == [2, 2]
    assert "train.accumulate=2" in group.said[0][1]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("variables, named", [({"RANK": "0"}, "WORLD_SIZE"), ({"WORLD_SIZE": "2"}, "RANK"),
                                              ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2"),
                                              ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT"),
                                              ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1x"}, "MASTER_PORT=1x"),
                                              ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "9"}, "MASTER_ADDR")])
def test_half_of_the_variables_is_refused(tmp_path, variables, named):
    done = subprocess.run([program(), "run", ROOT / "configs/char_mha.yaml", *SETTINGS, "train.accumulate=2", "--out",
                           tmp_path], capture_output=True, text=True, env=CLEAN | variables)
    assert (done.returncode, named in done.stderr) == (2, True), done.stderr


def test_a_batch_script_is_no_step(tmp_path):
    """Slurm's batch shell has SLURM_PROCID and SLURM_NTASKS, and is one process."""
    done = subprocess.run([program(), "run", ROOT / "configs/char_mha.yaml", *SETTINGS, "--out", tmp_path],
                          capture_output=True, text=True,
                          env=CLEAN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"})
    assert done.returncode == 0, done.stderr


def test_a_process_that_never_comes_ends_the_others(tmp_path):
    group = Group(2, tmp_path, *SETTINGS, "train.accumulate=2", timeout=2)
    group.processes[1].kill()
    codes = group.end()
    assert codes[0] in (6, 75), group.said


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_process_leaves_a_run_that_goes_on_to_the_same_bits(tmp_path, rank):
    settings = (*SETTINGS, "train.accumulate=3", "train.steps=200", "train.checkpoint.every=20", "log.every=1")
    alone(tmp_path / "one", *settings)
    several = tmp_path / "several"
    group = Group(3, several, *settings)
    group.wait_for_step(several, 25)
    group.processes[rank].send_signal(signal.SIGKILL)
    codes = group.end()
    assert codes[rank] == -signal.SIGKILL
    assert [code for n, code in enumerate(codes) if n != rank] == [75, 75], group.said
    status = json.loads((run_of(several) / "status.json").read_text())
    if rank > 0:
        assert (status["status"], f"lost rank {rank}:" in status["reason"]) == ("stopped", True), status
    else:
        assert status["status"] == "running"  # nobody else writes there
    group = Group(3, several, *settings)
    assert group.end() == [0] * 3, group.said
    assert weights(several) == weights(tmp_path / "one")
    assert numbers(several) == numbers(tmp_path / "one")


def test_a_stopped_process_is_missed_after_the_timeout(tmp_path):
    settings = (*SETTINGS, "train.accumulate=2", "train.steps=2000", "log.every=1")
    group = Group(2, tmp_path, *settings, timeout=2)
    group.wait_for_step(tmp_path, 3)
    group.processes[1].send_signal(signal.SIGSTOP)
    try:
        assert group.processes[0].wait(timeout=30) == 75
    finally:
        group.processes[1].kill()
    group.end()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number, code", [(signal.SIGUSR1, 75), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_at_any_process_ends_all_after_the_same_step(tmp_path, rank, number, code):
    settings = (*SETTINGS, "train.accumulate=2", "log.every=1")
    alone(tmp_path / "one", *settings, "train.steps=200")
    group = Group(2, tmp_path / "several", *settings, "train.steps=200")
    group.wait_for_step(tmp_path / "several", 3)
    group.processes[rank].send_signal(number)
    assert group.end() == [code, code], group.said
    group = Group(2, tmp_path / "several", *settings, "train.steps=200")
    assert group.end() == [0, 0], group.said
    assert weights(tmp_path / "several") == weights(tmp_path / "one")
    assert numbers(tmp_path / "several") == numbers(tmp_path / "one")


def test_a_run_of_one_process_goes_on_on_two(tmp_path):
    settings = (*SETTINGS, "train.accumulate=2", "log.every=1", "train.steps=200")
    alone(tmp_path / "one", *settings)
    group = Group(1, tmp_path / "several", *settings)
    group.wait_for_step(tmp_path / "several", 3)
    group.processes[0].send_signal(signal.SIGUSR1)
    assert group.end() == [75]
    group = Group(2, tmp_path / "several", *settings)
    assert group.end() == [0, 0], group.said
    assert "it was trained by 1 process, and is by 2" in group.said[0][1]
    assert weights(tmp_path / "several") == weights(tmp_path / "one")
    manifest = json.loads((run_of(tmp_path / "several") / "manifest.json").read_text())
    assert len(manifest["ranks"]) == 2 and "ranks" not in manifest["previous"][0]


def test_an_error_of_one_process_ends_all_with_its_code(tmp_path):
    """A learning rate at which the loss is no number: all see it, and end with 5."""
    group = Group(2, tmp_path, *SETTINGS, "train.accumulate=2", "train.lr=1e30", "train.warmup=0", "train.clip=0")
    assert group.end() == [5, 5], group.said
    status = json.loads((run_of(tmp_path) / "status.json").read_text())
    assert status["status"] == "diverged"


def test_a_taken_run_is_told_to_all(tmp_path):
    settings = (*SETTINGS, "train.accumulate=2", "train.steps=3000", "log.every=1")
    first = Group(2, tmp_path, *settings)
    first.wait_for_step(tmp_path, 2)
    second = Group(2, tmp_path, *settings)
    assert second.end() == [4, 4], second.said
    assert "is being written by" in second.said[1][1]
    first.processes[0].send_signal(signal.SIGUSR1)
    assert first.end() == [75, 75]


def test_other_settings_of_one_process_are_refused(tmp_path):
    group = Group(2, tmp_path, *SETTINGS, "train.accumulate=2", own={1: ("train.lr=0.002",)})
    assert group.end() == [2, 2], group.said
    assert "the config of rank 1" in group.said[0][1]


def test_a_finished_run_is_told_and_evaluated_by_two(tmp_path):
    settings = (*SETTINGS, "train.accumulate=2")
    alone(tmp_path, *settings)
    group = Group(2, tmp_path, *settings)
    assert group.end() == [0, 0]
    assert "finished at step 20" in group.said[0][0] and group.said[1][0] == ""
    words = [program(), "eval", str(run_of(tmp_path)), "--json", "--batch", "7"]
    one = subprocess.run(words, capture_output=True, text=True, env=CLEAN | {"OMP_NUM_THREADS": "1"})
    port, processes = str(free_port()), []
    for rank in range(2):
        ours = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=CLEAN | ours))
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert said == [one.stdout, ""]


def test_an_evaluation_waits_as_long_as_it_is_told(tmp_path):
    settings = (*SETTINGS, "train.accumulate=2")
    alone(tmp_path, *settings)
    ours = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run([program(), "eval", str(run_of(tmp_path)), "--comm-timeout", "1"], capture_output=True,
                          text=True, env=CLEAN | ours)
    assert (done.returncode, "rank 1 of 2 does not meet the others" in done.stderr) == (6, True), done.stderr


def test_data_that_one_process_cannot_open_end_all_with_the_reason(tmp_path):
    group = Group(2, tmp_path / "runs", *SETTINGS, "train.accumulate=2", own={1: ("data.path=missing.txt",)})
    assert group.end() == [3, 3], group.said
    assert "missing.txt" in group.said[0][1] and "lost rank 1" in group.said[0][1]


def test_fast_sums_are_within_rounding_and_not_for_those_who_want_the_same_bits(tmp_path):
    settings = (*TINY, "train.batch=12", "train.accumulate=3")
    alone(tmp_path / "one", *settings)
    group = Group(3, tmp_path / "several", *settings, "train.fast_sum=true")
    assert group.end() == [0] * 3, group.said
    for one, several in zip(numbers(tmp_path / "one"), numbers(tmp_path / "several"), strict=True):
        assert several == pytest.approx(one, rel=1e-5)
    group = Group(3, tmp_path / "none", *settings, "train.fast_sum=true", "train.deterministic=true")
    assert group.end() == [2] * 3, group.said
    assert "train.fast_sum" in group.said[0][1]
