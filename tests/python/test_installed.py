"""headlab as pip installed it: the program works in an empty folder, and one process holds one of each library."""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys

import pytest

import headlab

SHORT = ("train.steps=4", "train.batch=4", "train.eval_batches=1", "model.layers=1", "data.context=16", "model.d_model=24",
         "model.heads=3", "log.attention.probes=1")
COMMANDS = pathlib.Path(sys.executable).parent
PACKAGE = pathlib.Path(headlab.__file__).parent

if not (COMMANDS / "headlab").exists() or not (PACKAGE / "bin/headlab").exists():
    pytest.skip("headlab is on the path and not installed", allow_module_level=True)


def called(*words, folder, code=0):
    """What the installed command says, with nothing of a virtual environment set."""
    done = subprocess.run([COMMANDS / words[0], *map(str, words[1:])], cwd=folder, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which a config of headlab's own was trained, by its name, and what was said."""
    folder = tmp_path_factory.mktemp("empty")
    done = called("headlab", "run", "char_mha", *SHORT, "--json", folder=folder)
    return folder, json.loads(done.stdout)["run"], done.stderr


def test_a_config_of_its_own_is_trained_in_an_empty_folder(trained):
    folder, run, said = trained
    assert (folder / run / "log.h5").is_file()
    assert headlab.load(folder / run).heads[0].kind == "mha"
    assert str(PACKAGE / "share/configs/data/tinyshakespeare.txt") in (folder / run / "config.yaml").read_text()


def test_what_comes_next_can_be_pasted(trained):
    folder, run, said = trained
    (line,) = [line for line in said.splitlines() if "next: " in line]
    command = line.partition("next: ")[2].split()
    assert command[:2] == [str(COMMANDS / "headlab-log"), "report"]
    said = called("headlab-log", "--help", folder=folder).stdout
    assert re.search(r"\breport\b", said)
    assert "scripts/" not in line


def test_a_config_that_is_not_there_is_answered_by_the_name_of_its_own(tmp_path):
    said = called("headlab", "run", "configs/char_mha.yaml", folder=tmp_path, code=2).stderr
    assert "configs/char_mha.yaml: there is no such file; 'char_mha'" in said


def test_data_that_is_fetched_names_the_script_that_the_package_has(tmp_path):
    said = called("headlab", "run", "multi30k_mha", folder=tmp_path, code=3).stderr
    script = re.search(r"(\S+/scripts/data) multi30k puts it there", said)[1]
    assert pathlib.Path(script).is_file()
    listed = subprocess.run([sys.executable, "-I", script, "--list"], capture_output=True, text=True, check=True)
    assert "multi30k" in listed.stdout


def test_a_process_holds_one_of_each_library():
    code = "import headlab\nprint(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for library in "libgomp", "libstdc++", "libtorch_cpu", "libc10.", "libtorch_python":
        found = {line.split()[-1] for line in maps.splitlines() if f"/{library}" in line}
        assert len(found) == 1, (library, found)
    assert str(PACKAGE / "_C") in maps
    for library in "libhdf5", "libcrypto", "libfmt":  # the program's, not the extension's
        assert not [line for line in maps.splitlines() if f"headlab.libs/{library}" in line]


def test_every_kind_is_known_to_both():
    said = called("headlab", "list", folder="/").stdout
    for kind in headlab.kinds():
        assert re.search(rf"^\s*{kind}\b", said, re.M), kind


def test_package_and_program_are_of_one_version():
    assert importlib.metadata.version("headlab") in called("headlab", "version", folder="/").stdout
