"""scripts/report: the page shows what the files hold, to whoever reads it, and needs no network."""

import re
import shutil
import subprocess
import sys
import threading

import h5py
import numpy as np
import pytest

import browser_testing
from conftest import ROOT, headlab, train
from test_reader import Growing

from headlab_log import report, serve
from headlab_log.files import LogError

SHOWN = "return document.querySelector('#attention-body').dataset.shown"


def make(*arguments):
    """Runs scripts/report in this Python."""
    command = [sys.executable, "-m", "headlab_log.report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "scripts")


def weights(run, step, probe, layer, head):
    """One map read by h5py alone, (query, key)."""
    with h5py.File(run / "log.h5") as file:
        group = file["attention/self"]
        row = list(group["step"]).index(step)
        packed = group["weights"][row, probe, layer, head].astype(float)
        return packed * group["weights"].attrs.get("scale_factor", [1.0])[0]


def statistic(run, name):
    with h5py.File(run / "log.h5") as file:
        return file[f"heads/self/{name}"][:]


def shown_weight(number):
    return "0" if abs(number) < 0.0005 else f"{number:.3f}"


def four_digits(number):
    return float(f"{number:.4g}")


@pytest.fixture(scope="module")
def chromium():
    with browser_testing.browser() as page:
        yield page


@pytest.fixture
def page(chromium):
    """The browser, 1400 pixels wide and light; what it opens must be quiet and stay at home."""
    chromium.size(1400, 900)
    chromium.colour_scheme("light")
    chromium.open("about:blank")
    yield chromium
    assert chromium.errors() == []
    assert chromium.requests() == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory, small_run):
    """One page of one run."""
    path = tmp_path_factory.mktemp("pages") / "one.html"
    done = make(small_run, "-o", path)
    assert done.returncode == 0, done.stderr
    return path


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
    done = make(*kinds.values(), "-o", path, "--title", "Many <kinds> & more")
    assert done.returncode == 0, done.stderr
    return path


def url(path, **state):
    said = "&".join(f"{key}={value}" for key, value in state.items())
    return f"{path.as_uri()}#{said}"


def choose(page, name, value):
    page.run("""const select = document.querySelector(arguments[0]);
        select.value = arguments[1];
        select.dispatchEvent(new Event('change', {bubbles: true}))""", f"#{name}", str(value))


def view(page, run=0, step=20, probe=0, layer=0, head=0):
    """Selects a map and waits until it is drawn."""
    for name, value in (("step", step), ("probe", probe), ("layer", layer), ("head", head)):
        choose(page, name, value)
    page.wait(f"{SHOWN} === '{run} self {step} {probe} {layer} {head}'")


def settle(page):
    """Waits until all that moves the page's layout is drawn, so that clicks meet what they mean."""
    page.wait("return document.querySelectorAll('.plot:not([hidden]) .main-svg').length >= 4")
    page.run_async("requestAnimationFrame(() => setTimeout(arguments[0]))")


def token_numbers(page):
    return page.run("return [...document.querySelectorAll('.token')].map("
                    "token => token.lastChild.textContent)")


def text(page, selector):
    return page.run("return document.querySelector(arguments[0]).textContent", selector)


def numbers_in(said):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", said)]


# --- one run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step, probe, layer, head", [(20, 0, 0, 0), (0, 1, 1, 2), (10, 1, 0, 1)])
def test_the_numbers_at_tokens_are_those_of_the_log(page, pages, small_run, step, probe, layer,
                                                    head):
    page.open(pages)
    page.wait(SHOWN)
    view(page, 0, step, probe, layer, head)
    expected = weights(small_run, step, probe, layer, head)
    tokens = page.all(".token")
    assert len(tokens) == len(expected)
    for token in (0, 7, len(tokens) - 1):
        page.hover(tokens[token])
        page.wait(f"return document.querySelector('#token-shown').dataset.shown == 'query {token}'")
        shown = token_numbers(page)
        assert shown == [shown_weight(w) for w in expected[token, :token + 1]] \
            + [""] * (len(tokens) - token - 1)  # nothing attends ahead
    page.run("document.querySelector('input[name=side][value=key]').click()")
    page.hover(tokens[3])
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'key 3'")
    assert token_numbers(page) == [""] * 3 + [shown_weight(w) for w in expected[3:, 3]]


