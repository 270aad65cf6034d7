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
CONTROLS = ("\n", "\r", "\t", "\x01", "\x1b", "\x7f", "\x85")


def emitted(bench, file, out, how="slurm", code=0, command=None):
    """What is printed and said."""
    time = ("--time", "00:10:00") if how == "slurm" else ()
    done = subprocess.run([command or os.path.abspath(program()), "sweep", file, *SETTINGS, "train.steps=2",
                           "--out", out, "--emit", how, *time], cwd=bench, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", SPECIAL)
def test_the_array_script_runs_its_point_and_nothing_else(one_kind, name, tmp_path):
    (one_kind / "kinds.yaml").rename(one_kind / f"x{name}.yaml")
    printed, _ = emitted(one_kind, f"./x{name}.yaml", f"./{name}")
    sbatch, script = shlex.split(printed)
    assert sbatch == "sbatch" and pathlib.Path(script).is_file()
    lines = pathlib.Path(script).read_text().splitlines()
    assert len([line for line in lines if line.startswith("#SBATCH ")]) == 3
    assert shlex.split(lines[1])[1] == f"--job-name=x{name}"
    output = shlex.split(lines[2])[-1].removeprefix("--output=")
    assert output == str(pathlib.Path(script).parent).replace("%", "%%") + "/slurm/%A_%a.out"
    before = sorted(one_kind.iterdir())
    done = subprocess.run(["bash", script], cwd=one_kind, capture_output=True, text=True,
                          env={**os.environ, "SLURM_ARRAY_TASK_ID": "1", "SLURM_CPUS_PER_TASK": "1"})
    assert done.returncode == 0, done.stderr
    assert sorted(one_kind.iterdir()) == before and not list(one_kind.rglob("hacked"))
    assert [one["status"] for one in statuses(one_kind, name).values()] == ["finished"]


@pytest.mark.parametrize("name", SPECIAL[:3])
def test_a_line_of_the_joblist_runs_its_point_and_nothing_else(one_kind, name):
    printed, _ = emitted(one_kind, "kinds.yaml", f"./{name}", "joblist")
    listed = shlex.split(printed)[-1]
    lines = pathlib.Path(listed).read_text().splitlines()
    assert len(lines) == 3
    done = subprocess.run(["sh", "-c", lines[2]], cwd=one_kind, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(one_kind.rglob("hacked"))
    assert [one["status"] for one in statuses(one_kind, name).values()] == ["finished"]


@pytest.mark.parametrize("character", CONTROLS, ids=[f"{ord(one):02x}" for one in CONTROLS])
def test_control_characters_are_refused_in_every_name_of_a_script(one_kind, character):
    name = f"a{character}touch hacked{character}b"
    odd = one_kind / name
    odd.mkdir()
    shutil.copy(one_kind / "kinds.yaml", one_kind / f"{name}.yaml")
    shutil.copy(one_kind / "kinds.yaml", odd / "kinds.yaml")
    shutil.copy(one_kind / "text.txt", odd / "text.txt")
    before = sorted(one_kind.rglob("*"))
    for how in "slurm", "joblist":
        for folder, file, out in ((one_kind, "kinds.yaml", name), (one_kind, "kinds.yaml", f"runs/{name}/runs"),
                                  (one_kind, f"{name}.yaml", "runs"), (odd, "kinds.yaml", "runs"),
                                  (one_kind, f"{name}/kinds.yaml", "runs")):
            _, said = emitted(folder, file, out, how, code=2)
            assert "control character" in said
            assert said.count("\n") == 1 and (character == "\n" or character not in said)
    assert sorted(one_kind.rglob("*")) == before


def test_the_programs_own_path_is_in_no_job(one_kind):
    """Jobs run the copy that lies beside them."""
    folder = one_kind / "a\nb"
    folder.mkdir()
    shutil.copy(program(), folder / "headlab")
    for how in "slurm", "joblist":
        printed, said = emitted(one_kind, "kinds.yaml", "runs", how, command=folder / "headlab")
        assert "b/headlab" not in printed + said
    jobs = [path.read_text() for name in ("sweep.sbatch", "sweep.jobs") for path in one_kind.rglob(name)]
    assert len(jobs) == 2 and not any("b/headlab" in job for job in jobs)


def test_names_and_tags_of_runs_are_plain(one_kind):
    for override in "name=a\nb", "name=a b", "tag=a\nb", "tag=$(touch hacked)", "name=../x", "name='-'":
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
