"""scripts/report of what a model reads beside one text: images, and a source with its target."""

import re

import h5py
import numpy as np
import pytest

from conftest import headlab, log_command
from report_testing import (
    choose, fits_the_window, SHOWN, shown_weight, text, token_numbers, view, weights)
from test_images import train_vit, vit  # noqa: F401: a fixture

TINT, OPACITY = np.array([42, 157, 244]), 0.75  # page.css and image.js
SIGNS = np.array([[128, 115, 172], [224, 130, 20]])  # of negative and positive weights


@pytest.fixture(scope="module")
def lookers(tmp_path_factory, vit, small_run):  # noqa: F811
    """Runs that look at images, and one that reads a text: name -> run directory."""
    out = tmp_path_factory.mktemp("images")
    runs = {"vit": vit, "colours": train_vit(out, "dcmha")}
    for name in "other", "same", "old":
        runs[name] = out / name
        runs[name].mkdir()
        (out / name / "log.h5").write_bytes((vit / "log.h5").read_bytes())
    with h5py.File(runs["colours"] / "log.h5", "r+") as file:
        group = file["attention/self"]
        about = dict(group["image"].attrs)
        del group["image"], group["channel"]
        group["channel"] = np.arange(3, dtype="i4")
        group["channel"].make_scale("channel")
        group["image"] = np.random.default_rng(7).integers(0, 256, (3, 3, 8, 8)).astype("u1")
        for axis, name in enumerate(("probe", "channel", "row", "column")):
            group["image"].dims[axis].attach_scale(group[name])
        for name in ("long_name", "comment", "units", "patch", "cls_tokens"):
            group["image"].attrs[name] = about[name]
        group["weights"][:, :, :, :, :, 2::2] *= -1
    with h5py.File(runs["other"] / "log.h5", "r+") as file:
        file["attention/self/image"][0, 0, 3, 3] ^= 1
    with h5py.File(runs["old"] / "log.h5", "r+") as file:  # from before there were images
        for name in ("image", "channel", "row", "column"):
            del file["attention/self"][name]
    return runs | {"text": small_run}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A model that reads a line and writes it in other words."""
    out = tmp_path_factory.mktemp("lines")
    words = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("in", "in")]
    pairs = [(words[n % 4], words[n // 4 % 4], words[n // 16]) for n in range(64)]
    for side, name in enumerate(("de", "en")):
        (out / f"lines.{name}").write_text(
            "".join(" ".join(word[side] for word in line) + " .\n" for line in pairs))
    (out / "lines.yaml").write_text("""
name: lines
data: {kind: lines, source: lines.de, target: lines.en, validation_source: lines.de,
       validation_target: lines.en, min_count: 1, context: 8}
model: {kind: seq2seq, layers: 1, d_model: 16, heads: 2, d_ff: 32}
train: {steps: 10, max_positions: 320, lr: 5.0e-3, eval_batches: 1}
log: {every: 5, stats_every: 5, attention: {every: 10, probes: 3}}
""")
    headlab("run", out / "lines.yaml", "--out", out)
    return next(out.glob("lines/*"))


@pytest.fixture(scope="module")
def readers(tmp_path_factory, translator):
    """It, a copy whose target repeats its source, and it without some heads."""
    out = tmp_path_factory.mktemp("readers")
    runs = {"translator": translator, "repeated": out / "repeated", "cut": out / "cut"}
    headlab("prune", translator, "--heads", "cross/0:1", "encoder_self/0:0", "--out", runs["cut"])
    runs["repeated"].mkdir()
    (runs["repeated"] / "log.h5").write_bytes((translator / "log.h5").read_bytes())
    with h5py.File(runs["repeated"] / "log.h5", "r+") as file:
        group = file["attention/cross"]
        group["query_token"][:, :3] = group["key_token"][:, :3]
        group["query_token"].attrs["comment"] = group["key_token"].attrs["comment"]
        group["query_length"][:] = group["key_length"][:] = 3
    return runs


@pytest.fixture(scope="module")
def runs(lookers, readers):
    return lookers | readers


@pytest.fixture(scope="module")
def images(tmp_path_factory, runs):
    """A page of them all; the first, which looks at images, is shown."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    done = log_command("report", *runs.values(), "-o", path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return path