def test_the_number_under_the_pointer_is_that_of_the_log(page, pages, small_run):
    page.open(pages)
    page.wait(SHOWN)
    view(page, 0, 20, 1, 1, 1)
    expected = weights(small_run, 20, 1, 1, 1)
    cursor = page.one("#cursor")
    seen = set()
    for right, down in ((0.2, 0.8), (0.5, 0.6), (0.15, 0.15), (0.9, 0.2)):
        page.hover(cursor, cursor.size["width"] * right, cursor.size["height"] * down)
        query, key, weight = re.fullmatch(r"query (\d+) “.+?” → key (\d+) “.+?”: (-?[\d.]+).*",
                                          text(page, "#cell-shown")).groups()
        assert weight == f"{expected[int(query), int(key)]:.3f}"
        assert abs(int(query) / len(expected) - down) < 0.2  # queries go down, keys right
        assert abs(int(key) / len(expected) - right) < 0.2
        seen.add((query, key))
    assert len(seen) == 4


def test_a_statistic_and_a_head_are_chosen_everywhere_at_once(page, pages, small_run):
    page.open(pages)
    page.wait(SHOWN)
    for name, layer, head in (("prev_token", 1, 2), ("output_norm", 0, 1), ("js", 1, 0)):
        choose(page, "stat", name)
        page.wait(f"return document.querySelector('#stat-grid').dataset.shown.startsWith('{name} ')")
        page.one(f"#stat-grid [data-layer='{layer}'][data-head='{head}']").click()
        page.wait("return document.querySelector('#curve-value').dataset.shown == "
                  f"'0 {name} {layer} {head}'")
        values = statistic(small_run, name)[-1]
        expected = values[layer, head]
        if name == "js":  # of pairs the mean over the other heads is shown
            expected = np.delete(values[layer, head], head).mean()
        value, step = numbers_in(text(page, "#curve-value"))
        assert value == four_digits(expected)
        assert step == 20
        page.wait(f"{SHOWN} === '0 self 20 0 {layer} {head}'")
        assert text(page, "#map-title") == f"Layer {layer}, head {head}"


def test_the_grid_shows_every_head_at_one_step(page, pages, small_run):
    page.open(url(pages, view="values", stat="mean_distance", at=10))
    page.wait("return document.querySelector('#stat-grid').dataset.shown")
    with h5py.File(small_run / "log.h5") as file:
        row = list(file["heads/self/step"]).index(10)
    expected = statistic(small_run, "mean_distance")[row]
    for layer in range(2):
        for head in range(3):
            label = page.one(f"#stat-grid [data-layer='{layer}'][data-head='{head}']") \
                .get_attribute("aria-label")
            assert numbers_in(label) == [layer, head, four_digits(expected[layer, head])]
            assert label.endswith(" token")


def test_curves_of_training_are_those_of_the_log(page, pages, small_run):
    page.open(pages)
    page.wait("return document.querySelector('#scalar-plot').data?.length == 2")
    drawn = page.run("return document.querySelector('#scalar-plot').data.map(t => [...t.y])")
    with h5py.File(small_run / "log.h5") as file:
        assert drawn[0] == pytest.approx(list(file["scalars/train_loss"]))
        assert drawn[1] == pytest.approx(list(file["eval/val_loss"]))
        seconds, tokens = file["scalars/wall_time"][:], file["scalars/tokens"][:]
        rate = file["scalars/lr"][:]
    for name, expected in (("tokens", tokens), ("wall_time", seconds)):
        choose(page, "x", name)
        page.wait("return document.querySelector('#scalar-plot').layout.xaxis.title.text "
                  f".includes('{'[token]' if name == 'tokens' else '[s]'}')")
        drawn = page.run("return [...document.querySelector('#scalar-plot').data[0].x]")
        assert drawn == pytest.approx(list(expected))
    choose(page, "scalar", "lr")
    page.wait("return document.querySelector('#scalar-plot').data.length == 1")
    drawn = page.run("return [...document.querySelector('#scalar-plot').data[0].y]")
    assert np.array(drawn, float) == pytest.approx(rate, nan_ok=True)


