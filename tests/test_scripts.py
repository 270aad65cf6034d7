"""What the programs of scripts/ say when they are asked, and what they hand to those they start."""

import subprocess

from conftest import ROOT


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
