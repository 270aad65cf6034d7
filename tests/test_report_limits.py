"""scripts/report at its limits: hostile texts, sizes, runs that are not whole, errors."""

import json
import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from safetensors import safe_open

from conftest import ROOT, TINY, log_command, program
from report_testing import (
    choose, four_digits, numbers_in, SHOWN, shown_weight, statistic, text)

from headlab_log import report

BAD = ["</script><img src=x onerror=alert(1)>", "<b>&amp;", "\u2028`${1}`", "<!--", "\\'\""]


def make(*arguments):
    return log_command("report", *arguments)


def told(run, **changes):
    """Changes what the manifest of a run says; None takes it out."""
    path = run / "manifest.json"
    said = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))


@pytest.fixture(scope="module")
def odd(tmp_path_factory, small_run):
    """A page of runs that are odd, whose title is hostile: name -> run directory."""
    out = tmp_path_factory.mktemp("odd")
    runs = {name: out / name for name in ("bad", "cross", "longer", "killed", "silent")}
    for path in runs.values():
        shutil.copytree(small_run, path)
    with h5py.File(runs["bad"] / "log.h5", "r+") as file:
        file["vocab/text"][:len(BAD)] = BAD
        file["attention/self/query_token"][:, :len(BAD)] = range(len(BAD))
        file["attention/self/key_token"][:, :len(BAD)] = range(len(BAD))
    with h5py.File(runs["cross"] / "log.h5", "r+") as file:
        group = file["attention/self"]
        group["query_length"][:] = 6
        group["query_token"][:, :6] = range(6)
        group["weights"][:] = np.arange(16) * 500  # up to 7500 / 65534, ahead too
    with h5py.File(runs["longer"] / "log.h5", "r+") as file:
        file["attention/self/step"][-1] = 30
    with h5py.File(runs["killed"] / "log.h5", "r+") as file:
        file.attrs["status"] = "running"  # and nobody holds the lock
    for name in "analysis.h5", "ablation.h5":
        (runs["silent"] / name).unlink()
    with h5py.File(runs["silent"] / "log.h5", "r+") as file:
        for group in "heads", "attention":
            file.move(f"{group}/self", f"{group}/encoder_self")
            file.copy(file[f"{group}/encoder_self"], file[group], name="cross", expand_refs=True)
        for variable in file["heads/encoder_self"].values():
            if variable.dtype == "f4":
                variable[:] = np.nan
        for variable in file["heads/cross"].values():
            if variable.maxshape and variable.maxshape[0] is None:
                variable.resize(0, axis=0)
    for name, trained in ("bad", 31_416), ("cross", 2_718):
        told(runs[name], parameters={"total": 31_416, "trained": trained})
        checkpoints = list((runs[name] / "ckpt").rglob("*.safetensors"))
        assert len(checkpoints) >= 2
        for file in checkpoints:
            file.write_bytes(b"not to be read")
    told(runs["killed"], parameters=None)  # of a version that did not count them
    settings = (*TINY, "train.lr=1e20", "train.warmup=0", "train.clip=0")
    done = subprocess.run([program(), "run", ROOT / "configs/char_mha.yaml", *settings, "--out", out],
                          capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    runs["diverged"], = out.glob("char_mha/*")
    done = make(*runs.values(), "-o", out / "page.html", "--title", "</title><i>")
    assert done.returncode == 0 and "headlab repair" in done.stderr
    return runs


def show(page, odd, name, **state):
    page.show(odd["bad"].parent / "page.html", run=list(odd).index(name), **state)


def cell(page, odd, name, column):
    """What the table of runs says of one."""
    row = list(odd).index(name)
    return page.run("return document.querySelectorAll('#runs tbody tr')[arguments[0]]"
                    ".querySelector(arguments[1]).textContent", row, f"td[data-label='{column}']")


def test_tokens_cannot_break_out_of_the_page(page, odd):
    show(page, odd, "bad", token=4)
    shown = page.run("return [...document.querySelectorAll('.token .text')]"
                     ".map(text => text.textContent)")
    assert [shown[n] for n in (0, 1, 3, 4)] == [BAD[n].replace(" ", "␣") for n in (0, 1, 3, 4)]
    assert page.run("return document.querySelectorAll('img, i, .token b').length") == 0


def test_queries_and_keys_of_different_texts_have_a_strip_each(page, odd):
    show(page, odd, "cross")
    queries, keys = page.all(".tokens")
    numbers = ("return [...document.querySelectorAll('.tokens')].map(strip => "
               "[...strip.children].map(token => token.lastChild.textContent))")
    page.hover(queries.find_elements("css selector", ".token")[2])
    expected = [shown_weight(n * 500 / 65534) for n in range(16)]
    assert page.run(numbers) == [[""] * 6, expected]
    page.hover(keys.find_elements("css selector", ".token")[9])
    assert page.run(numbers) == [[expected[9]] * 6, [""] * 16]


def test_parameters_are_those_of_the_manifest_and_no_checkpoint_is_opened(page, odd):
    show(page, odd, "bad")
    assert cell(page, odd, "bad", "parameters") == "31,416"
    assert cell(page, odd, "cross", "parameters") == "2,718 trained of 31,416"


def test_parameters_of_an_older_run_are_those_that_its_optimizer_has_moments_of(page, odd):
    show(page, odd, "killed")
    trained = 0
    with safe_open(odd["killed"] / "ckpt/last/optimizer.safetensors", "numpy") as file:
        for name in file.keys():
            if name.startswith("exp_avg."):
                trained += file.get_tensor(name).size
    assert trained and cell(page, odd, "killed", "parameters") == f"{trained:,}"


def test_a_killed_run_is_told(page, odd):
    show(page, odd, "killed")
    assert "its writer was killed" in text(page, "#notes")
    assert cell(page, odd, "killed", "state") == "killed"


def test_a_diverged_run_says_why_and_shows_no_earlier_loss_as_its_last(page, odd):
    path = odd["diverged"]
    with h5py.File(path / "log.h5") as log:
        losses = log["scalars/train_loss"][:]
    assert np.isfinite(losses[0]) and np.isnan(losses[-1])
    show(page, odd, "diverged")
    assert cell(page, odd, "diverged", "training loss [nat]") == ""
    said = f"char_mha s1337 {path.name}: failed: the loss or its gradient is not finite at step"
    assert said in text(page, "#notes")


def test_the_last_step_stays_the_last_in_a_longer_run(page, odd):
    plain, longer = (list(odd).index(name) for name in ("bad", "longer"))
    show(page, odd, "bad", layer=0, head=0)
    assert page.run(SHOWN) == f"{plain} self 20 0 0 0"
    choose(page, "run", longer)
    page.wait(f"{SHOWN} === '{longer} self 30 0 0 0'")
    choose(page, "step", 10)
    page.wait(f"{SHOWN} === '{longer} self 10 0 0 0'")
    choose(page, "run", plain)  # a step that was chosen stays
    page.wait(f"{SHOWN} === '{plain} self 10 0 0 0'")


def test_statistics_without_a_number_name_the_call_that_a_kind_lacks(page, odd):
    """Those of one site were logged and are silent, those of another were never logged."""
    def missing(site):
        show(page, odd, "silent", site=site)
        assert page.one("#statistics-missing").is_displayed()
        return text(page, "#statistics-missing")

    silent = missing("encoder_self")
    assert "call.observer->weights" in silent and "'mha'" in silent
    assert "log.stats_every" not in silent
    assert "log.stats_every" in missing("cross")


def test_maps_are_left_out_to_keep_the_size_and_the_page_says_so(small_run, tmp_path):
    whole, nothing = report.compose([small_run])
    assert nothing == []
    sizes = {found[1]: len(found[0]) for found in re.finditer(
        r'<script type="text/plain" id="m0-self-(\d+-\d+)".*?</script>\n', whole)}
    assert len(sizes) == 6
    one_probe = sum(size for name, size in sizes.items() if name.endswith("-0"))
    bare = len(whole.encode()) - sum(sizes.values()) + 600
    for room, kept, said in ((one_probe, 3, "1 of 2 probes, to keep"),
                             (sizes["20-0"], 1, "1 of 2 probes and 1 of 3 snapshots"),
                             (0, 0, "No attention maps")):
        done = make(small_run, "-o", tmp_path / "small.html", "--max-mb", (bare + room) / 1e6)
        assert done.returncode == 0 and said in done.stderr
        html = (tmp_path / "small.html").read_text(encoding="utf-8")
        assert len(html.encode()) <= bare + room and said in html
        left = re.findall(r'id="m0-self-(\d+)-(\d+)"', html)
        assert len(left) == kept
        assert not left or ("20", "0") in left  # the last snapshot stays to the end


def lengthen(group, rows):
    """Repeats the last row of what a log holds step by step, until there are so many."""
    count = len(group["step"])
    for data in group.values():
        if data.maxshape and data.maxshape[0] is None:
            data.resize(rows, axis=0)
            data[count:] = data[count - 1]
    group["step"][:] = np.arange(rows)


def test_long_statistics_are_thinned_to_leave_room_for_maps(page, small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    with h5py.File(tmp_path / "run/log.h5", "r+") as file:
        lengthen(file["heads/self"], 201)
        for data in file["heads/self"].values():  # which else would pack well
            if data.dtype == "f4":
                data[:-1] += np.random.default_rng(1).normal(size=data[:-1].shape) / 100
    room = len(report.build([tmp_path / "run"], max_bytes=0).encode())  # as little as can be
    html, said = report.compose([tmp_path / "run"], max_bytes=room + 20_000)
    assert len(html.encode()) <= room + 20_000
    assert re.search(r"drawn at (200|80|30) of up to 201 logged steps", said[0])
    (tmp_path / "page.html").write_text(html)
    page.show(tmp_path / "page.html", layer=1, head=2, stat="entropy")
    value, step = numbers_in(text(page, "#curve-value"))
    last = statistic(tmp_path / "run", "entropy")[-1, 1, 2]
    assert (value, step) == (four_digits(last), 200)
    assert re.search(r"Drawn are \d+ of 201 logged steps", text(page, "#stat-scale"))
    assert said[0] in text(page, "#notes")  # what was left out is told on the page


def test_a_checkpoint_that_is_not_whole_is_named(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    (tmp_path / "run/manifest.json").write_text("{}")
    model = tmp_path / "run/ckpt/last/model.safetensors"
    model.write_bytes(model.read_bytes()[:100])
    done = make(tmp_path / "run", "-o", tmp_path / "page.html")
    assert done.returncode == 4 and f"{model}: not a whole safetensors file" in done.stderr


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