def test_roles_importance_and_ablation_are_those_of_the_files(page, pages, small_run):
    page.open(url(pages, layer=1, head=1))
    page.wait("return document.querySelector('#plane-plot').data")
    with h5py.File(small_run / "analysis.h5") as file:
        importance = file["analysis/self/importance"][:]
        places = file["analysis/self/head_map"][:]
        roles = {name: (item[:], item.attrs["comment"]) for name, item in file["roles/self"].items()
                 if item.shape == (2, 3)}
    with h5py.File(small_run / "ablation.h5") as file:
        delta = file["ablation/self/loss_delta"][0]
    cell = "#role-grid [data-layer='{}'][data-head='{}']"
    for layer in range(2):
        for head in range(3):
            label = page.one(cell.format(layer, head)).get_attribute("aria-label")
            has = [name for name, (flags, _) in roles.items() if flags[layer, head] == 1]
            assert f"importance {four_digits(importance[layer, head]):g}" in label
            assert sorted(label.split(", ")[2:]) == sorted(has)
    listed = text(page, "#role-list") + text(page, "#vacant")
    assert all(comment in listed for _, comment in roles.values())  # the thresholds
    drawn = page.run("const [t] = document.querySelector('#plane-plot').data; return [t.x, t.y]")
    assert np.array(drawn) == pytest.approx(places.reshape(-1, 2).T, rel=1e-5)
    choose(page, "value", "loss_delta (zero)")
    label = page.one(cell.format(0, 2)).get_attribute("aria-label")
    assert f"loss_delta (zero) {four_digits(delta[0, 2]):g}" in label


def test_everything_can_be_done_by_keyboard(page, pages, small_run):
    page.open(pages)
    page.wait(SHOWN)
    page.run("document.querySelector('#stat-grid [tabindex=\"0\"]').focus()")
    page.press("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_DOWN", "ARROW_LEFT", "ENTER")
    page.wait(f"{SHOWN} === '0 self 20 0 1 1'")
    expected = weights(small_run, 20, 0, 1, 1)
    page.run("document.querySelector('.tokens').focus()")
    page.press("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_RIGHT")
    assert token_numbers(page)[:3] == [shown_weight(w) for w in expected[2, :3]]
    page.press("END")
    assert token_numbers(page)[0] == shown_weight(expected[-1, 0])
    page.press("ESCAPE")
    assert set(token_numbers(page)) == {""}
    page.run("document.querySelector('#cursor').focus()")
    page.press("ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN", "ARROW_RIGHT")
    assert text(page, "#cell-shown").endswith(f"{expected[2, 1]:.3f}")
    page.run("document.querySelector('#step').focus()")
    page.press("ARROW_UP")
    page.wait(f"{SHOWN} === '0 self 10 0 1 1'")
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_what_is_selected_survives_a_reload_and_goes_with_a_link(page, pages):
    page.open(pages)
    page.wait(SHOWN)
    view(page, 0, 10, 1, 1, 2)
    choose(page, "stat", "self_token")
    choose(page, "scale", "linear")
    settle(page)
    page.all(".token")[5].click()
    page.wait("return location.hash.includes('token=5')")
    link = page.run("return location.href")
    page.open("about:blank")
    page.open(link)
    page.wait(f"{SHOWN} === '0 self 10 1 1 2'")
    assert text(page, "#token-shown").startswith("5 ")
    assert page.run("return [...document.querySelectorAll('#stat, #scale, #probe')]"
                    ".map(select => select.value)") == ["self_token", "1", "linear"]


def test_a_link_to_what_is_not_there_shows_what_is(page, pages):
    page.open(url(pages, run=9, layer=77, head="x", step=13, probe=8, stat="nonsense", token=999,
                  site="cross"))
    page.wait(f"{SHOWN} === '0 self 10 0 0 0'")  # the snapshot before step 13


def test_links_to_sections_leave_the_selection_alone(page, pages):
    page.open(url(pages, layer=1))
    page.wait(SHOWN)
    page.one("#sections a[href='#attention']").click()
    assert page.run("return location.hash") == "#layer=1"
    assert page.run("return document.activeElement.id") == "attention"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(page, pages, many, scheme):
    page.size(390, 844)
    page.colour_scheme(scheme)
    for path in (pages, many):
        page.open(url(path, token=3))
        page.wait(SHOWN)
        page.wait("return document.querySelectorAll('.main-svg').length >= 6")
        wide, seen = page.run("const root = document.documentElement;"
                              "return [root.scrollWidth, root.clientWidth]")
        assert wide <= seen == 390
        paper = page.run("return getComputedStyle(document.body).backgroundColor")
        bright = sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128
        assert bright == (scheme == "light")


