"""Whoever calls a script in a folder that others filled runs nothing of what lies there."""

import os
import re
import subprocess

import pytest

from conftest import ROOT, program

# What scripts, their packages and Python itself import by name at some time.
MODULES = ("yaml", "numpy", "sitecustomize", "usercustomize", "h5py", "xarray", "pandas", "argparse", "json",
           "pathlib", "sys", "site", "encodings", "collections", "venv", "ensurepip", "matplotlib", "plotly",
           "tensorboardX", "headlab_program", "study", "kept", "comparison", "nbformat", "nbclient", "optuna",
           "IPython", "ipykernel", "torch", "conftest", "readline", "rlcompleter")
PACKAGES = ("headlab_log", "pip", "pytest", "scripts", "core", "ipykernel_launcher")
SCRIPTS = sorted(str(path.relative_to(ROOT)) for folder in ("scripts", "scripts/studies", "scripts/bench",
                                                            "scripts/notebooks")
                 for path in (ROOT / folder).iterdir()
                 if path.is_file() and os.access(path, os.X_OK) and path.suffix != ".py")


@pytest.fixture
def hostile(tmp_path):
    """A folder full of modules that each leave a trace of having run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    trace = f"open({str(tmp_path / 'ran')!r}, 'a').write(__file__ + '\\n')\n"
    for name in MODULES:
        (folder / f"{name}.py").write_text(trace)
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(trace)
        (folder / name / "__main__.py").write_text(trace)
    for name in "python", "python3", "bash", "git", "cmake", "dirname", "readlink", "source", "program_name":
        (folder / name).write_text(f"#!/bin/sh\necho {name} >>'{tmp_path / 'ran'}'\n")
        (folder / name).chmod(0o755)
    (folder / ".env").write_text(f"touch '{tmp_path / 'ran'}'\n")
    (folder / "pyvenv.cfg").write_text(f"home = {folder}\n")
    return folder


def called(hostile, *words, alone=False, **environment):
    """alone: in a session of its own, hence no copy of a process whose libraries are loaded."""
    return subprocess.run(list(map(str, words)), cwd=hostile, text=True, capture_output=True, timeout=100,
                          start_new_session=alone,
                          env={**os.environ, "HEADLAB_BUILD_DIR": "", **environment},
                          stdin=subprocess.DEVNULL)


def ran(hostile):
    trace = hostile.parent / "ran"
    return trace.read_text() if trace.exists() else ""


# An empty entry of a path is the folder of the caller for Python.
PATHS = ("", "::/nowhere::/elsewhere:")
OF_VENV = [name for name in SCRIPTS
           if name in {"scripts/log", "scripts/report", "scripts/watch", "scripts/to_csv", "scripts/to_tensorboard"}]


def test_what_opens_logs_imports_nothing_from_there(hostile, small_run):
    """One script, by five names; with -P nothing of what is imported finds the folder, unless it changes the path."""
    assert len(OF_VENV) == 5
    assert [name for name in OF_VENV if (ROOT / name).resolve() != ROOT / "scripts/log"] == []
    sources = "".join(path.read_text() for path in (ROOT / "scripts/python/headlab_log").rglob("*.py"))
    assert "sys.path" not in sources and "open_run" in sources
    for path, *words in ((PATHS[0], "log", "--help"), (PATHS[1], "log", "csv", small_run, "-o", hostile.parent),
                         (PATHS[1], "report", small_run, "-o", hostile.parent / "page.html")):
        done = called(hostile, ROOT / "scripts" / words[0], *words[1:], PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
        assert ran(hostile) == "", words


STARTED = ("scripts/data", "scripts/studies/claims", "scripts/notebooks/make")  # others are started by the same lines


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name.startswith("scripts/studies/")
                                    or name in ("scripts/notebooks/make", "scripts/data")])
def test_what_trains_and_measures_imports_nothing_from_there(hostile, script):
    line = [ROOT / script]
    if script != "scripts/data":  # others build first, and then start what is started here
        line = [ROOT / "scripts/venv", f"{ROOT / script}.py"]
        assert f'exec "$root/scripts/venv" "$root/{script}.py"' in (ROOT / script).read_text()
        text = (ROOT / f"{script}.py").read_text()
        assert set(re.findall(r"sys\.path.*", text)) <= {"sys.path.insert(0, str(HERE.parent))"}
    if script in STARTED:
        done = called(hostile, *line, "--help", PYTHONPATH=PATHS[1])
        assert done.returncode == 0 and script.split("/")[-1] in done.stdout, done.stderr
        assert ran(hostile) == ""


@pytest.mark.parametrize("words", [["-c", "import yaml, numpy, json"], ["-m", "pip", "--version"],
                                   ["-m", "pytest", "--version"],
                                   ["-W", "ignore", "-c", "import yaml"], ["-bc", "import yaml"],
                                   ["-X", "dev", "-m", "headlab_log", "--help"], ["-"], []])
def test_venv_imports_nothing_from_there(hostile, words):
    for path in PATHS if words[:1] == ["-c"] else PATHS[1:]:
        done = subprocess.run([ROOT / "scripts/venv", *words], cwd=hostile, text=True, capture_output=True,
                              input="import yaml, numpy\n", env={**os.environ, "PYTHONPATH": path})
        assert done.returncode == 0, done.stderr
        assert ran(hostile) == "", path


def test_venv_runs_a_file_as_python_does(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/beside.py").write_text("VALUE = 7\n")
    (tmp_path / "there/own.py").write_text("import sys, beside, importlib.util\nassert importlib.util.find_spec('headlab_log')\n"
                                          "print(beside.VALUE, sys.argv[1:])\n")
    for words in ["there/own.py", "-m"], ["-X", "dev", "there/own.py", "-m"], ["-q", "there/own.py", "-m"]:
        done = subprocess.run([ROOT / "scripts/venv", *words], cwd=tmp_path, text=True, capture_output=True)
        assert done.stdout == "7 ['-m']\n", done.stderr


def test_venv_keeps_a_path_that_is_named(tmp_path):
    (tmp_path / "named.py").write_text("print('named')\n")
    done = subprocess.run([ROOT / "scripts/venv", "-c", "import named"], text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": f":{tmp_path}:"})
    assert done.stdout == "named\n", done.stderr


def test_each_start_of_python_leaves_the_folder_out():
    """-P, -I or a file of ours: whatever starts Python in scripts."""
    starts = re.compile(r'(?:python"|python3?|sys\.executable|\$\(find_(?:torch_)?python\)")[",]*\s+"?(-\w*[cm]?|-)[" ]')
    wrong = []
    for path in sorted((ROOT / "scripts").rglob("*")):
        if not path.is_file() or path.suffix in (".ipynb", ".html", ".js", ".css", ".pyc") or "headlab_log" in str(path):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if line.lstrip().startswith(("#", "//")):
                continue
            for found in starts.finditer(line):
                if found[1] not in ("-I", "-P"):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    # What is said to a user, who may have it otherwise.
    assert [line for line in wrong if "prints DIR/torch" not in line] == []


def test_a_kernel_of_the_notebooks_imports_nothing_from_there(hostile):
    code = ("import nbformat, pathlib, sys; sys.path.insert(0, 'ROOT/scripts/notebooks')\n"
            "import make\n"
            "make.HERE = pathlib.Path('HOSTILE')\n"
            "cell = nbformat.v4.new_code_cell('import yaml, numpy, headlab_log; print(yaml.__file__)')\n"
            "nbformat.write(nbformat.v4.new_notebook(cells=[cell]), 'OUT')\n"
            "print(make.execute(pathlib.Path('OUT'), '.').cells[0].outputs[0].text)\n")
    for name, path in (("ROOT", ROOT), ("HOSTILE", hostile), ("OUT", hostile.parent / "one.ipynb")):
        code = code.replace(name, str(path))
    done = called(hostile, ROOT / "scripts/venv", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout and ran(hostile) == ""


def test_the_program_runs_nothing_from_there(hostile, small_run, tmp_path):
    config = ROOT / "configs/char_mha.yaml"
    for words in (["validate", config], ["inspect", small_run / "log.h5"], ["runs", small_run.parent], ["version"],
                  ["run", config, "train.steps=1", "train.batch=1", "data.context=8", "model.layers=1",
                   "model.d_model=16", "train.eval_batches=1", "--out", tmp_path / "runs"]):
        done = called(hostile, os.path.abspath(program()), *words, alone=words == ["version"])
        assert done.returncode == 0, done.stderr
    assert ran(hostile) == ""
