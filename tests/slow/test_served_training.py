"""The page that scripts/log serve shows of a training follows it."""

import threading

import h5py

from report_testing import SHOWN
from test_opening import growing  # noqa: F401: a fixture

from headlab_log import serve


def rows(run):
    with h5py.File(run / "log.h5", "r", swmr=True) as file:
        return file["scalars/step"].size


def test_the_page_of_a_run_that_trains_follows_it(chromium, growing):  # noqa: F811
    serving = serve.server([growing().until(lambda run: rows(run) > 5)], every=0.5)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        chromium.open(serving.address + "#layer=1&stat=self_token")
        state = "return document.querySelector('#runs td[data-label=state]')?.textContent"
        step = "return parseInt(document.querySelector('#runs td[data-label=step]')?.textContent)"
        assert chromium.wait(state) == "running"
        before = chromium.wait(step)  # at first the page may not have one
        chromium.wait(f"{step} > {before}")
        shown = chromium.wait(SHOWN).split()
        assert shown[-2] == "1"  # the layer asked for; the head is the one least like the others
        assert chromium.run("return location.hash") == "#layer=1&stat=self_token"
    finally:
        chromium.open("about:blank")
        serving.shutdown()
        serving.server_close()


