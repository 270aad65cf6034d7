"""scripts/report of several runs, of unlike kinds, shapes and files."""

import json
import shutil

import h5py
import numpy as np
import pytest

from conftest import headlab, log_command, train
from report_testing import (
    choose, fits_the_window, four_digits, numbers_in, settle, SHOWN, shown_weight, statistic, text,
    token_numbers, view, weights)

from headlab_log import report


@pytest.fixture(scope="module")
def kinds(tmp_path_factory, small_run):
    """Runs of many shapes: composed weights, fewer layers, a sliced model, no maps, no head 1.2."""
    out = tmp_path_factory.mktemp("kinds")
    found = {
        "mha": small_run,
        "dcmha": train(out, "char_dcmha"),
        "mapless": train(out, "char_moh", "model.layers=1", "model.heads=4",
                         "log.attention.every=0"),
    }
    headlab("prune", small_run, "--count", 3, "--slice", "--batches", 1, "--out", out / "sliced")
    headlab("analyze", out / "sliced", "--importance", "--batches", 1)
    found["sliced"] = out / "sliced"
    found["pruned"] = out / "pruned"
    shutil.copytree(small_run, found["pruned"])
    with h5py.File(found["pruned"] / "log.h5", "r+") as file:
        file["heads/self/head_mask"][:, 1, 2] = 0
        file["attention/self/weights"][:, :, 1, 2] = 65535
        for variable in file["heads/self"].values():
            if variable.shape[1:] == (2, 3) and variable.dtype == "f4":
                variable[:, 1, 2] = np.nan
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory, kinds):
    path = tmp_path_factory.mktemp("many") / "many.html"
    done = log_command("report", *kinds.values(), "-o", path, "--title", "Many <kinds> & more")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def others(tmp_path_factory, small_run, kinds):
    """A page of runs: name -> run directory. Two have losses of several measures, long names and
    large counts, as a sweep's; the first of them a head unlike all others, too."""
    out = tmp_path_factory.mktemp("others")
    long = [out / f"a-run-with-a-name-that-takes-its-room-{n}/0123abcd-s{1337 + n}" for n in (0, 1)]
    found = {"unlike": long[0], "signed": out / "signed", "one": out / "one", "long": long[1]}
    for n, path in enumerate(long):
        shutil.copytree(small_run, path)
        with h5py.File(path / "log.h5", "r+") as file:
            file["eval/val_tokens"][:] = 4096 * (n + 1)
            file["scalars/wall_time"][:] = 123456.0
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["parameters"] = {"trained": 123456789, "total": 987654321}
        (path / "manifest.json").write_text(json.dumps(manifest))
    with h5py.File(found["unlike"] / "log.h5", "r+") as file:
        for name, value in (("mean_distance", 11.5), ("prev_token", 0.9), ("self_token", 0),
                            ("first_token", 0), ("entropy_normalized", 0.1)):
            file[f"heads/self/{name}"][-1, 1, 2] = value
    shutil.copytree(kinds["dcmha"], found["signed"])
    with h5py.File(found["signed"] / "log.h5", "r+") as file:
        stored = file["attention/self/weights"]
        assert stored.dtype == "f4" and stored.attrs["normalization"] == "composed"
        stored[:, 1] *= -70  # more than 16 bits hold in thousandths
        stored[:, 0, :, :, 5:] *= -1
    headlab("prune", small_run, "--count", 2, "--tune", 1, "--batches", 1, "--out", found["one"])
    (out / "page.html").write_text(report.build(list(found.values())))
    return found


def show(page, others, name, **state):
    page.show(others["one"].parent / "page.html", run=list(others).index(name), **state)


def test_tokens_stay_where_they_are_when_numbers_appear(page, many):
    for run in (0, 1):  # plain and composed weights
        page.show(many, run=run)
        place = ("const box = arguments[0].getBoundingClientRect();"
                 "return [box.x + scrollX, box.y + scrollY, box.width]")
        last = page.all(".token")[-1]
        before = page.run(place, last)
        page.hover(last)
        page.wait("return document.querySelector('#token-shown').dataset.shown")
        assert page.run(place, last) == before


def test_a_head_that_was_pruned_is_shown_as_absent(page, many):
    page.show(many, run=4, layer=1, head=2, hide="0,1,2,3")
    page.wait(f"{SHOWN} === '4 self 20 0 1 2'")
    page.wait("return document.querySelector('#stat-grid').dataset.shown.endsWith(' 4')")
    absent = page.run("return [...document.querySelectorAll('#stat-grid .absent')]"
                      ".map(cell => cell.ariaLabel)")
    assert absent == ["layer 1, head 2: absent"]
    assert "no such head" in text(page, "#curve-value")
    page.hover(page.all(".token")[4])
    assert set(token_numbers(page)) == {""}


