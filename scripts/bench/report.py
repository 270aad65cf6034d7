"""Measures a report of 12 layers x 12 heads x 20 snapshots: its size, and how soon it answers.

    scripts/venv scripts/bench/report.py [--page report.html]

Trains the run (half a minute), makes its page and selects in it, in headless Chromium at 1400 x 900.
A response is from the event to the second animation frame after the page has changed, when it is
painted; two frames take 33 ms. Prints Markdown. --page: measures that page instead.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import browser_testing

RUN = ("model.layers=12 model.heads=12 model.d_model=144 train.steps=190 train.batch=4 "
       "train.eval_batches=1 log.every=1 log.stats_every=1 log.attention.every=10").split()
# Selects: what is shown by them changes its attribute data-shown.
SELECTIONS = {"step": "#attention-body", "probe": "#attention-body", "layer": "#attention-body",
              "head": "#attention-body", "stat": "#stat-grid"}
COMMON = """
const frame = () => new Promise(done => requestAnimationFrame(done));
const rest = () => new Promise(done => setTimeout(done, 120));
async function painted(start) { await frame(); await frame(); return performance.now() - start; }
"""
SELECT = COMMON + """
const [name, shown, done] = arguments, select = document.getElementById(name), times = [];
(async () => {
  for (const option of [...select.options].reverse()) {
    if (option.selected) continue;
    await rest();
    const changed = new Promise(seen => new MutationObserver((_, observer) => {
      observer.disconnect(); seen();
    }).observe(document.querySelector(shown), {attributeFilter: ["data-shown"]}));
    const start = performance.now();
    select.value = option.value;
    select.dispatchEvent(new Event("change", {bubbles: true}));
    await changed;
    times.push(await painted(start));
  }
  done(times);
})();
"""
HOVER = COMMON + """
const done = arguments[0], times = [];
(async () => {
  for (const token of document.querySelectorAll(".token")) {
    const start = performance.now();
    token.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, pointerType: "mouse"}));
    times.push(await painted(start));
  }
  done(times);
})();
"""


def make_page(folder):
    config = str(ROOT / "configs/char_mha.yaml")
    subprocess.run([str(ROOT / "scripts/headlab"), "run", config, *RUN, "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    (run,) = pathlib.Path(folder).glob("char_mha/*")
    page = pathlib.Path(folder) / "report.html"
    subprocess.run([str(ROOT / "scripts/report"), str(run), "-o", str(page)], check=True,
                   stdout=subprocess.DEVNULL)
    return page


def measure(path):
    """{what: milliseconds of each response}"""
    with browser_testing.browser() as page:
        page.driver.set_script_timeout(300)
        page.size(1400, 900)
        page.open(path)
        page.wait("return document.querySelector('#attention-body').dataset.shown"
                  " && document.querySelector('#scalar-plot .main-svg')")
        found = {name: page.run_async(SELECT, name, shown) for name, shown in SELECTIONS.items()}
        return found | {"token pointed at": page.run_async(HOVER)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=pathlib.Path, help="a report that is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.page or make_page(folder)
        print(f"page: {path.stat().st_size / 1e6:.1f} MB\n")
        print("| selection | responses | median [ms] | longest [ms] |\n|---|--:|--:|--:|")
        for name, times in measure(path.resolve()).items():
            if times:
                print(f"| {name} | {len(times)} | {statistics.median(times):.0f} | {max(times):.0f} |")


if __name__ == "__main__":
    main()
