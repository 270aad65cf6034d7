"""Pages of BertViz and CircuitsVis show the maps in a browser, without network.

TOKENS and KNOWN are chosen so that a wrong place, a wrong sign or a wrong escape shows.
"""

import numpy as np
import pytest

from test_exports import pruned, two_sites  # noqa: F401: fixtures

import headlab_log as hl
from headlab_log import offline

TOKENS = ["</script>", "<b>&amp;", '"\'`${x}', "été"]
KNOWN = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.2, 0.7, 0], [0.25, 0.25, 0.25, 0.25]])


@pytest.fixture
def page(chromium):
    chromium.size(1000, 1000)
    return chromium


def shown(page, made, tmp_path):
    """Opens a page and waits until it has drawn."""
    page.open(made.save(tmp_path / "page.html"))
    page.wait("return document.querySelector('svg, canvas')")
    assert (page.errors(), page.requests()) == ([], [])


def known_maps():
    """Two layers of three heads: the known map, turned around, and none."""
    return [np.stack([KNOWN, KNOWN[::-1], 0 * KNOWN])[None],
            np.stack([KNOWN[::-1], KNOWN, KNOWN])[None]]


def opacities(page, selector):
    return page.run("return [...document.querySelectorAll(arguments[0])].map("
                    "e => +(e.style.opacity || e.getAttribute('stroke-opacity')))", selector)


def test_the_head_view_draws_each_weight_and_shows_it_where_one_points(page, tmp_path):
    given = {"attention": known_maps(), "tokens": TOKENS}
    shown(page, hl.bertviz_html(given), tmp_path)
    assert [text.text for text in page.all("#left text")] == TOKENS
    assert [option.text for option in page.all("#layer option")] == ["0", "1"]
    np.testing.assert_allclose(  # three heads are on, which share the opacity
        opacities(page, "#attention line"), known_maps()[0].ravel() / 3, atol=1e-4)
    page.hover(page.all("#left text")[2])
    boxes = np.reshape(opacities(page, "#right .attentionBoxes rect"), (3, 4))
    np.testing.assert_allclose(boxes, known_maps()[0][0, :, 2], atol=1e-4)
    assert "L0H2" in page.one("p").text and "L1H2" not in page.one("p").text


def test_the_head_view_starts_with_the_layer_and_heads_it_is_told(page, tmp_path):
    given = {"attention": known_maps(), "tokens": TOKENS, "include_layers": [1]}
    shown(page, hl.bertviz_html(given, layer=1, heads=[0]), tmp_path)
    assert [option.text for option in page.all("#layer option")] == ["1"]
    lines = np.reshape(opacities(page, "#attention line"), (3, 4, 4))
    np.testing.assert_allclose(lines[0], KNOWN[::-1], atol=1e-4)
    assert not lines[1:].any()


def test_the_model_view_draws_every_head_and_opens_one(page, tmp_path):
    shown(page, hl.bertviz_html({"attention": known_maps(), "tokens": TOKENS}, "model"), tmp_path)
    assert len(page.all(".attn_background")) == 6
    lines = np.reshape(opacities(page, "line"), (2, 3, 4, 4))
    np.testing.assert_allclose(lines, np.concatenate(known_maps()), atol=1e-4)
    page.run("d3.selectAll('svg > g > rect:last-child').filter((d, i) => i == 4).dispatch('click')")
    assert page.one("text.detail").text == "Layer 1, Head 1"
    assert [text.text for text in page.all(".detail .token")] == 2 * TOKENS


def test_views_of_a_run_with_pruned_heads_say_which(page, pruned, tmp_path):
    shown(page, hl.bertviz_html(pruned, "model"), tmp_path)
    drawn = np.reshape(opacities(page, "line"), (6, -1)).any(1)
    assert list(drawn) == [False, False, False, True, False, True]
    assert "char_mha s1337, step 20, probe 0" in page.one("p").text
    assert "L0H0, L0H1, L0H2, L1H1" in page.one("p").text
    shown(page, hl.circuitsvis_html(pruned, layer=1), tmp_path)
    assert [name.text for name in page.all("h4")] == ["L1H0", "L1H2"]