def logged_image(run, probe):
    with h5py.File(run / "log.h5") as file:
        return file["attention/self/image"][probe].astype(float)


def canvas_pixels(page, rows, columns):
    """(row, column, colour): the middle of every pixel of the image, as it is drawn."""
    flat = page.run("""const c = document.querySelector('#image-canvas'), found = [];
        const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const middle = (n, count, size) => Math.floor((n + .5) * size / count);
        for (let r = 0; r < arguments[0]; r++) for (let k = 0; k < arguments[1]; k++) {
          const y = middle(r, arguments[0], c.height), x = middle(k, arguments[1], c.width);
          found.push(...all.slice(4 * (y * c.width + x), 4 * (y * c.width + x) + 3)); }
        return found""", rows, columns)
    return np.array(flat, float).reshape(rows, columns, 3)


def tinted(image, row, curve=np.sqrt, signed=False):
    """What a page draws of an image (channel, row, column) for the weights of a class and 2 x 2
    patches of 4 pixels: the largest in full."""
    patches = row[1:].reshape(2, 2) / abs(row[1:]).max()
    share = OPACITY * curve(abs(patches)).repeat(4, 0).repeat(4, 1)[..., None]
    colour = SIGNS[(patches > 0).astype(int)].repeat(4, 0).repeat(4, 1) if signed else TINT
    grey = (image if len(image) == 3 else image[[0, 0, 0]]).transpose(1, 2, 0)
    return grey * (1 - share) + colour * share


def patch(page, row, column):
    """The middle of a patch on the canvas, from its upper left corner."""
    canvas = page.one("#image-canvas")
    side = canvas.size["width"] / 2
    return canvas, (column + 0.5) * side, (row + 0.5) * side


def test_the_image_is_drawn_under_the_weights_of_the_class_token(page, images, vit):  # noqa: F811
    page.show(images, layer=0, head=0)
    for probe, layer, head in ((0, 0, 0), (2, 1, 3)):
        view(page, 0, 20, probe, layer, head)
        row = weights(vit, 20, probe, layer, head)[0]
        expected = tinted(logged_image(vit, probe), row)
        assert abs(canvas_pixels(page, 8, 8) - expected).max() <= 2.5
        said = re.fullmatch(
            r"The class token attends to itself, which is no patch, with ([\d.]+), and among "
            r"patches most to (\d),(\d), with ([\d.]+)\.", text(page, "#image-shown")).groups()
        most = 1 + 2 * int(said[1]) + int(said[2])
        assert [said[0], said[3]] == [f"{row[0]:.3f}", f"{row[most]:.3f}"]
        assert row[most] == row[1:].max()


def test_pixels_are_enlarged_whole_and_crisp(page, images, vit):  # noqa: F811
    page.show(images, layer=0, head=0)
    wide, high = page.run("const c = document.querySelector('#image-canvas');"
                          "return [c.width, c.height]")
    assert wide == high and wide % 8 == 0 and wide >= 8 * 20
    side = wide // 8
    corner = page.run("""const [x, y] = arguments;
        return [...document.querySelector('#image-canvas').getContext('2d')
          .getImageData(x, y, 1, 1).data]""", 2 * side + 2, 2 * side + 2)[:3]
    assert corner == canvas_pixels(page, 8, 8)[2, 2].tolist()


