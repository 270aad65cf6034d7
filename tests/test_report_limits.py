"""scripts/report at its limits: hostile texts, sizes, runs that are not whole, errors."""

import json
import re
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from safetensors import safe_open

from conftest import ROOT, TINY, program, train
from report_testing import (  # noqa: F401, fixtures too
    choose, chromium, four_digits, make, numbers_in, page, SHOWN, shown_weight, statistic, text,
    url, weights)

from headlab_log import report


def test_tokens_cannot_break_out_of_the_page(page, small_run, tmp_path):
    bad = ["</script><img src=x onerror=alert(1)>", "<b>&amp;", "\u2028`${1}`", "<!--", "\\'\""]
    shutil.copytree(small_run, tmp_path / "bad")
    with h5py.File(tmp_path / "bad/log.h5", "r+") as file:
        file["vocab/text"][:len(bad)] = bad
        file["attention/self/query_token"][:, :len(bad)] = range(len(bad))
        file["attention/self/key_token"][:, :len(bad)] = range(len(bad))
    (tmp_path / "page.html").write_text(report.build([tmp_path / "bad"], title="</title><i>"))
    page.open(url(tmp_path / "page.html", token=4))
    page.wait(SHOWN)
    shown = page.run("return [...document.querySelectorAll('.token .text')]"
                     ".map(text => text.textContent)")
    assert [shown[n] for n in (0, 1, 3, 4)] == [bad[n].replace(" ", "␣") for n in (0, 1, 3, 4)]
    assert page.run("return document.querySelectorAll('img, i, .token b').length") == 0


def test_queries_and_keys_of_different_texts_have_a_strip_each(page, small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "cross")
    with h5py.File(tmp_path / "cross/log.h5", "r+") as file:
        group = file["attention/self"]
        group["query_length"][:] = 6
        group["query_token"][:, :6] = range(6)
        group["weights"][:] = np.arange(16) * 500  # up to 7500 / 65534, ahead too
    (tmp_path / "page.html").write_text(report.build([tmp_path / "cross"]))
    page.open(tmp_path / "page.html")
    page.wait(SHOWN)
    queries, keys = page.all(".tokens")
    numbers = ("return [...document.querySelectorAll('.tokens')].map(strip => "
               "[...strip.children].map(token => token.lastChild.textContent))")
    page.hover(queries.find_elements("css selector", ".token")[2])
    expected = [shown_weight(n * 500 / 65534) for n in range(16)]
    assert page.run(numbers) == [[""] * 6, expected]
    page.hover(keys.find_elements("css selector", ".token")[9])
    assert page.run(numbers) == [[expected[9]] * 6, [""] * 16]


def test_maps_are_left_out_to_keep_the_size_and_the_page_says_so(page, small_run, tmp_path):
    whole, nothing = report.compose([small_run])
    assert nothing == []
    sizes = {found[1]: len(found[0]) for found in re.finditer(
        r'<script type="text/plain" id="m0-self-(\d+-\d+)".*?</script>\n', whole)}
    assert len(sizes) == 6
    one_probe = sum(size for name, size in sizes.items() if name.endswith("-0"))
    bare = len(whole.encode()) - sum(sizes.values()) + 600
    path = tmp_path / "small.html"
    for room, kept, said in ((one_probe, 3, "1 of 2 probes, to keep"),
                             (one_probe - 700, 2, "1 of 2 probes and 2 of 3 snapshots"),
                             (sizes["20-0"], 1, "1 of 2 probes and 1 of 3 snapshots"),
                             (0, 0, "No attention maps")):
        done = make(small_run, "-o", path, "--max-mb", (bare + room) / 1e6)
        assert done.returncode == 0 and said in done.stderr
        html = path.read_text(encoding="utf-8")
        assert len(html.encode()) <= bare + room
        left = re.findall(r'id="m0-self-(\d+)-(\d+)"', html)
        assert len(left) == kept
        assert not left or ("20", "0") in left  # the last snapshot stays to the end
        page.open(path)
        page.wait("return document.querySelector('#stat-grid').dataset.shown")
        assert said in text(page, "#notes")


def test_long_statistics_are_thinned_to_leave_room_for_maps(page, tmp_path):
    run = train(tmp_path, "char_mha", "train.steps=200", "log.every=1", "log.stats_every=1",
                "log.stats=[all]")
    room = len(report.build([run], max_bytes=0).encode())  # as little as can be
    html, said = report.compose([run], max_bytes=room + 50_000)
    assert len(html.encode()) <= room + 50_000
    assert re.search(r"drawn at (200|80|30) of up to 201 logged steps", said[0])
    (tmp_path / "page.html").write_text(html)
    page.open(url(tmp_path / "page.html", layer=1, head=2, stat="entropy"))
    page.wait("return document.querySelector('#curve-value').dataset.shown")
    value, step = numbers_in(text(page, "#curve-value"))
    assert (value, step) == (four_digits(statistic(run, "entropy")[-1, 1, 2]), 200)
    assert re.search(r"Drawn are \d+ of 201 logged steps", text(page, "#stat-scale"))


@pytest.mark.parametrize("total, trained, shown", [
    (31_416, 31_416, "31,416"), (31_416, 2_718, "2,718 trained of 31,416")])
def test_parameters_are_those_of_the_manifest_and_no_checkpoint_is_opened(
        page, small_run, tmp_path, total, trained, shown):
    shutil.copytree(small_run, tmp_path / "run")
    manifest = tmp_path / "run/manifest.json"
    counted = {"parameters": {"total": total, "trained": trained}}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | counted))
    checkpoints = list((tmp_path / "run/ckpt").rglob("*.safetensors"))
    assert len(checkpoints) >= 2
    for file in checkpoints:
        file.write_bytes(b"not to be read")
    (tmp_path / "page.html").write_text(report.build([tmp_path / "run"]))
    page.open(tmp_path / "page.html")
    assert text(page, "#runs td[data-label=parameters]") == shown


