"""headlab_log.serve: a page that follows the run it shows."""

import re
import threading

import h5py
import pytest

from report_testing import SHOWN, chromium, text  # noqa: F401, a fixture too
from test_opening import Growing

from headlab_log import serve
from headlab_log.files import LogError


@pytest.fixture
def served():
    """A function that serves runs until the test ends, and returns the address."""
    running = []

    def start(*runs, every=0.5):
        serving = serve.server(runs, every=every)
        running.append(serving)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{serving.server_port}/"

    yield start
    for serving in running:
        serving.shutdown()
        serving.server_close()


def rows(run):
    with h5py.File(run / "log.h5", "r", swmr=True) as file:
        return file["scalars/step"].size


def test_the_page_of_a_run_that_trains_follows_it(chromium, served, tmp_path):
    growing = Growing(tmp_path)
    try:
        run = growing.until(lambda run: rows(run) > 5)
        chromium.open(served(run) + "#layer=1&stat=self_token")
        state = "return document.querySelector('#runs td[data-label=state]')?.textContent"
        step = "return parseInt(document.querySelector('#runs td[data-label=step]')?.textContent)"
        assert chromium.wait(state) == "running"
        before = chromium.wait(step)  # at first the page may not have one
        chromium.wait(f"{step} > {before}")
        shown = chromium.wait(SHOWN).split()
        assert shown[-2] == "1"  # the layer asked for; the head is the one least like the others
        assert chromium.run("return location.hash") == "#layer=1&stat=self_token"
    finally:
        growing.process.kill()
        growing.process.wait()


def test_only_the_page_and_its_version_are_served(chromium, served, small_run):
    address = served(small_run)
    chromium.open(address + "version")
    version = text(chromium, "body")
    assert re.fullmatch("[0-9a-f]{16}", version)
    chromium.open(address + "etc/passwd")
    assert "only / is here" in text(chromium, "body")
    chromium.open(address)
    assert f'"version":"{version}"' in chromium.run("return document.documentElement.innerHTML")


def test_a_server_says_what_is_wrong_before_it_serves(small_run, served):
    with pytest.raises(LogError, match="there is no such run"):
        serve.server(["nowhere"])
    port = int(re.search(r":(\d+)/", served(small_run))[1])
    with pytest.raises(LogError, match="--port"):
        serve.server([small_run], port)