def test_another_token_tints_the_image_by_its_own_weights(page, images, vit):  # noqa: F811
    page.show(images, layer=0, head=0)
    view(page, 0, 20, 1, 1, 2)
    image, matrix = logged_image(vit, 1), weights(vit, 20, 1, 1, 2)
    inside = np.ix_([1, 2, 5, 6], [1, 2, 5, 6])  # off the outline of the selected patch

    def check(row, **options):
        drawn = canvas_pixels(page, 8, 8)[inside]
        assert abs(drawn - tinted(image, row, **options)[inside]).max() <= 2.5

    page.hover(page.all(".token")[3])
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'query 3'")
    check(matrix[3])
    assert text(page, "#image-shown").startswith(
        f"Patch 1,0 attends to the class token, which is no patch, with {matrix[3, 0]:.3f}")
    cursor = page.one("#cursor")  # rows of the map select too: its second is the first patch
    page.hover(cursor, 58 + (cursor.size["width"] - 64) / 2, 4 + (cursor.size["width"] - 64) * 0.3)
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'query 1'")
    check(matrix[1])
    page.hover(*patch(page, 0, 1))
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'query 2'")
    check(matrix[2])
    choose(page, "scale", "linear")
    page.hover(*patch(page, 1, 1))
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'query 4'")
    check(matrix[4], curve=lambda share: share)
    page.run("document.querySelector('input[name=side][value=key]').click()")
    page.hover(*patch(page, 0, 0))
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'key 1'")
    check(matrix[:, 1], curve=lambda share: share)
    assert "Patch 0,0 is attended by the class token" in text(page, "#image-shown")


def test_patches_are_chosen_by_click_and_by_keyboard_and_outlined(page, images):
    page.show(images, layer=0, head=0)
    canvas, x, y = patch(page, 1, 0)
    page.hover(canvas, x, y)
    page.run("""const [c, x, y] = arguments, box = c.getBoundingClientRect();
        c.dispatchEvent(new MouseEvent('click', {bubbles: true, clientX: box.left + x,
                                                 clientY: box.top + y}))""", canvas, x, y)
    assert page.run("return location.hash") == "#token=3"
    outline = page.run("""const c = document.querySelector('#image-canvas');
        return [...c.getContext('2d').getImageData(1, c.height - 2, 1, 1).data]""")[:3]
    assert outline == [213, 94, 0]  # --mark by day
    page.run("document.querySelector('#image-canvas').focus()")
    for key, chosen in (("ARROW_LEFT", 3), ("ARROW_DOWN", 3), ("ARROW_UP", 1), ("ARROW_RIGHT", 2),
                        ("ARROW_RIGHT", 2), ("ARROW_DOWN", 4)):
        page.press(key)
        assert page.run("return location.hash") == f"#token={chosen}", key
    assert page.one(".token[aria-selected=true]").text.startswith("1,1")
    page.press("ESCAPE")
    assert page.run("return location.hash") == ""
    page.press("ARROW_RIGHT")
    assert page.run("return location.hash") == "#token=1"


def test_the_image_says_what_it_is_to_who_does_not_see_it(page, images):
    page.show(images, token=4, probe=1)
    label = page.one("#image-canvas").get_attribute("aria-label")
    assert label.startswith("image of probe 1, 8 by 8 pixels, 2 by 2 patches coloured by their "
                            "weights for patch 1,1;")
    assert page.one("#image-canvas").get_attribute("aria-describedby") == "image-shown"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_image_fits_a_phone(page, images, vit, scheme):  # noqa: F811
    page.size(390, 844)
    page.colour_scheme(scheme)
    page.show(images, layer=0, head=0)
    assert fits_the_window(page)
    left, right = page.run("const box = document.querySelector('#image-canvas')"
                           ".getBoundingClientRect(); return [box.left, box.right]")
    assert 0 <= left and 250 < right - left and right <= 390
    shown = page.run("return document.querySelector('#attention-body').dataset.shown").split()
    _, _, step, probe, layer, head = shown
    row = weights(vit, int(step), int(probe), int(layer), int(head))[0]
    assert abs(canvas_pixels(page, 8, 8) - tinted(logged_image(vit, int(probe)), row)).max() <= 2.5


def test_colours_and_signed_weights_are_shown(page, images, runs):
    run = list(runs).index("colours")
    with h5py.File(runs["colours"] / "log.h5") as file:
        image = file["attention/self/image"][0].astype(float)
        row = file["attention/self/weights"][-1, 0, 1, 1, 0]
    assert row[1:].min() < 0 < row[1:].max()
    page.show(images, run=run)
    view(page, run, 20, 0, 1, 1)
    expected = tinted(image, row, signed=True)
    assert abs(canvas_pixels(page, 8, 8) - expected).max() <= 2.5


