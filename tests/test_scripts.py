"""What the programs of scripts/ say when they are asked, and what they hand to those they start."""

import os
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


def spin_of_venv(**own):
    """GOMP_SPINCOUNT as a Python of scripts/venv sees it; `own`: what its caller has set."""
    inherited = {key: value for key, value in os.environ.items()
                 if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = run("venv", "-c", "import os; print(os.environ.get('GOMP_SPINCOUNT'))",
               env=inherited | own)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_threads_of_a_python_spin_shortly_unless_its_caller_says_otherwise():
    assert spin_of_venv() == "1000"
    assert spin_of_venv(GOMP_SPINCOUNT="7") == "7"
    assert spin_of_venv(OMP_WAIT_POLICY="active") == "None"  # which a count would overrule
