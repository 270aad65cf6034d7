"""The jobs that `sweep --emit` writes hold the commands that are meant and no other, whatever names hold."""

import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

from conftest import program
from sweep_testing import SETTINGS, bench, one_kind, start, statuses  # noqa: F401

SPECIAL = ("a $(touch hacked) b", "`touch hacked`", "a'b\"c", "x; touch hacked #", "$HOME&touch hacked", "100%A \\t!*?",
           "-n", "~", "{a,b}", "ümläut\u00a0", "a'$(touch hacked)'", '"$(touch hacked)"')
CONTROLS = ("\n", "\x1b", "\x85", "\r", "\t")  # which there are: tests/experiments/text/test_shell_word.cpp


def emitted(bench, file, out, how="slurm", code=0, command=None):
    """What is printed and said."""
    time = ("--time", "00:10:00") if how == "slurm" else ()
    done = subprocess.run([command or os.path.abspath(program()), "sweep", file, *SETTINGS, "train.steps=2",
                           "--out", out, "--jobs", "2", "--emit", how, *time], cwd=bench, capture_output=True,
                          text=True)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("how", ("slurm", "joblist"))
def test_jobs_run_their_point_with_their_program_and_nothing_else(one_kind, how):
    """Whatever the names hold: of the sweep, of each folder of the runs, of the program, which is another by then."""
    name, out = f"x{''.join(SPECIAL)}.yaml", "/".join((".", *SPECIAL))
    (one_kind / "kinds.yaml").rename(one_kind / name)
    built = one_kind / "a\nbuilt/headlab"  # no hash, which may stand before a name, ends so
    built.parent.mkdir()
    shutil.copy(program(), built)
    printed, _ = emitted(one_kind, f"./{name}", out, how, command=built)
    built.write_text("another")
    words = shlex.split(printed)
    jobs = pathlib.Path(words[-1])
    lines = jobs.read_text().splitlines()
    assert "built/headlab" not in printed + jobs.read_text()
    before, environment = sorted(one_kind.iterdir()), dict(os.environ)
    if how == "slurm":
        assert words == ["sbatch", str(jobs)]
        assert len([line for line in lines if line.startswith("#SBATCH ")]) == 3
        assert shlex.split(lines[1])[1] == f"--job-name={name.removesuffix('.yaml')}"
        output = shlex.split(lines[2])[-1].removeprefix("--output=")
        assert output == str(jobs.parent).replace("%", "%%") + "/slurm/%A_%a.out"
        job = ["bash", jobs]
        environment |= {"SLURM_ARRAY_TASK_ID": "1", "SLURM_CPUS_PER_TASK": "1"}
    else:
        assert words[:3] == ["parallel", "--jobs", "2"] and "--resume-failed" in words
        assert len(lines) == 3
        job = ["sh", "-c", lines[2]]
    done = subprocess.run(job, cwd="/", capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(one_kind.iterdir()) == before and not list(one_kind.rglob("hacked"))
    assert [one["status"] for one in statuses(one_kind, out).values()] == ["finished"]


def test_control_characters_are_refused_in_every_name_of_a_script(one_kind):
    names = [f"a{character}touch hacked{character}b" for character in CONTROLS]
    odd = one_kind / names[0]
    odd.mkdir()
    shutil.copy(one_kind / "kinds.yaml", one_kind / f"{names[1]}.yaml")
    shutil.copy(one_kind / "kinds.yaml", odd / "kinds.yaml")
    shutil.copy(one_kind / "text.txt", odd / "text.txt")
    before = sorted(one_kind.rglob("*"))
    for character, folder, file, out in (
            (CONTROLS[0], odd, "kinds.yaml", "runs"), (CONTROLS[0], one_kind, f"{names[0]}/kinds.yaml", "runs"),
            (CONTROLS[1], one_kind, f"{names[1]}.yaml", "runs"), (CONTROLS[2], one_kind, "kinds.yaml", names[2]),
            (CONTROLS[3], one_kind, "kinds.yaml", f"runs/{names[3]}/runs"),
            (CONTROLS[4], one_kind, "kinds.yaml", names[4])):
        _, said = emitted(folder, file, out, "joblist" if character == "\t" else "slurm", code=2)
        assert "control character" in said
        assert said.count("\n") == 1 and (character == "\n" or character not in said)
    assert sorted(one_kind.rglob("*")) == before


def test_names_and_tags_of_runs_are_plain(one_kind):
    for override in "name=a\nb", "tag=$(touch hacked)", "name=../x":
        process = start(one_kind, "runs", "--emit", "joblist", override)
        printed, said = process.communicate()
        lists = list(one_kind.rglob("sweep.jobs"))
        assert process.returncode == 2 or len(lists[0].read_text().splitlines()) == 3, said
    assert not list(one_kind.rglob("hacked"))


def test_other_folders_of_runs_refuse_control_characters(one_kind):
    compare = one_kind / "a\nb.yaml"
    compare.write_text("tasks: {}\n")
    for words in (["run", pathlib.Path(__file__).parent.parent / "configs/char_mha.yaml", "--out", "a\nb"],
                  ["sweep", "kinds.yaml", "--out", "a\nb", "--dry-run"], ["compare", compare]):
        done = subprocess.run([os.path.abspath(program()), *words], cwd=one_kind, capture_output=True, text=True)
        assert done.returncode == 2 and "control character" in done.stderr, done.stderr
    assert not (one_kind / "a\nb").exists()
