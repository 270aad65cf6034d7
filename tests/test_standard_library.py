"""A compiler that links libstdc++ into its programs is refused: LibTorch brings the shared one."""

import shutil
import subprocess

import pytest

from conftest import ROOT

PROJECT = """cmake_minimum_required(VERSION 3.24)
project(tiny LANGUAGES CXX)
include({root}/scripts/cmake/StandardLibrary.cmake)
"""


@pytest.fixture
def configure(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT))

    def run(*settings):
        done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", *settings],
                              capture_output=True, text=True)
        return done.returncode, " ".join((done.stdout + done.stderr).split())
    return run


def compiler(folder, name, words):
    """A second g++, as one that has no libstdc++.so."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} {words} "$@"\n')
    path.chmod(0o755)
    return path


def check_refusal(outcome, culprit):
    code, said = outcome
    assert code != 0
    assert str(culprit) in said
    for part in ("libstdc++.so", "free()", "CXX=/usr/bin/g++", "delete "):
        assert part in said


def test_the_shared_library_passes_and_is_asked_for_once(configure, tmp_path):
    code, said = configure()
    assert code == 0, said
    (tmp_path / "build/CMakeFiles/loads_shared").unlink()
    assert configure()[0] == 0
    assert not (tmp_path / "build/CMakeFiles/loads_shared").exists()


@pytest.mark.parametrize("flags", ["CMAKE_EXE_LINKER_FLAGS", "CMAKE_CXX_FLAGS"])
def test_flags_that_link_a_copy_are_refused(configure, flags):
    outcome = configure(f"-D{flags}=-static-libstdc++")
    check_refusal(outcome, "g++")
    assert "-static-libstdc++" in outcome[1]


def test_a_second_compiler_that_links_a_copy_is_refused(configure, tmp_path):
    second = compiler(tmp_path, "g++-other", "-static-libstdc++")
    check_refusal(configure(f"-DCMAKE_CXX_COMPILER={second}"), second)


def test_so_is_the_host_compiler_of_cuda(configure, tmp_path):
    host = compiler(tmp_path, "g++-host", "-static-libstdc++")
    outcome = configure(f"-DCMAKE_CUDA_HOST_COMPILER={host}")
    check_refusal(outcome, host)
    assert "CUDAHOSTCXX=/usr/bin/g++" in outcome[1]


def test_a_compiler_that_links_nothing_shows_its_words(configure, tmp_path):
    broken = compiler(tmp_path, "g++-broken", "-lnothing-of-this-name")
    code, said = configure(f"-DCMAKE_CUDA_HOST_COMPILER={broken}")
    assert code != 0
    assert "cannot link a program" in said and "nothing-of-this-name" in said
