"""scripts/setup where one is not root: what CMake finds, what is said of the rest, whose torch."""

import os
import shutil
import subprocess

import pytest

from conftest import ROOT

TORCH = "2.11.0"


@pytest.fixture
def tree(tmp_path):
    """scripts/ alone, in which LibTorch and the Python are there already."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts", symlinks=True,
                    ignore=shutil.ignore_patterns("notebooks"))
    made = tree / ".deps/venv/bin/python"
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\nexit 1\n")  # nothing is fetched
    made.chmod(0o755)
    (tree / ".deps/venv/made").touch()
    return tree


def stub(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/bash\n" + text + "\n")
    (folder / name).chmod(0o755)


def setup(tree, *arguments, **variables):
    environment = {**os.environ, **variables,
                   "PATH": f"{tree / 'stubs'}:/usr/local/bin:/usr/bin:/bin"}
    environment.pop("CMAKE_PREFIX_PATH", None)
    done = subprocess.run([tree / "scripts/setup", *arguments], capture_output=True, text=True,
                          env=environment)
    return done.returncode, done.stdout + done.stderr


def torch(folder, version, *more):
    """A site-packages that has the files which are looked at, in the shape of a small library."""
    lib = folder / "torch/lib"
    lib.mkdir(parents=True)
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
    shutil.copy("/bin/true", lib / "libtorch_cpu.so")
    for path in (lib / "libgomp.so.1", *(folder / name for name in more)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.fixture
def bare(tree):
    """No package of Debian is installed, and installing fails."""
    stub(tree / "stubs", "dpkg-query", "exit 1")
    for name in "apt-get", "sudo":
        stub(tree / "stubs", name, f'touch "{tree}/{name}.called"; exit 100')
    return tree


def test_what_is_missing_is_named_with_the_ways_to_it(bare):
    stub(bare / "stubs", "cmake", "echo '-- missing: fmt;HDF5'")
    code, said = setup(bare)
    assert code == 1
    assert "setup: not found: fmt HDF5" in said
    for way in ("apt-get install g++ cmake ", "conda env create -f environment.yml",
                "scripts/setup --local", "CMAKE_PREFIX_PATH"):
        assert way in said
    assert (bare / "apt-get.called").exists() or (bare / "sudo.called").exists()


def test_what_cmake_finds_is_not_installed_whatever_dpkg_knows(bare):
    torch(bare / ".deps/torch", TORCH)
    for name in ("torch-2.11.0", "nvidia_cuda_cupti-13.0.85", "nvidia_cuda_runtime-13.0.96"):
        (bare / f".deps/torch/{name}.dist-info").mkdir()
    stub(bare / "stubs", "cmake", f"echo asked >>'{bare}/asked'; echo '-- missing: '")
    assert setup(bare) == (0, "")
    assert not (bare / "apt-get.called").exists() and not (bare / "sudo.called").exists()
    assert setup(bare) == (0, "")
    assert (bare / "asked").read_text() == "asked\n"  # once
    setup(bare, CONDA_PREFIX="/elsewhere")
    assert (bare / "asked").read_text() == "asked\nasked\n"


def test_a_library_in_the_prefix_path_comes_before_the_systems(tmp_path):
    prefix = tmp_path / "prefix"
    for name in ("include/hdf5.h", "lib/libhdf5.so", "lib/libhdf5_hl.so", "include/utf8proc.h",
                 "lib/libutf8proc.so"):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).touch()
    subprocess.run(["cmake", "-S", ROOT / "scripts/cmake/ask", "-B", tmp_path / "asked", "-G",
                    "Ninja"], check=True, capture_output=True,
                   env={**os.environ, "CMAKE_PREFIX_PATH": str(prefix)})
    cache = (tmp_path / "asked/CMakeCache.txt").read_text()
    for found in ("HDF5_INCLUDE_DIR:PATH={}/include", "utf8proc_INCLUDE_DIR:PATH={}/include",
                  "utf8proc_utf8proc:FILEPATH={}/lib/libutf8proc.so"):
        assert found.format(prefix) in cache or "/.deps/system/" in cache


def test_cmake_says_all_that_is_missing(tmp_path):
    asked = subprocess.run(["cmake", "-S", ROOT / "scripts/cmake/ask", "-B", tmp_path / "asked",
                            "-G", "Ninja", "-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON",
                            "-DCMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON"], check=True,
                           capture_output=True, text=True)
    assert "-- missing: fmt;ZLIB\n" in asked.stdout


def test_a_torch_of_ones_own_is_used_and_given_back(tree, tmp_path):
    fetched = torch(tree / ".deps/torch", TORCH)
    for name in ("torch-2.11.0", "nvidia_cuda_cupti-13.0.85", "nvidia_cuda_runtime-13.0.96"):
        (fetched / f"{name}.dist-info").mkdir()
    mine = torch(tmp_path / "mine", TORCH + "+cu130", "nvidia/cu13/lib/libcublas.so.13")
    code, said = setup(tree, HEADLAB_TORCH=str(mine))
    assert (code, said) == (0, f"setup: LibTorch is that of {mine}\n")
    assert (tree / ".deps/torch").readlink() == mine
    assert setup(tree) == (0, "") and (tree / ".deps/torch").readlink() == mine
    assert setup(tree, "--cuda") == (0, "")  # it has the libraries
    assert setup(tree, HEADLAB_TORCH="") == (0, "")
    assert not (tree / ".deps/torch").is_symlink() and fetched.is_dir()


def test_a_torch_without_gpu_libraries_is_for_cpu(tree, tmp_path):
    mine = torch(tmp_path / "mine", TORCH + "+cpu")
    assert setup(tree, HEADLAB_TORCH=str(mine))[0] == 0
    code, said = setup(tree, "--cuda")
    assert code == 1 and "has no GPU libraries" in said


@pytest.mark.parametrize("version", ["2.9.1+cu128", "2.11.1", "3.0.0"])
def test_another_version_of_torch_is_refused_by_its_name(tree, tmp_path, version):
    mine = torch(tmp_path / "mine", version)
    code, said = setup(tree, HEADLAB_TORCH=str(mine))
    assert code == 1
    assert f"holds torch {version.split('+')[0]}; headlab needs torch {TORCH}" in said
    assert not (tree / ".deps/torch").exists()


def test_a_folder_without_torch_is_refused_and_one_that_is_gone_is_told(tree, tmp_path):
    code, said = setup(tree, HEADLAB_TORCH=str(tmp_path))
    assert code == 1 and f"HEADLAB_TORCH: no torch in {tmp_path}" in said
    mine = torch(tmp_path / "mine", TORCH)
    assert setup(tree, HEADLAB_TORCH=str(mine))[0] == 0
    shutil.rmtree(mine)
    code, said = setup(tree)
    assert code == 1 and "is gone or another version" in said


def test_unpacking_needs_debian_and_says_so(tree):
    stub(tree / "stubs", "apt-get", "exit 100")
    code, said = setup(tree, "--local")
    assert code == 1 and "apt-get update failed" in said
    assert not (tree / ".deps/system").exists()