def test_light_and_dark_change_by_a_button(page, pages):
    page.open(pages)
    page.wait("return document.querySelector('#scalar-plot').layout")
    colour = "return document.querySelector('#scalar-plot').layout.font.color"
    before = page.run(colour)
    page.one("#theme").click()
    page.wait(f"{colour.replace('return', 'return (')}) !== '{before}'")
    assert page.run("return document.documentElement.dataset.theme") == "dark"


def test_the_page_asks_for_nothing(pages):
    """Also where a browser would not say: nothing is loaded from an address, by markup or style."""
    markup = re.sub(r'<script type="text/plain".*?</script>|<script type="application/json".*?'
                    r"</script>", "", pages.read_text(encoding="utf-8"), flags=re.S)
    assert "connect-src 'none'" in markup
    assert re.findall(r"(?:src|href|action|data)=[\"'](?!#|data:)", markup) == []
    assert re.findall(r"@import|url\(", markup) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", markup) == []


# --- several runs ------------------------------------------------------------------------------


def test_signed_weights_of_composed_heads_are_shown(page, kinds, tmp_path):
    shutil.copytree(kinds["dcmha"], tmp_path / "signed")
    with h5py.File(tmp_path / "signed/log.h5", "r+") as file:
        stored = file["attention/self/weights"]
        assert stored.dtype == "f4" and stored.attrs["normalization"] == "composed"
        stored[:, 1] *= -70  # more than 16 bits hold in thousandths
        stored[:, 0, :, :, 5:] *= -1
    (tmp_path / "page.html").write_text(report.build([tmp_path / "signed"]))
    page.open(tmp_path / "page.html")
    page.wait(SHOWN)
    least = 0
    for probe, query in ((0, 3), (0, 9), (1, 0), (1, 12)):
        view(page, 0, 20, probe, 1, 1)
        expected = weights(tmp_path / "signed", 20, probe, 1, 1)[query, :query + 1]
        least = min(least, expected.min())
        page.hover(page.all(".token")[query])
        page.wait(f"return document.querySelector('#token-shown').dataset.shown == 'query {query}'")
        assert token_numbers(page)[:query + 1] == [shown_weight(w) for w in expected]
    assert least < -32.768


def test_tokens_stay_where_they_are_when_numbers_appear(page, many):
    for run in (0, 1):  # plain and composed weights
        page.open(url(many, run=run))
        page.wait(SHOWN)
        place = ("const box = arguments[0].getBoundingClientRect();"
                 "return [box.x + scrollX, box.y + scrollY, box.width]")
        last = page.all(".token")[-1]
        before = page.run(place, last)
        page.hover(last)
        page.wait("return document.querySelector('#token-shown').dataset.shown")
        assert page.run(place, last) == before


def test_a_head_that_was_pruned_is_shown_as_absent(page, many):
    page.open(url(many, run=4, layer=1, head=2, hide="0,1,2,3"))
    page.wait(f"{SHOWN} === '4 self 20 0 1 2'")
    page.wait("return document.querySelector('#stat-grid').dataset.shown.endsWith(' 4')")
    absent = page.run("return [...document.querySelectorAll('#stat-grid .absent')]"
                      ".map(cell => cell.ariaLabel)")
    assert absent == ["layer 1, head 2: absent"]
    assert "no such head" in text(page, "#curve-value")
    page.hover(page.all(".token")[4])
    assert set(token_numbers(page)) == {""}


def test_a_run_without_maps_says_what_logs_them(page, many):
    page.open(url(many, run=2))
    page.wait("return !document.querySelector('#attention-missing').hidden")
    assert "log.attention.every" in text(page, "#attention-missing")
    assert not page.one("#attention-body").is_displayed()
    assert "headlab analyze" in text(page, "#roles-missing")
    choose(page, "run", 0)  # and the others still show theirs
    page.wait(f"{SHOWN} === '0 self 20 0 0 0'")
    assert page.one("#attention-body").is_displayed()


