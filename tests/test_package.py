"""headlab_log elsewhere: with the packages it names, without POSIX, as a wheel."""

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib

import h5py
import pytest

from conftest import ROOT

import headlab_log as hl

# What Python has on Windows: none of these modules, functions and signals.
WITHOUT_POSIX = """
import os, signal, sys
import h5netcdf, plotext, xarray, yaml  # not ours to look at
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("uname", "getuid", "geteuid", "fork", "sched_getaffinity", "kill"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGWINCH"):
    delattr(signal, name)
"""
READS = """
import headlab_log as hl
run = hl.open_run(sys.argv[1])
print(run.state, run.heads().sizes["layer"], run.map(layer=1).shape, len(run.tokens()),
      run.ablation().sizes["head"])
"""
FOUND = "2 (16, 16) 16 3"  # of small_run


def python(code, *arguments):
    """What a Python prints that finds headlab_log and this Python's packages."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], text=True,
                          capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "scripts/python")})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_run_is_read_and_watched_without_posix(small_run, tmp_path):
    """Nobody can tell there a writer that was killed from one that goes on: a run is what its log says."""
    with h5py.File(small_run / "log.h5") as log, h5py.File(tmp_path / "log.h5", "w") as copy:
        for name in log:
            log.copy(name, copy)
        copy.attrs.update(log.attrs)
        copy.attrs["status"] = "running"
    more = ("print(hl.open_run(sys.argv[2]).state)\n"
            "from headlab_log.__main__ import main\n"
            "main(['watch', '--once', sys.argv[1]])")
    said = python(WITHOUT_POSIX + READS + more, small_run, tmp_path).splitlines()
    assert said[0] == f"finished {FOUND}"
    assert said[1] == "running"
    assert said[2] == "char_mha s1337: mha, 2 layers, 3 heads, finished"
    with pytest.warns(hl.LogWarning, match="was killed"):
        assert hl.open_run(tmp_path).state == "killed"


# Refuses what neither NEEDED nor anything that these require brings, wherever it is imported from.
ONLY_NEEDED = """
import importlib.abc, importlib.metadata as metadata, re, sys

def required_by(name, found):
    if name in found:
        return found
    found.add(name)
    for line in metadata.requires(name) or ():
        if "extra ==" not in line and "extra==" not in line:
            required = re.match(r"[\\w.-]+", line)[0].lower().replace("_", "-")
            try:
                metadata.distribution(required)
            except metadata.PackageNotFoundError:  # of another system or Python
                continue
            required_by(required, found)
    return found

there = set()
for name in "numpy h5py h5netcdf xarray pyyaml".split():
    required_by(name, there)
brought = {top: {name.lower().replace("_", "-") for name in names}
           for top, names in metadata.packages_distributions().items()}

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in brought and not brought[top] & there:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

sys.meta_path.insert(0, Refuse())
"""


TABLES = """
with hl.open_run(sys.argv[1]) as run:
    print(len(hl.to_csv(run, sys.argv[2])), hl.differences([run, run]).empty)
for name in ("matplotlib", "plotly", "plotext", "safetensors", "netCDF4"):
    assert name in brought and not brought[name] & there, name
"""
NEED_MORE = {
    "plots": "from headlab_log import plots",
    "report": "from headlab_log import report; report.build([run])",
    "watch": "from headlab_log import watch; print(watch.lines_of(run))",
    "tensorboard": "hl.to_tensorboard(run, sys.argv[3])",
}


@pytest.fixture(scope="module")
def with_five_packages(small_run, tmp_path_factory):
    """What a Python says that has only what reading needs, and the folder of tables."""
    out = tmp_path_factory.mktemp("out")
    asks = [f"try:\n    {code}\nexcept ModuleNotFoundError as error:\n    print('told:', '{extra}', error)\n"
            for extra, code in NEED_MORE.items()]
    said = python(ONLY_NEEDED + READS + TABLES + "".join(asks), small_run, out / "csv", out / "events")
    return said.splitlines(), out / "csv"


def test_reading_and_tables_need_five_packages(with_five_packages):
    said, tables = with_five_packages
    assert said[0] == f"finished {FOUND}"
    count, empty = said[1].split()
    assert int(count) == len(list(tables.iterdir())) > 5 and empty == "True"


@pytest.mark.parametrize("extra", NEED_MORE)
def test_what_needs_more_names_the_extra_that_brings_it(with_five_packages, extra):
    (told,) = [line for line in with_five_packages[0] if line.startswith(f"told: {extra} ")]
    assert f'pip install "{ROOT}/scripts/python[{extra}]"' in told
    assert extra in extras()


def test_a_copy_without_its_checkout_names_the_package_itself(tmp_path):
    """No package index has headlab_log: a command with its name would install somebody else's."""
    (tmp_path / "headlab_log").mkdir()
    copy = shutil.copy(ROOT / "scripts/python/headlab_log/extras.py", tmp_path / "headlab_log")
    assert runpy.run_path(copy)["how_to_get"]("plotext", "watch") == "pip install plotext"