def test_parameters_of_an_older_run_are_those_that_its_optimizer_has_moments_of(
        page, small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    manifest = tmp_path / "run/manifest.json"
    told = json.loads(manifest.read_text())
    told.pop("parameters", None)
    manifest.write_text(json.dumps(told))
    (tmp_path / "page.html").write_text(report.build([tmp_path / "run"]))
    page.open(tmp_path / "page.html")
    trained = 0
    with safe_open(small_run / "ckpt/last/optimizer.safetensors", "numpy") as file:
        for name in file.keys():
            if name.startswith("exp_avg."):
                trained += file.get_tensor(name).size
    assert text(page, "#runs td[data-label=parameters]") == f"{trained:,}"


def test_a_checkpoint_that_is_not_whole_is_named(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    (tmp_path / "run/manifest.json").write_text("{}")
    model = tmp_path / "run/ckpt/last/model.safetensors"
    model.write_bytes(model.read_bytes()[:100])
    done = make(tmp_path / "run", "-o", tmp_path / "page.html")
    assert done.returncode == 4 and f"{model}: not a whole safetensors file" in done.stderr


def test_a_killed_run_is_told(page, small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "killed")
    with h5py.File(tmp_path / "killed/log.h5", "r+") as file:
        file.attrs["status"] = "running"  # and nobody holds the lock
    done = make(tmp_path / "killed", "-o", tmp_path / "page.html")
    assert done.returncode == 0 and "headlab repair" in done.stderr
    page.open(tmp_path / "page.html")
    page.wait(SHOWN)
    assert "its writer was killed" in text(page, "#notes")
    assert text(page, "#runs td[data-label=state]") == "killed"


def test_a_diverged_run_says_why_and_shows_no_earlier_loss_as_its_last(page, small_run, tmp_path):
    settings = (*TINY, "train.lr=1e20", "train.warmup=0", "train.clip=0")
    done = subprocess.run([program(), "run", ROOT / "configs/char_mha.yaml", *settings, "--out",
                           tmp_path], capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    path, = tmp_path.glob("char_mha/*")
    with h5py.File(path / "log.h5") as log:
        losses = log["scalars/train_loss"][:]
    assert np.isfinite(losses[0]) and np.isnan(losses[-1])
    assert make(path, small_run, "-o", tmp_path / "page.html").returncode == 0
    page.open(tmp_path / "page.html")
    page.wait(SHOWN)
    assert text(page, "#runs td[data-label='training loss [nat]']") == ""
    said = f"char_mha s1337 {path.name}: failed: the loss or its gradient is not finite at step"
    assert said in text(page, "#notes")


def test_statistics_without_a_number_name_the_call_that_a_kind_lacks(page, small_run, tmp_path):
    def missing(name):
        (tmp_path / "page.html").write_text(report.build([tmp_path / name]))
        page.open(tmp_path / "page.html")
        page.wait("return !document.querySelector('#statistics-missing').hidden")
        return text(page, "#statistics-missing")

    for name in ("silent", "none"):
        shutil.copytree(small_run, tmp_path / name)
        with h5py.File(tmp_path / name / "log.h5", "r+") as file:
            for variable in file["heads/self"].values():
                if name == "none":
                    if variable.maxshape and variable.maxshape[0] is None:
                        variable.resize(0, axis=0)
                elif variable.dtype == "f4":
                    variable[:] = np.nan
    assert "call.observer->weights" in missing("silent") and "'mha'" in missing("silent")
    assert "log.stats_every" not in missing("silent")
    assert "log.stats_every" in missing("none")


@pytest.mark.parametrize("arguments, status, said", [
    (["nowhere"], 4, "there is no such run"),
    ([], 2, "RUN"),
    (["--max-mb", "much", "."], 2, "--max-mb"),
])
def test_errors_are_one_line_and_leave_the_old_page(tmp_path, arguments, status, said):
    (tmp_path / "page.html").write_text("old")
    done = make(*arguments, "-o", tmp_path / "page.html")
    assert done.returncode == status
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "old"


def test_a_page_that_cannot_be_written_is_told(small_run, tmp_path):
    done = make(small_run, "-o", tmp_path / "no" / "page.html")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1 and "cannot be written" in done.stderr


def test_the_last_step_stays_the_last_in_a_longer_run(page, small_run, tmp_path):
    longer = train(tmp_path, "char_mha", "train.steps=30")
    (tmp_path / "page.html").write_text(report.build([small_run, longer]))
    page.open(url(tmp_path / "page.html", layer=0, head=0))
    page.wait(f"{SHOWN} === '0 self 20 0 0 0'")
    choose(page, "run", 1)
    page.wait(f"{SHOWN} === '1 self 30 0 0 0'")
    choose(page, "step", 10)
    page.wait(f"{SHOWN} === '1 self 10 0 0 0'")
    choose(page, "run", 0)  # a step that was chosen stays
    page.wait(f"{SHOWN} === '0 self 10 0 0 0'")


def test_the_bench_of_the_page_sees_every_selection_answered(small_run, tmp_path, chromium):
    (tmp_path / "page.html").write_text(report.build([small_run]))
    done = subprocess.run([sys.executable, ROOT / "scripts/bench/report.py", "--page",
                           tmp_path / "page.html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \| \d+ \| \d+ \|$", done.stdout, re.M))
    assert rows == {"step": "2", "probe": "2", "layer": "2", "head": "3", "stat": rows["stat"],
                    "token pointed at": "16"}