def test_only_runs_of_the_same_image_stand_beside_each_other(page, images, runs):
    beside = "return [...document.querySelector('#beside-run').options].map(option => option.value)"
    for probe, names in ((0, ["same"]), (1, ["other", "same"])):
        page.show(images, probe=probe)
        page.wait("return document.querySelector('#beside').dataset.shown?.split(' ')[3] === "
                  f"'{probe}'")
        assert page.run(beside) == [str(list(runs).index(name)) for name in names]


def test_a_text_has_no_image(page, images, runs):
    page.show(images, run=list(runs).index("text"))
    assert not page.one("#image").is_displayed()
    assert page.all(".strip-title") == []


def test_a_log_from_before_there_were_images_shows_positions(page, images, runs):
    page.show(images, run=list(runs).index("old"))
    assert not page.one("#image").is_displayed()
    assert [token.text for token in page.all(".token .text")] == ["0", "1", "2", "3", "4"]


# --- a source and its target --------------------------------------------------------------------

def test_a_model_of_several_sites_is_shown_after_its_heads_were_cut(page, images, runs):
    page.show(images, run=list(runs).index("cut"))
    assert "cross/0:1" in page.run("return document.body.textContent")


def strips(page):
    """Title, name for readers by ear, and texts of every row of tokens, by its side of the map."""
    return {side: (title, label, texts) for side, title, label, texts in page.run("""
        return [...document.querySelectorAll('.strip')].map(strip => [
          strip.lastChild.dataset.side, strip.querySelector('.strip-title')?.textContent ?? null,
          strip.lastChild.ariaLabel,
          [...strip.querySelectorAll('.text')].map(text => text.textContent)])""")}


def show_site(page, path, site, run):
    page.show(path, run=run, site=site, layer=0, head=1)
    assert page.run(SHOWN) == f"{run} {site} 10 0 0 1"


def logged_words(run, site, axis, vocabulary):
    with h5py.File(run / "log.h5") as file:
        group = file[f"attention/{site}"]
        known = file[f"{vocabulary}/text"].asstr()[:]
        return [known[n] for n in group[f"{axis}_token"][0][:group[f"{axis}_length"][0]]]


def test_cross_attention_shows_its_source_and_its_target(page, images, runs, translator):
    run = list(runs).index("translator")
    show_site(page, images, "cross", run)
    source = logged_words(translator, "cross", "key", "vocab_source")
    target = logged_words(translator, "cross", "query", "vocab_target")
    assert set(source) & {"eins", "zwei", "drei"} and set(target) & {"one", "two", "three"}
    assert strips(page) == {"query": ("target", "target", target),
                            "key": ("source", "source", source)}
    with h5py.File(translator / "log.h5") as file:
        row = file["attention/cross/weights"][-1, 0, 0, 1, 2, :len(source)] / 65534
    page.hover(page.all(".tokens[data-side=query] .token")[2])
    page.wait("return document.querySelector('#token-shown').dataset.shown == 'query 2'")
    assert token_numbers(page) == len(target) * [""] + [shown_weight(weight) for weight in row]
    for site in ("encoder_self", "decoder_self"):
        show_site(page, images, site, run)
        assert {title for title, *_ in strips(page).values()} == {None}


def test_a_target_that_repeats_its_source_is_a_row_of_its_own(page, images, runs):
    show_site(page, images, "cross", list(runs).index("repeated"))
    found = strips(page)
    assert found["query"][2] == found["key"][2] and len(found["key"][2]) == 3
    assert [found[side][0] for side in ("query", "key")] == ["target", "source"]


def test_cross_attention_fits_a_phone(page, images, runs):
    page.size(390, 844)
    show_site(page, images, "cross", list(runs).index("translator"))
    assert fits_the_window(page)