def extras():
    return project()["optional-dependencies"]


def project():
    with open(ROOT / "scripts/python/pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def test_the_wheel_asks_for_what_is_needed_and_its_extras_for_the_rest():
    def names(requirements):
        return {re.match(r"[\w-]+", line)[0] for line in requirements}

    assert names(project()["dependencies"]) == {"numpy", "h5py", "h5netcdf", "xarray", "pyyaml", "safetensors"}
    assert set(extras()) == {"plots", "report", "watch", "tensorboard", "all"}
    (everything,) = extras()["all"]
    assert set(re.search(r"\[(.*)\]", everything)[1].split(",")) == set(extras()) - {"all"}


def test_what_the_requirements_say_headlab_log_imports_it_imports():
    text = (ROOT / "scripts/requirements.txt").read_text(encoding="utf-8")
    (section,) = re.findall(r"^# what headlab_log imports\n(.*?)\n\n", text, re.M | re.S)
    source = "".join(path.read_text(encoding="utf-8")
                     for path in (ROOT / "scripts/python/headlab_log").rglob("*.py"))
    for line in section.splitlines():
        name = {"PyYAML": "yaml"}.get(line.split("==")[0], line.split("==")[0])
        # h5netcdf is for users: the engine of xarray that the docs name.
        assert re.search(rf"(import|from) {name}\b|\"{name}\"", source), name


def test_the_package_installs_and_reads_by_itself(small_run, tmp_path):
    """The wheel has every file of the package; py.typed tells type checkers that it has hints."""
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                    "--no-deps", "--no-build-isolation", "--target", site, ROOT / "scripts/python"],
                   check=True)
    code = ("import sys, headlab_log as hl; print(hl.__file__);"
            "print(hl.open_run(sys.argv[1]).heads().entropy.sizes['layer'])")
    done = subprocess.run([sys.executable, "-c", code, small_run], env={"PYTHONPATH": str(site)},
                          cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(site / "headlab_log/__init__.py"), "2"]
    packed = {p.relative_to(site).as_posix() for p in (site / "headlab_log").rglob("*")}
    package = ROOT / "scripts/python/headlab_log"
    wanted = {p.relative_to(package.parent).as_posix() for p in package.rglob("*.*")
              if "__pycache__" not in p.parts}
    assert "headlab_log/py.typed" in wanted and not wanted - packed


def test_the_folder_it_was_installed_from_before_names_both_ways():
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps",
                           ROOT / "scripts"], capture_output=True, text=True)
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "nothing is installed from scripts" in line]
    assert "`pip install .`" in said and '`pip install "./scripts/python[all]"`' in said


def public():
    """(name, function) of what users call: exports, methods, figures, the report, the server."""
    from headlab_log import plots, report, serve, watch

    named = {name: getattr(module, name) for module in (hl, plots) for name in module.__all__}
    named |= {"report.build": report.build, "report.compose": report.compose,
              "serve.serve": serve.serve, "serve.server": serve.server,
              "watch.lines_of": watch.lines_of}
    for name, value in list(named.items()):
        if inspect.isclass(value):
            named |= {f"{name}.{part}": member.fget if isinstance(member, property) else member
                      for part, member in vars(value).items() if not part.startswith("_")}
    return [(name, value) for name, value in named.items() if inspect.isfunction(value)]


@pytest.mark.parametrize("name, function", public())
def test_public_functions_have_type_hints(name, function):
    signature = inspect.signature(function)
    hinted = [part.annotation for part in signature.parameters.values() if part.name != "self"]
    assert inspect.Signature.empty not in [*hinted, signature.return_annotation]