def test_views_of_encoder_and_cross_attention_show_both_texts(page, two_sites, tmp_path):
    made = hl.bertviz_html(two_sites, site=("encoder_self", "cross"), positions=5)
    shown(page, made, tmp_path)
    assert [choice.text for choice in page.all("#filter option")] == ["Encoder", "Cross"]
    shown(page, hl.bertviz_html(two_sites, site="cross", probe=1), tmp_path)
    assert [text.text for text in page.all("#left text")] == ["été", "été", "a"]
    assert [text.text for text in page.all("#right text")] == ["été", "a", "a", "<pad>"]
    assert "Weights below 0" in page.one("p").text


def colour(page, canvas, x, y):
    """Of a point of a canvas, given in shares of its width and height."""
    return page.run("const [c, x, y] = arguments; return [...c.getContext('2d').getImageData("
                    "x * c.width, y * c.height, 1, 1).data]", canvas, x, y)[:3]


def test_circuitsvis_draws_each_head_and_enlarges_the_one_pointed_at(page, tmp_path):
    given = {"attention": np.stack([KNOWN, -3 * KNOWN]), "tokens": TOKENS, "max_value": 3,
             "min_value": -3, "attention_head_names": ["L0H1", "L0H7"], "mask_upper_tri": True}
    shown(page, hl.circuitsvis_html(given), tmp_path)
    page.wait("return document.querySelectorAll('canvas').length == 3")
    first, second, large = page.all("canvas")
    page.wait("const c = document.querySelectorAll('canvas')[1];"
              "return c.getContext('2d').getImageData(c.width / 8, c.height / 8, 1, 1).data[3]")
    assert colour(page, second, 1 / 8, 1 / 8) == [255, 0, 0]  # the lowest weight there is
    red, green, blue = colour(page, second, 1 / 8, 3 / 8)  # half of it
    assert red > 240 and 100 < green < 200 and 100 < blue < 200
    assert colour(page, first, 5 / 8, 1 / 8) == [200, 200, 200]  # ahead
    red, green, blue = colour(page, first, 1 / 8, 1 / 8)  # a third of the highest
    assert blue > 240 and 100 < red < 255 and 100 < green < 255
    assert "L0H1 Zoomed" in page.one("#view").text
    page.hover(page.all("h4")[1])
    page.wait("return document.querySelector('#view').innerText.includes('L0H7 Zoomed')")
    assert (page.errors(), page.requests()) == ([], [])


def test_several_views_live_side_by_side_in_a_notebook(page, run, tmp_path):
    views = [hl.bertviz_html(run, positions=5), hl.bertviz_html(run, "model", positions=6),
             hl.circuitsvis_html(run, positions=4), hl.bertviz_html(run, positions=7, probe=1)]
    text = "".join(view._repr_html_() for view in views)
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>{text}", encoding="utf-8")
    page.open(tmp_path / "notebook.html")
    page.wait("return [...document.querySelectorAll('iframe')].every("
              "f => f.contentDocument.querySelector('svg, canvas'))")
    counts = page.run("return [...document.querySelectorAll('iframe')].map("
                      "f => f.contentDocument.querySelectorAll('#left text').length)")
    assert counts == [5, 0, 0, 7]
    assert (page.errors(), page.requests()) == ([], [])


def test_a_page_is_small(run):
    assert len(hl.bertviz_html(run)._repr_html_()) < 200_000
    assert len(hl.circuitsvis_html(run)._repr_html_()) < 550_000


def test_a_missing_package_is_named_with_the_remedy(run, monkeypatch):
    monkeypatch.setattr(offline.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(hl.LogError, match="pip install --no-deps bertviz"):
        hl.bertviz_html(run)
    with pytest.raises(hl.LogError, match="pip install --no-deps circuitsvis"):
        hl.circuitsvis_html(run)
