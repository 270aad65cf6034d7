"""What the Python tests share: tiny trainings, and scripts/ with its packages on the path."""

import atexit
import contextlib
import functools
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from unittest import mock

import pytest

import browser_testing
import warm_program  # noqa: F401: what subprocess starts

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts/python"), str(ROOT / "scripts")]
# nohup ignores the one, a shell the other in what it starts behind &, and with it what tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("HEADLAB_COMMAND", None)  # of the one who runs the tests; see tests/test_install.py


def short_text():
    """A part of Tiny Shakespeare with all its characters. Of the whole each training would measure
    111,000 tokens at its end, half of what it costs."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="headlab-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    whole = (ROOT / "configs/data/tinyshakespeare.txt").read_text(encoding="utf-8")
    text = folder / "tinyshakespeare.txt"
    text.write_text("".join(sorted(set(whole))) + whole[:60_000], encoding="utf-8")
    return text


TINY = ("train.steps=20", "train.batch=4", "train.eval_batches=1", "train.checkpoint.every=20",
        "data.context=16", "model.layers=2", "model.heads=3", "model.d_model=24", "log.every=5",
        "log.stats_every=5", "log.attention.every=10", "log.attention.probes=2",
        f"data.path={short_text()}")


def program():
    given = os.environ.get("HEADLAB_BUILD_DIR")
    folders = [pathlib.Path(given).resolve()] if given else sorted((ROOT / "build").glob("*"))
    found = [f / "headlab" for f in folders if (f / "headlab").is_file()]
    if not found:
        pytest.fail("headlab is not built (HEADLAB_BUILD_DIR names the build directory)")
    return str(max(found, key=lambda f: f.stat().st_mtime))


def headlab(*arguments):
    """Runs the built program and returns what it prints; the test fails with what it says."""
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_this_python(main, *words):
    """What a script of which this is main does, without a start of Python."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    terminates = signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(), \
            mock.patch.object(sys, "argv", [main.__module__, *map(str, words)]):
        warnings.simplefilter("default")
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
            if isinstance(code, str):
                code = print(code, file=err) or 1
        finally:
            signal.signal(signal.SIGTERM, terminates)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def log_command(*words):
    """What `scripts/log ...` does, in this process."""
    from headlab_log.__main__ import main
    return in_this_python(main, *words)


@functools.cache
def commands():
    """The names of all commands, sorted."""
    listed = headlab("--help").split("\nTrain:\n")[1]
    return sorted(re.findall(r"^  (\S+) ", listed, re.M))


def train(out, config="char_mha", *settings):
    """Trains a config of configs/ in a second or two, and returns the run directory."""
    tiny = [one for one in TINY if config.startswith("char_") or not one.startswith("data.path=")]
    headlab("run", ROOT / f"configs/{config}.yaml", *tiny, *settings, "--out", out)
    return max(out.glob(f"{config}/*"), key=lambda run: run.stat().st_mtime)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """A tiny finished training of char_mha with analysis.h5 and ablation.h5 beside its log."""
    path = train(tmp_path_factory.mktemp("small"))
    headlab("analyze", path, "--batches", 1)
    headlab("ablate", path, "--batches", 1)
    return path


@pytest.fixture
def run(small_run):
    import headlab_log as hl
    with hl.open_run(small_run) as opened:
        yield opened


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """A comparison that is finished: its folder, what it printed as JSON and said."""
    from comparison_testing import COMPARISON, TASK, compare  # which import this module
    bench = tmp_path_factory.mktemp("compared")
    (bench / "small.yaml").write_text(TASK)
    (bench / "c.yaml").write_text(COMPARISON)
    return bench, *compare(bench, "--json")


@pytest.fixture(scope="session")
def chromium():
    """The browser of all tests; see browser_testing.py."""
    with browser_testing.browser() as page:
        yield page


@pytest.fixture
def page(chromium):
    """The browser, 1400 pixels wide and light; what it opens must be quiet and stay at home."""
    chromium.size(1400, 900)
    chromium.colour_scheme("light")
    yield chromium
    assert chromium.errors() == []
    assert chromium.requests() == []
