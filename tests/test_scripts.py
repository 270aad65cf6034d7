"""What the programs of scripts/ say when they are asked, and what they hand to those they start."""

import os
import pathlib
import re
import subprocess

import pytest

from conftest import ROOT, program


def run(script, *arguments, **options):
    return subprocess.run([ROOT / "scripts" / script, *arguments], capture_output=True, text=True,
                          **options)


def test_the_bench_of_building_says_how_it_is_called_and_does_nothing():
    for ask in "--help", "-h":
        done = run("bench/build", ask)
        assert done.returncode == 0 and done.stderr == ""
        assert "scripts/bench/build [DIRECTORY]" in done.stdout and "#" not in done.stdout


def test_the_bench_of_building_refuses_what_is_no_folder(tmp_path):
    for wrong in ["--quick"], [tmp_path / "nowhere"], [tmp_path, tmp_path]:
        done = run("bench/build", *wrong)
        assert done.returncode == 2
        assert "scripts/bench/build --help" in done.stderr and "mktemp" not in done.stderr


@pytest.mark.parametrize("words", [(), ("--verbose",), ("releas",), ("",), ("release dev",)])
def test_a_build_of_what_is_no_preset_is_refused_and_leaves_nothing(words):
    before = sorted(path.name for path in (ROOT / "build").glob("*"))
    done = subprocess.run([ROOT / "scripts/build", *words], capture_output=True, text=True)
    assert (done.returncode, "release dev asan" in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in (ROOT / "build").glob("*")) == before


def test_a_build_says_how_it_is_called():
    done = subprocess.run([ROOT / "scripts/build", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "scripts/build PRESET" in done.stdout


def test_laws_of_one_kind_are_asked_for_by_its_name():
    done = run("test", "--kind", "mhaa")
    assert done.returncode == 2
    assert "no variants/mhaa; there are: bigbird " in done.stderr and " mha " in done.stderr
    assert run("test", "--kind").returncode != 0


def test_the_laws_of_one_kind_are_those_of_every_kind():
    """What `scripts/test --kind` runs, of a kind that keeps them."""
    laws = pathlib.Path(program()).parent / "test_laws"
    if not laws.is_file():
        pytest.fail("test_laws is not built")
    done = subprocess.run([laws, "[laws]", "-c", "mha", "-r", "xml"], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout
    ran = re.findall(r'<TestCase name="([^"]*)"', done.stdout)
    listed = re.search(r"set\(laws ([^)]*)\)", (ROOT / "scripts/cmake/Tests.cmake").read_text(encoding="utf-8"))[1]
    texts = "".join((ROOT / name).read_text(encoding="utf-8")
                    for name in re.findall(r"tests/[\w/]+\.cpp", listed + " tests/core/test_gpu_laws.cpp"))
    told = re.findall(r'TEST_CASE\(\s*"([^"]*)",\s*"\[laws\]', texts)
    assert len(told) > 40 and sorted(ran) == sorted(told)
    sections = set(re.findall(r'<Section name="([^"]*)"', done.stdout))
    assert "mha" in sections and "moh" not in sections