def test_a_run_without_maps_says_what_logs_them(page, many):
    page.show(many, run=2, layer=0, head=0)
    page.wait("return !document.querySelector('#attention-missing').hidden")
    assert "log.attention.every" in text(page, "#attention-missing")
    assert not page.one("#attention-body").is_displayed()
    assert "headlab analyze" in text(page, "#roles-missing")
    choose(page, "run", 0)  # and the others still show theirs
    page.wait(f"{SHOWN} === '0 self 20 0 0 0'")
    assert page.one("#attention-body").is_displayed()


def test_runs_of_different_shapes_lie_over_each_other(page, many, kinds):
    page.show(many, stat="entropy")
    page.wait("return document.querySelector('#stat-grid').dataset.shown")
    cells = page.run("""return [...document.querySelectorAll('#stat-grid .cell')].map(cell =>
        [cell.dataset.layer, cell.dataset.head, cell.querySelectorAll('path').length])""")
    lines = {(int(layer), int(head)): count for layer, head, count in cells}
    assert lines[0, 0] == 4  # mha, dcmha, mapless, pruned; the sliced one has no log
    assert lines[0, 3] == 1  # only moh has four heads
    assert lines[1, 2] == 2  # neither moh, of one layer, nor the pruned one
    assert lines[1, 3] == 0
    choose(page, "stat", "route_entropy")  # of a layer, not of a head
    page.wait("return document.querySelector('#stat-grid').dataset.shown"
              ".startsWith('route_entropy')")
    assert len(page.all("#stat-grid .cell")) == 2
    choose(page, "run", 2)
    page.wait("return document.querySelector('#curve-value').textContent.startsWith('Last')")
    expected = statistic(kinds["mapless"], "route_entropy")[-1, 0]
    assert numbers_in(text(page, "#curve-value"))[0] == four_digits(expected)


def test_a_sliced_run_shows_its_pruning(page, many, kinds):
    page.show(many)
    page.wait("return document.querySelector('#prune-plot').data?.length == 1")
    with h5py.File(kinds["sliced"] / "pruning.h5") as file:
        kept, loss = file["pruning/kept"][:], file["pruning/loss"][:]
        gone = np.argwhere(file["pruning/removed"][1] == 1)
    drawn = page.run("const [t] = document.querySelector('#prune-plot').data; "
                     "return [t.x, t.y, t.text]")
    assert drawn[0] == list(kept)
    assert drawn[1] == pytest.approx(list(loss), rel=1e-6)
    assert all(f"{layer}.{head}" in drawn[2][1] for layer, head in gone)


def test_a_run_without_a_log_shows_what_was_measured_of_it(page, many, kinds):
    with h5py.File(kinds["sliced"] / "analysis.h5") as file:
        importance = file["analysis/self/importance"][:]
    gone, kept = np.argwhere(np.isnan(importance))[0], np.argwhere(~np.isnan(importance))[0]
    page.show(many, run=3, layer=gone[0], head=gone[1])
    page.wait("return document.querySelector('#head-roles').textContent.endsWith('absent')")
    assert "no log.h5" in text(page, "#attention-missing")
    page.run("arguments[0].click()",
             page.one(f"#role-grid [data-layer='{kept[0]}'][data-head='{kept[1]}']"))
    assert numbers_in(text(page, "#head-roles"))[-1] == four_digits(importance[tuple(kept)])
    assert len(page.all("#role-grid .absent")) == np.isnan(importance).sum() == 3


def test_what_differs_between_runs_is_told(page, many):
    page.show(many)
    rows = page.run("return [...document.querySelectorAll('#differences tbody tr')]"
                    ".map(row => [...row.children].map(cell => cell.textContent))")
    found = {row[0]: row[1:] for row in rows}
    assert found["model.attention.kind"] == ["mha", "dcmha", "moh", "mha", "mha"]
    assert found["model.layers"] == ["2", "2", "1", "2", "2"]
    assert found["model.attention.shared"][0] == "—"
    assert "train.steps" not in found


def test_runs_can_be_hidden(page, many):
    page.show(many)
    page.wait("return document.querySelector('#scalar-plot').data?.length == 8")
    page.all("#losses .legend button")[1].click()
    page.wait("return document.querySelector('#scalar-plot').data.length == 6")
    assert page.run("return location.hash") == "#hide=1"


def test_the_title_is_text(page, many):
    page.show(many)
    assert text(page, "h1") == page.run("return document.title") == "Many <kinds> & more"


def test_a_phone_shows_many_runs_without_scrolling_sideways(page, many):
    page.size(390, 844)
    page.show(many, run=1, token=3)
    assert fits_the_window(page)


def test_on_a_phone_every_run_of_what_differs_is_seen(page, many):
    page.size(390, 844)
    page.show(many)
    settle(page)
    cells = page.run("""return [...document.querySelectorAll('#differences td')].map(cell => {
        const box = cell.getBoundingClientRect();
        return [box.left, box.right, box.height]; })""")
    assert len(cells) > 12
    assert all(0 <= left < right <= 390 and height > 0 for left, right, height in cells)
    said = page.run("""return [...document.querySelectorAll('#differences td[data-label]')].map(
        cell => getComputedStyle(cell, '::before').content)""")
    assert said and all("s1337" in label for label in said)


