"""What measures the page of a report finds what it measures."""

import re
import subprocess
import sys

from conftest import ROOT

from headlab_log import report


def test_the_bench_of_the_page_sees_every_selection_answered(small_run, tmp_path):
    (tmp_path / "page.html").write_text(report.build([small_run]))
    done = subprocess.run([sys.executable, ROOT / "scripts/bench/report.py", "--page",
                           tmp_path / "page.html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \| \d+ \| \d+ \|$", done.stdout, re.M))
    assert rows == {"step": "2", "probe": "2", "layer": "2", "head": "3", "stat": rows["stat"],
                    "token pointed at": "16"}
