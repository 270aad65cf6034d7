"""The wheel of the Python package: what is in it, for which torch it is built, and what is refused."""

import configparser
import email
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import types
import zipfile

import pytest
from conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL = os.environ.get("HEADLAB_WHEEL") or max(map(str, (ROOT / "dist").glob("headlab-*.whl")), default=None)
OF_TORCH = re.compile(r"lib(torch|c10|gomp|cudart|cupti|cuda|cublas|cudnn|nvrtc)")


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel():
    if not WHEEL:
        pytest.skip("there is no wheel in dist/: scripts/wheel builds it, and .ci/run python looks into it")
    with zipfile.ZipFile(WHEEL) as file:
        yield file


def text_of(wheel, ending):
    (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
    return wheel.read(name).decode()


def test_the_wheel_has_extension_program_configs_data_and_stubs(wheel):
    names = set(wheel.namelist())
    assert any(re.fullmatch(r"headlab/_C\.cpython-3\d+-[\w-]+\.so", name) for name in names)
    share = "headlab/share/"
    needed = {"headlab/bin/headlab", "headlab/_C.pyi", "headlab/py.typed", "headlab/heads.py", "headlab_log/__init__.py",
              "headlab_log/py.typed", "headlab_start/__init__.py", share + "scripts/data",
              share + "configs/data/tinyshakespeare.txt", share + "configs/compare/kinds.yaml"}
    needed |= {share + str(path.relative_to(ROOT)) for path in (ROOT / "configs").glob("*.yaml")}
    assert not needed - names
    assert wheel.getinfo("headlab/bin/headlab").external_attr >> 16 & 0o111 == 0o111
    assert not [name for name in names if name.endswith((".cpp", ".h", ".pyc"))]
    fetched = re.findall(r"^/configs/data/(\w+)/$", (ROOT / ".gitignore").read_text(), re.M)
    assert len(fetched) > 3 and not [name for name in names if name.split("/")[4:5] in [[one] for one in fetched]]


def test_the_wheel_holds_no_library_of_torch(wheel):
    libraries = [pathlib.PurePath(name).name for name in wheel.namelist() if ".so" in name]
    assert libraries and not [name for name in libraries if OF_TORCH.match(name)]


def test_the_wheel_finds_torch_beside_it(wheel, tmp_path):
    for name, there in ("headlab/_C", "$ORIGIN/../torch/lib"), ("headlab/bin/headlab", "$ORIGIN/../../torch/lib"):
        (name,) = [one for one in wheel.namelist() if one.startswith(name) and not one.endswith(".pyi")]
        said = subprocess.run(["readelf", "-d", wheel.extract(name, tmp_path)], capture_output=True, text=True,
                              check=True).stdout
        paths = re.search(r"R(?:UN)?PATH.*\[(.*)\]", said)[1].split(":")
        assert there in paths and all(path.startswith("$ORIGIN") for path in paths), paths
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said)
        assert "libtorch_cpu.so" in needed and "libgomp.so.1" in needed
        if there == "$ORIGIN/../torch/lib":  # HDF5, OpenSSL and the like are the program's alone
            assert not [one for one in needed if re.match("lib(hdf5|crypto|z|fmt|utf8proc)", one)], needed