def test_the_same_head_of_another_run_stands_beside(page, many, kinds, tmp_path):
    beside = "return document.querySelector('#beside').dataset.shown"

    def centre(canvas, row, column, size):
        """The colour in the middle of a cell, by what the canvas drew."""
        return page.run("""const c = document.querySelector(arguments[0]);
            const [left, top, width, height] = arguments[1], ratio = devicePixelRatio;
            const x = (left + (arguments[3] + .5) * width / arguments[4]) * ratio;
            const y = (top + (arguments[2] + .5) * height / arguments[4]) * ratio;
            return [...c.getContext('2d').getImageData(x, y, 1, 1).data]""",
                        canvas[0], canvas[1], row, column, size)

    page.show(many, layer=0, head=1)
    page.wait(f"{beside} === '1 self 20 0 0 1'")
    choose(page, "beside-run", 4)  # the copy of run 0 whose head 1.2 is gone
    page.wait(f"{beside} === '4 self 20 0 0 1'")
    assert "beside=4" in page.run("return location.hash")
    wide = page.run("""const box = document.querySelector('#map-box').clientWidth,
        other = parseFloat(document.querySelector('#beside-map').style.width);
        return [box, parseFloat(document.querySelector('#map').style.height), other,
                parseFloat(document.querySelector('#beside-map').style.height)]""")
    width = wide[0] - 64
    own = ("#map", [58, 4, width, width])
    other = ("#beside-map", [3, 4, wide[2] - 6, wide[3] - 8])
    for row, column in ((0, 0), (5, 2), (15, 15), (15, 0)):
        assert centre(own, row, column, 16) == centre(other, row, column, 16)
    view(page, step=10, layer=0, head=0)
    page.wait(f"{beside} === '4 self 10 0 0 0'")
    assert text(page, "#beside-step") == ", step 10"


def test_a_report_opens_at_the_head_that_is_least_like_the_others(page, others):
    path = others["one"].parent / "page.html"
    page.show(path)
    assert page.run(SHOWN) == "0 self 20 0 1 2" and page.run("return location.hash") == ""
    said = text(page, "#head-words")
    assert said.startswith("On average this head looks 11.5 tokens away.")
    assert said.endswith("No other head is less like the rest.")
    choose(page, "head", 0)
    page.wait(f"{SHOWN} === '0 self 20 0 1 0'")
    assert "11.5" not in text(page, "#head-words")
    assert not text(page, "#head-words").endswith("the rest.")
    page.show(path, layer=0, head=1)  # a link shows what it says
    assert page.run(SHOWN) == "0 self 20 0 0 1"


def test_signed_weights_of_composed_heads_are_shown(page, others):
    show(page, others, "signed")
    run, least = list(others).index("signed"), 0
    for probe, query in ((0, 3), (0, 9), (1, 0), (1, 12)):
        view(page, run, 20, probe, 1, 1)
        expected = weights(others["signed"], 20, probe, 1, 1)[query, :query + 1]
        least = min(least, expected.min())
        page.hover(page.all(".token")[query])
        page.wait(f"return document.querySelector('#token-shown').dataset.shown == 'query {query}'")
        assert token_numbers(page)[:query + 1] == [shown_weight(w) for w in expected]
    assert least < -32.768


def test_statistics_of_a_single_record_are_numbers_and_no_empty_cells(page, others):
    with h5py.File(others["one"] / "log.h5") as file:
        entropy = file["heads/self/entropy"][:]
    assert entropy.shape == (1, 2, 3)
    run = list(others).index("one")
    hidden = ",".join(str(n) for n in range(len(others)) if n != run)
    show(page, others, "one", stat="entropy", hide=hidden)
    shown = page.run("return [...document.querySelectorAll('#stat-grid .cell')].map(cell =>"
                     "cell.classList.contains('absent') ? 'absent' : cell.textContent)")
    assert shown.count("absent") == 2
    assert [float(s) for s in shown if s != "absent"] == pytest.approx(
        entropy[~np.isnan(entropy)], abs=0.006)
    for plot in "#scalar-plot", "#curve-plot":
        page.wait("return document.querySelector(arguments[0]).data?.length <= 3", plot)  # no other's
        lines = page.run("return document.querySelector(arguments[0]).data.map("
                         "line => [line.x.length, line.mode])", plot)
        assert lines and all("markers" in mode for length, mode in lines if length == 1)


# Words of the table of runs that lie on more than one line.
BROKEN = """
const broken = [];
for (const cell of document.querySelectorAll("#runs td:not(:first-child)")) {
  const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    for (const word of node.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) broken.push(word[0]);
    }
  }
}
return broken;
"""


def test_no_number_in_the_table_of_runs_is_broken(page, others):
    for width in (1400, 1000, 700):
        page.size(width, 900)
        show(page, others, "unlike")
        assert "987,654,321" in text(page, "#runs")
        page.wait("return innerWidth == arguments[0]", width)
        assert page.run(BROKEN) == []
        assert fits_the_window(page)