def test_runs_of_different_shapes_lie_over_each_other(page, many, kinds):
    page.open(url(many, stat="entropy"))
    page.wait("return document.querySelector('#stat-grid').dataset.shown")
    cells = page.run("""return [...document.querySelectorAll('#stat-grid .cell')].map(cell =>
        [cell.dataset.layer, cell.dataset.head, cell.querySelectorAll('path').length])""")
    lines = {(int(layer), int(head)): count for layer, head, count in cells}
    assert lines[0, 0] == 4  # mha, dcmha, mapless, pruned; the sliced one has no log
    assert lines[0, 3] == 1  # only moh has four heads
    assert lines[1, 2] == 2  # neither moh, of one layer, nor the pruned one
    assert lines[1, 3] == 0
    choose(page, "stat", "route_entropy")  # of a layer, not of a head
    page.wait("return document.querySelector('#stat-grid').dataset.shown.startsWith('route_entropy')")
    assert len(page.all("#stat-grid .cell")) == 2
    choose(page, "run", 2)
    page.wait("return document.querySelector('#curve-value').textContent.startsWith('Last')")
    expected = statistic(kinds["mapless"], "route_entropy")[-1, 0]
    assert numbers_in(text(page, "#curve-value"))[0] == four_digits(expected)


def test_a_sliced_run_shows_its_pruning(page, many, kinds):
    page.open(many)
    page.wait("return document.querySelector('#prune-plot').data?.length == 1")
    with h5py.File(kinds["sliced"] / "pruning.h5") as file:
        kept, loss = file["pruning/kept"][:], file["pruning/loss"][:]
        gone = np.argwhere(file["pruning/removed"][1] == 1)
    drawn = page.run("const [t] = document.querySelector('#prune-plot').data; "
                     "return [t.x, t.y, t.text]")
    assert drawn[0] == list(kept)
    assert drawn[1] == pytest.approx(list(loss), rel=1e-6)
    assert all(f"{layer}.{head}" in drawn[2][1] for layer, head in gone)


def test_what_differs_between_runs_is_told(page, many):
    page.open(many)
    rows = page.run("return [...document.querySelectorAll('#differences tbody tr')]"
                    ".map(row => [...row.children].map(cell => cell.textContent))")
    found = {row[0]: row[1:] for row in rows}
    assert found["model.attention.kind"] == ["mha", "dcmha", "moh", "mha", "mha"]
    assert found["model.layers"] == ["2", "2", "1", "2", "2"]
    assert found["model.attention.shared"][0] == "—"
    assert "train.steps" not in found


def test_runs_can_be_hidden(page, many):
    page.open(many)
    page.wait("return document.querySelector('#scalar-plot').data?.length == 8")
    page.all("#losses .legend button")[1].click()
    page.wait("return document.querySelector('#scalar-plot').data.length == 6")
    assert page.run("return location.hash") == "#hide=1"


def test_the_title_is_text(page, many):
    page.open(many)
    assert text(page, "h1") == page.run("return document.title") == "Many <kinds> & more"


# --- texts, sizes, errors ----------------------------------------------------------------------


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
    shown = page.run("return [...document.querySelectorAll('.token .text')].map(t => t.textContent)")
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


@pytest.mark.parametrize("arguments, status, said", [
    (["nowhere"], 1, "there is no such run"),
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
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "cannot be written" in done.stderr


# --- served ------------------------------------------------------------------------------------


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


def test_the_page_of_a_run_that_trains_follows_it(chromium, served, tmp_path):
    growing = Growing(tmp_path)
    try:
        run = growing.until(lambda run: h5py.File(run / "log.h5", swmr=True)["scalars/step"].size > 5)
        chromium.open(served(run) + "#layer=1&stat=self_token")
        state = "return document.querySelector('#runs td[data-label=state]')?.textContent"
        step = "return parseInt(document.querySelector('#runs td[data-label=step]')?.textContent)"
        assert chromium.wait(state) == "running"
        before = chromium.run(step)
        chromium.wait(f"{step} > {before}")
        assert chromium.wait(SHOWN).endswith(" 1 0")
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