def test_the_wheel_asks_for_torch_and_has_both_commands(wheel):
    about = email.message_from_string(text_of(wheel, ".dist-info/METADATA"))
    assert "torch==2.11.*" in about.get_all("Requires-Dist") and about["Requires-Python"] == ">=3.11"
    version = re.search(r"project\(headlab VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert (about["Name"], about["Version"]) == ("headlab", version)
    commands = configparser.ConfigParser()
    commands.read_file(io.StringIO(text_of(wheel, ".dist-info/entry_points.txt")))
    assert dict(commands["console_scripts"]) == {"headlab": "headlab_start:main", "headlab-log": "headlab_log.__main__:main"}
    assert re.search(r"-manylinux_2_\d+_\w+\.whl$", WHEEL)


def test_what_headlab_log_needs_the_whole_package_brings():
    alone = tomllib.loads((ROOT / "scripts/python/pyproject.toml").read_text(encoding="utf-8"))["project"]
    whole = PYPROJECT["project"]
    assert set(whole["dependencies"]) == {*alone["dependencies"], "torch==2.11.*"}
    for extra, needed in alone["optional-dependencies"].items():
        wanted = [one.replace("headlab_log[", "headlab[") for one in needed]
        assert whole["optional-dependencies"][extra] == wanted
    assert not [one for one in PYPROJECT["build-system"]["requires"] if "torch" in one]


# pip's side: which torch is built with.


@pytest.fixture
def backend(monkeypatch):
    """scripts/cmake/wheel_backend.py, without scikit-build-core, in an environment that names no torch."""
    package, build = types.ModuleType("scikit_build_core"), types.ModuleType("scikit_build_core.build")
    package.build = build
    for name in "wheel", "editable", "sdist":
        setattr(build, f"get_requires_for_build_{name}", None)
    build.build_sdist = None
    monkeypatch.setitem(sys.modules, "scikit_build_core", package)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", build)
    for name in "HEADLAB_TORCH", "VIRTUAL_ENV", "CONDA_PREFIX":
        monkeypatch.delenv(name, raising=False)
    return load("scripts/cmake/wheel_backend.py", "wheel_backend")


def with_torch(folder, version):
    (folder / "torch/lib").mkdir(parents=True)
    (folder / "torch/lib/libtorch_cpu.so").touch()
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\n")
    return folder


def test_the_torch_of_a_named_folder_is_taken(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADLAB_TORCH", str(with_torch(tmp_path, "2.11.0+cpu")))
    assert backend.torch_there() == (tmp_path, "2.11.0+cpu")
    chosen = backend.settings({"cmake.define.HEADLAB_CUDA": "ON"})
    assert chosen["build-dir"].endswith("-2.11.0-cpu")  # a torch of another kind has a build tree of its own
    assert chosen["cmake.define.HEADLAB_TORCH_ROOT"] == str(tmp_path) and chosen["cmake.define.HEADLAB_CUDA"] == "ON"


def test_an_active_environment_is_looked_into_where_pip_s_own_has_none(backend, tmp_path, monkeypatch):
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    there = with_torch(tmp_path / "lib" / python / "site-packages", "2.11.3")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert backend.torch_there() == (there, "2.11.3")


@pytest.mark.parametrize("version", ["2.10.0", "2.12.1+cu130", "2.110.0"])
def test_a_torch_of_another_version_is_refused_in_one_sentence(backend, tmp_path, monkeypatch, version):
    monkeypatch.setenv("HEADLAB_TORCH", str(with_torch(tmp_path, version)))
    with pytest.raises(SystemExit) as refused:
        backend.prepare_metadata_for_build_wheel(str(tmp_path))
    assert str(refused.value) == (f'headlab needs torch 2.11, and {tmp_path} has torch {version}: '
                                  f'pip install "torch==2.11.*"')


def test_an_environment_without_torch_is_refused_in_one_sentence(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADLAB_TORCH", str(tmp_path))
    with pytest.raises(SystemExit, match=r'has none: pip install "torch==2\.11\.\*" first.*HEADLAB_TORCH=DIR'):
        backend.build_wheel(str(tmp_path))


def test_missing_headers_of_python_are_named(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADLAB_TORCH", str(with_torch(tmp_path, "2.11.0")))
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda *_: str(tmp_path / "include"))
    with pytest.raises(SystemExit, match="include/Python.h is missing.*python3-dev"):
        backend.settings(None)


# The user's side: what import and the command say to another torch.


def test_import_refuses_a_torch_of_another_version_in_one_sentence(tmp_path):
    (tmp_path / "torch-2.10.0.dist-info").mkdir()
    (tmp_path / "torch-2.10.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.10.0\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    code = f"import runpy; runpy.run_path({str(ROOT / 'scripts/python/headlab/_torch.py')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={"PYTHONPATH": str(tmp_path)})
    assert done.stderr.splitlines()[-1] == ('ImportError: headlab is built with torch 2.11, here is torch 2.10.0: '
                                            'pip install "torch==2.11.*"')


@pytest.fixture
def installed(tmp_path):
    """A site-packages with headlab, whose program says how it is called, and a folder for a torch elsewhere."""
    program = tmp_path / "site/headlab/bin/headlab"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$LD_LIBRARY_PATH" "$HEADLAB_COMMAND" "$HEADLAB_SCRIPTS" "$@"\n')
    program.chmod(0o755)
    command = tmp_path / "bin/headlab"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom headlab_start import main\nmain()\n")
    command.chmod(0o755)
    return tmp_path


def started(installed, *folders, path="/usr/bin:/bin", **variables):
    folders = [ROOT / "scripts/python", *(installed / name for name in folders)]
    (installed / "alone").mkdir(exist_ok=True)
    (installed / "alone/headlab_start").symlink_to(folders.pop(0) / "headlab_start")
    return subprocess.run([installed / "bin/headlab", "run", "two words"], capture_output=True, text=True, env={
        "PATH": path, "PYTHONPATH": ":".join(map(str, [installed / "alone", *folders])), **variables})


def test_the_command_starts_the_program_beside_torch(installed):
    with_torch(installed / "site", "2.11.0")
    done = started(installed, "site")
    assert done.stdout.splitlines() == ["", str(installed / "bin/headlab"), str(installed / "bin"), "run", "two words"]


def test_the_command_names_a_torch_in_another_folder_to_the_loader(installed):
    with_torch(installed / "elsewhere", "2.11.0+cu130")
    done = started(installed, "site", "elsewhere", path=f"{installed / 'bin'}:/usr/bin:/bin", LD_LIBRARY_PATH="/own")
    assert done.stdout.splitlines()[:2] == [f"{installed / 'elsewhere/torch/lib'}:/own", "headlab"]


def test_the_command_refuses_another_torch_none_and_a_missing_program(installed):
    assert started(installed, "site").stderr == ('headlab is built with torch 2.11, and here is none: '
                                                 'pip install "torch==2.11.*"\n')
    (installed / "alone/headlab_start").unlink()
    with_torch(installed / "site", "2.10.1")
    assert started(installed, "site").stderr == ('headlab is built with torch 2.11, here is torch 2.10.1: '
                                                 'pip install "torch==2.11.*"\n')
    (installed / "alone/headlab_start").unlink()
    assert "the program of headlab is not in this environment" in started(installed).stderr


def test_all_name_one_version_of_torch():
    setup = re.search(r"^torch=(\d+\.\d+)\.\d+$", (ROOT / "scripts/setup").read_text(), re.M)[1]
    backend = (ROOT / "scripts/cmake/wheel_backend.py").read_text()
    start = (ROOT / "scripts/python/headlab_start/__init__.py").read_text()
    check = (ROOT / "scripts/python/headlab/_torch.py").read_text()
    assert {re.search(r'^(?:TORCH|BUILT_WITH) = "(.*?)"', text, re.M)[1] for text in (backend, start, check)} == {setup}
    assert f"torch=={setup}.*" in PYPROJECT["project"]["dependencies"]
