"""scripts/report of one run: the page shows what the files hold, to whoever reads it."""

import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from report_testing import (
    choose, fits_the_window, four_digits, numbers_in, settle, SHOWN, shown_weight, statistic, text,
    token_numbers, view, weights)

from conftest import ROOT, headlab
from headlab_log import report


@pytest.fixture(scope="module")
def pages(tmp_path_factory, small_run):
    """One page of one run."""
    path = tmp_path_factory.mktemp("pages") / "one.html"
    subprocess.run([ROOT / "scripts/report", small_run, "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory, small_run):
    """A page of copies of a run whose heads were measured otherwise: name -> run directory."""
    out = tmp_path_factory.mktemp("measured")
    runs = {name: out / name for name in ("alike", "resampled", "apart", "mean")}
    for path in runs.values():
        shutil.copytree(small_run, path)
    with h5py.File(runs["alike"] / "ablation.h5", "r+") as file:
        file["ablation/self/p_holm"][0, 0] = [0.0123, 2e-9, np.nan]
    with h5py.File(runs["resampled"] / "ablation.h5", "r+") as file:
        for name in "p_holm", "p_examples", "loss_delta_interval":
            del file["ablation/self"][name]
        file["ablation/self/p_value"].attrs["resamples"] = 1000.0
        file["ablation/self/p_value"][:] = 0.002
    for name, values in (("alike", [[0.250, 0.251, 0.252], [0.253, 0.254, 0.252]]),
                         ("apart", [[0.250, 0.251, 0.5], [0.253, 0.254, 0.251]])):
        with h5py.File(runs[name] / "ablation.h5", "r+") as file:
            file["ablation/self/loss_delta"][0] = values
            file["ablation/self/loss_delta_interval"][0] = np.full((2, 3), 0.01)
    with h5py.File(runs["apart"] / "analysis.h5", "r+") as file:  # of an interval nobody knows
        file["analysis/self/activation"][:] = [[2.50, 2.501, 2.502], [2.503, 2.504, 2.502]]
    headlab("ablate", runs["mean"], "--batches", 1, "--batch", 4, "--mode", "mean")
    headlab("prune", small_run, "--count", 2, "--tune", 2, "--batches", 1, "--out", out / "cut")
    runs["cut"] = out / "cut"
    (out / "page.html").write_text(report.build(list(runs.values())))
    return runs


def show_measured(page, measured, name, **state):
    page.show(measured["cut"].parent / "page.html", run=list(measured).index(name), **state)


def test_a_link_to_what_is_not_there_shows_what_is(page, pages):
    page.open("about:blank")  # it is opened with the link
    page.show(pages, run=9, layer=77, head=88, at="x", step=13, probe=8, stat="nonsense", token=999,
              site="cross")
    assert page.run(SHOWN) == "0 self 10 0 0 0"  # the snapshot before step 13


def test_what_is_selected_goes_with_a_link_and_so_survives_a_reload(page, pages):
    given = {"layer": 1, "head": 2, "stat": "self_token", "step": 10, "probe": 1, "scale": "linear",
             "token": 5}
    page.show(pages, **given)
    assert page.run(SHOWN) == "0 self 10 1 1 2"
    assert text(page, "#token-shown").startswith("5 ")
    assert page.run("return [...document.querySelectorAll('#stat, #scale, #probe')]"
                    ".map(select => select.value)") == ["self_token", "1", "linear"]
    assert page.run("return document.querySelector('#beside').hidden")  # of another run

    page.show(pages)
    assert "token" not in page.run("return location.hash")
    view(page, 0, 10, 1, 1, 2)
    choose(page, "stat", "self_token")
    choose(page, "scale", "linear")
    settle(page)
    page.all(".token")[5].click()
    page.wait("return location.hash.includes('token=5')")
    said = dict(part.split("=") for part in page.run("return location.hash")[1:].split("&"))
    assert said == {key: str(value) for key, value in given.items()}


@pytest.mark.parametrize("step, probe, layer, head", [(0, 1, 1, 2), (10, 1, 0, 1)])
def test_the_numbers_at_tokens_are_those_of_the_log(page, pages, small_run, step, probe, layer,
                                                    head):
    page.show(pages)
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
    page.show(pages)
    view(page, 0, 20, 1, 1, 1)
    expected = weights(small_run, 20, 1, 1, 1)
    cursor = page.one("#cursor")
    seen = set()
    for right, down in ((0.2, 0.8), (0.5, 0.6), (0.15, 0.15), (0.9, 0.2)):
        page.hover(cursor, cursor.size["width"] * right, cursor.size["height"] * down)
        said = r"query (\d+) “.+?” → key (\d+) “.+?”: (-?[\d.]+).*"
        query, key, weight = re.fullmatch(said, text(page, "#cell-shown")).groups()
        assert weight == f"{expected[int(query), int(key)]:.3f}"
        assert abs(int(query) / len(expected) - down) < 0.2  # queries go down, keys right
        assert abs(int(key) / len(expected) - right) < 0.2
        seen.add((query, key))
    assert len(seen) == 4


def test_a_statistic_and_a_head_are_chosen_everywhere_at_once(page, pages, small_run):
    page.show(pages)
    for name, layer, head in (("prev_token", 1, 2), ("output_norm", 0, 1), ("js", 1, 0)):
        choose(page, "stat", name)
        page.wait(f"return document.querySelector('#stat-grid').dataset.shown"
                  f".startsWith('{name} ')")
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
    page.show(pages, view="values", stat="mean_distance", at=10)
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
    page.show(pages)
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
    page.show(pages, layer=1, head=1)
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
    page.show(pages)
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


def test_a_link_from_a_page_with_other_quantities_shows_the_usual_ones(page, pages):
    page.show(pages, layer=0, head=0, scalar="ppl", x="epoch", log=7, view="table",
              scale="log", side="both", prune_x="bytes", prune_y="bleu")
    assert page.run(SHOWN) == "0 self 20 0 0 0"
    settle(page)
    for name, usual in (("scalar", "loss"), ("x", "step"), ("scale", "sqrt")):
        assert page.run("return document.querySelector(arguments[0]).value", f"#{name}") == usual
    assert page.run("return document.querySelector('#scalar-plot').layout.yaxis.type") == "linear"
    assert page.run("return [...document.querySelectorAll('input:checked')]"
                    ".map(input => input.value)") == ["curves", "query"]


def test_links_to_sections_leave_the_selection_alone(page, pages):
    page.show(pages, layer=1)
    page.one("#sections a[href='#attention']").click()
    assert page.run("return location.hash") == "#layer=1"
    assert page.run("return document.activeElement.id") == "attention"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(page, pages, scheme):
    page.size(390, 844)
    page.colour_scheme(scheme)
    page.show(pages, token=3)
    assert fits_the_window(page)
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    bright = sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128
    assert bright == (scheme == "light")


def test_light_and_dark_change_by_a_button(page, pages):
    page.show(pages)
    page.wait("return document.querySelector('#scalar-plot').layout")
    colour = "return document.querySelector('#scalar-plot').layout.font.color"
    before = page.run(colour)
    page.one("#theme").click()
    page.wait(f"{colour.replace('return', 'return (')}) !== '{before}'")
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    page.one("#theme").click()
    page.wait(f"{colour.replace('return', 'return (')}) === '{before}'")
    page.run("delete document.documentElement.dataset.theme")


def test_the_page_asks_for_nothing(pages):
    """Also where a browser would not say: nothing is loaded from an address, by markup or style."""
    markup = re.sub(r'<script type="text/plain".*?</script>|<script type="application/json".*?'
                    r"</script>", "", pages.read_text(encoding="utf-8"), flags=re.S)
    assert "connect-src 'none'" in markup
    assert re.findall(r"(?:src|href|action|data)=[\"'](?!#|data:)", markup) == []
    assert re.findall(r"@import|url\(", markup) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", markup) == []


def test_a_chance_stands_beside_its_examples_or_is_a_dash(page, measured):
    with h5py.File(measured["alike"] / "ablation.h5") as file:
        examples = file["ablation/self/p_examples"][0, 0, 0]
        legend = file["ablation/self/p_holm"].attrs["comment"]
    for head, said in (0, "p 0.0123"), (1, "p < 0.0001"), (2, "p -"):
        show_measured(page, measured, "alike", layer=0, head=head)
        assert text(page, "#head-roles").endswith(f"{said} ({examples} examples)")
    choose(page, "value", "loss_delta (zero)")
    assert legend.startswith("*: p < 0.05") and f"{legend}." in text(page, "#value-formula")
    stars = page.run("""return [...document.querySelectorAll('#role-grid .cell .value')]
        .map(cell => cell.textContent.endsWith('*'))""")
    assert stars[:3] == [True, True, False]
    # No p of a version that resampled: those of few examples meant nothing.
    show_measured(page, measured, "resampled", layer=0, head=0, value="loss_delta (zero)")
    assert text(page, "#head-roles").endswith("p -")
    assert "*" not in text(page, "#role-grid")


def test_colours_say_their_ends_and_tell_only_apart_what_differs(page, measured):
    def drawn(name, value):
        show_measured(page, measured, name, layer=0, head=0, value=value)
        return text(page, "#value-formula"), page.run(
            """return [...document.querySelectorAll('#role-grid .cell')]
            .map(cell => cell.style.background)""")

    said, colours = drawn("alike", "loss_delta (zero)")
    assert len(set(colours)) == 1
    assert "Colours: blue 0.25 to yellow 0.254 nat." in said
    said, colours = drawn("apart", "loss_delta (zero)")
    assert len(set(colours)) == 2 and colours.count(colours[2]) == 1
    assert "blue 0.25 to yellow 0.5 nat." in said
    _, colours = drawn("apart", "activation")
    reds = [int(colour.split("(")[1].split(",")[0]) for colour in colours]
    assert max(reds) - min(reds) < 25  # of 254 between the ends


def test_a_number_of_a_head_names_its_source_and_another_measure_stands_beside_it(page, measured):
    show_measured(page, measured, "mean", layer=1, head=1)
    usual, other = (f"val of tinyshakespeare.txt, first {n} examples" for n in (64, 4))
    said = text(page, "#head-roles")
    for name, source in (("importance", usual), ("loss_delta (zero)", usual),
                         ("loss_delta (mean) [mean]", other)):
        assert f"{name} ({source}) " in said
    for name, source in ("loss_delta (zero)", usual), ("loss_delta (mean) [mean]", other):
        choose(page, "value", name)
        assert f". Measured on {source}. " in text(page, "#value-formula")
    assert f"Measured on {usual}." in text(page, "#plane-note")
    assert f", on {usual.split(', first')[0]}" in text(page, "#role-list") + text(page, "#vacant")


def test_the_uncut_model_is_drawn_beside_the_cut_one(page, measured):
    show_measured(page, measured, "cut")
    page.wait("return document.querySelector('#prune-plot').data?.length == 2")
    drawn = page.run("return document.querySelector('#prune-plot').data.map(t => [...t.y])")
    with h5py.File(measured["cut"] / "pruning.h5") as file:
        assert drawn[0] == pytest.approx(list(file["pruning/loss"]))
        assert drawn[1] == pytest.approx(list(file["pruning/uncut_loss"]))
    assert "the whole model after as many updates of tuning" in text(page, "#prune-note")
    offered = page.run("return [...document.querySelector('#prune-y').options].map(o => o.value)")
    assert "loss" in offered and not any(name.startswith("uncut_") for name in offered)
