"""The notebooks of scripts/notebooks run on small trainings, show what they say, are kept whole.

Their outputs are compared with what h5py reads from the same files.
"""

import base64
import functools
import gzip
import html
import io
import json
import pathlib
import re
import statistics
import subprocess
import sys

import h5py
import matplotlib.image
import nbformat
import numpy as np
import pytest

from conftest import ROOT, program

NOTEBOOKS = sorted((ROOT / "scripts/notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
MAPS = ROOT / "tests/golden/maps/minilm.safetensors"
sys.path.insert(0, str(ROOT / "scripts/notebooks"))


TREEBANK = """1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tdog\tdog\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsleeps\tsleep\tVERB\t_\t_\t0\troot\t_\t_

"""


def make_small(out, *options):
    script = [sys.executable, str(ROOT / "scripts/notebooks/make.py"), "--program", program()]
    options = ["--small", "--runs-only", "--seeds", "2", "--threads", "1", "--out", str(out),
               *options]
    return subprocess.run([*script, *options], capture_output=True, text=True)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """What the notebooks look at, made small."""
    out = tmp_path_factory.mktemp("notebooks")
    treebank = tmp_path_factory.mktemp("treebank") / "two.conllu"
    treebank.write_text(TREEBANK * 2)
    done = make_small(out, "--treebank", str(treebank))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def executed(runs):
    """name -> the notebook with its outputs over `runs`, executed once."""
    import make

    @functools.cache
    def execute(name):
        if name == make.PRETRAINED and not (runs / "pretrained/minilm_cut").exists():
            pytest.skip("no published models here; scripts/data smollm2 and scripts/data minilm put them there")
        return make.execute(NOTEBOOKS[NAMES.index(name)], runs)

    return execute


def kept(name):
    return nbformat.read(NOTEBOOKS[NAMES.index(name)], as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """All that was printed, in order."""
    return "".join(output.text for cell in code_cells(notebook) for output in cell.outputs
                   if output.output_type == "stream" and output.name == "stdout")


def outputs_of(notebook, kind):
    """Data of one MIME type, cell by cell."""
    return [[output.data[kind] for output in cell.outputs if kind in output.get("data", {})]
            for cell in code_cells(notebook)]


def figures_drawn(source):
    """How many figures a cell draws, at least."""
    drawing = re.findall(r"^\s*(?:\w+ = )?(?:plots\.[a-z]\w*\(|figure, axes = plt\.)", source, re.M)
    return len(drawing)


@pytest.fixture
def plots():
    import matplotlib.pyplot as plt
    matplotlib.use("Agg")
    from headlab_log import plots
    yield plots
    plt.close("all")


def value(path, name, *at):
    with h5py.File(path) as file:
        return file[name][at]


def one(pattern, text):
    """The groups of the only match."""
    (found,) = re.finditer(pattern, text, re.M)
    return found.groups()


def test_statistics_have_a_panel_a_layer_and_a_line_a_head(plots, run):
    names = ["entropy", "mean_distance"]
    grid = np.reshape(plots.statistics(run.heads(), names).axes, (2, 2))
    for row, name in zip(grid, names):
        for layer, axes in enumerate(row):
            lines = [line for line in axes.lines if line.get_label().startswith("head ")]
            assert len(lines) == 3
            for head, line in enumerate(lines):
                values = value(run.path / "log.h5", f"heads/self/{name}")[:, layer, head]
                assert list(line.get_ydata()) == pytest.approx(values)
                assert list(line.get_xdata()) == [0, 5, 10, 15, 20]


def test_maps_have_a_panel_a_head_and_the_logged_weights(plots, run):
    figure = plots.all_maps(run.attention().weights.isel(step=-1, probe=1))
    *panels, bar = figure.axes
    stored = value(run.path / "log.h5", "attention/self/weights", -1, 1) / 65534
    assert [axes.get_title() for axes in panels] == [
        f"layer {layer}, head {head}" for layer in range(2) for head in range(3)]
    for axes, weights in zip(panels, stored.reshape(6, 16, 16)):
        assert np.allclose(axes.images[0].get_array(), weights, atol=1e-6)
    assert bar.get_ylabel() == "attention weight"
    assert figure.axes[0].images[0].norm(0.25) == pytest.approx(0.5)  # as the root


def test_a_map_names_its_tokens_and_shows_negative_weights_around_zero(plots, run):
    one = run.map(probe=1, layer=0, head=2)
    axes = plots.attention_map(one).axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == [label.get_text() for label in axes.get_xticklabels()]
    assert " " in run.tokens(1)
    assert shown == [{"\n": "⏎", " ": "␣"}.get(token, token) for token in run.tokens(1)]
    scale = plots.attention_map(one - 0.5).axes[0].images[0].norm
    assert scale(0) == 0.5 and scale.vmin == -scale.vmax


def test_cells_and_roles_stand_at_their_heads(plots, run):
    values = run.ablation().loss_delta.sel(mode="zero")
    texts = plots.head_grid(values, digits=4).axes[0].texts
    assert {text.get_position(): text.get_text() for text in texts} == {
        (head, layer): f"{float(values[layer, head]):.4f}" for layer, head in np.ndindex(2, 3)}
    roles = run.roles().copy(deep=True)
    for role in roles:
        roles[role][:] = 0
    roles["sink"][1, 2] = 1
    first, second = plots.head_roles(roles).axes
    assert [list(line.get_xdata()) for line in first.lines + second.lines] == [[], [2]]
    assert [label.get_text() for label in first.get_yticklabels()] == ["sink"]


def test_make_refuses_a_folder_in_which_the_notebooks_could_not_choose(tmp_path):
    (tmp_path / "induction_mha/0123abcd-s1337").mkdir(parents=True)
    done = make_small(tmp_path)
    assert done.returncode == 1
    assert "holds several runs of seed 1337" in done.stderr
    assert not (tmp_path / "char_mohsa").exists()  # nor goes on


def test_there_are_seven_notebooks():
    assert [name[0] for name in NAMES] == list("1234567")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_warns_of_nothing(name, executed):
    for cell in code_cells(executed(name)):
        said = [output.text for output in cell.outputs
                if output.output_type == "stream" and output.name == "stderr"]
        assert said == [], cell.source


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_that_draws_yields_its_pictures(name, executed):
    notebook = executed(name)
    drawn = 0
    for cell, images in zip(code_cells(notebook), outputs_of(notebook, "image/png")):
        assert len(images) >= figures_drawn(cell.source), cell.source
        for image in images:
            pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(image)))
            assert pixels[..., :3].std() > 0.02, f"a blank picture: {cell.source}"
        drawn += len(images)
    assert drawn >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_notebook_has_the_outputs_of_its_cells(name):
    import make
    notebook = kept(name)
    assert notebook.metadata["headlab"]["executed"] == make.fingerprint(notebook), \
        "edited since: scripts/notebooks/make"
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell, images in zip(cells, outputs_of(notebook, "image/png")):
        assert len(images) >= figures_drawn(cell.source), cell.source
        if "print(" in cell.source and "    print(" not in cell.source:
            assert any(output.output_type == "stream" for output in cell.outputs), cell.source


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_notebook_is_small_and_names_no_path_of_a_machine(name):
    assert NOTEBOOKS[NAMES.index(name)].stat().st_size < 1_500_000
    notebook = kept(name)
    texts = [printed(notebook)] + sum(outputs_of(notebook, "text/plain"), [])
    texts += [cell.source for cell in notebook.cells]
    absolute = re.compile(r"(?<![\w.:/])/[a-z][\w.-]*/[\w.-]+")
    assert [found for text in texts for found in absolute.findall(text)] == []


@pytest.mark.parametrize("name", NAMES)
def test_numbers_in_the_text_are_printed_by_the_code(name):
    """Years, arXiv numbers and what a definition says (0, 1, 2/3) apart."""
    notebook = kept(name)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"`[^`]*`|    headlab .*|arXiv [\d.]+|\b(19|20)\d\d\b", "", text)
    assert re.findall(r"\d+\.\d+|\d{2,}", text) == []


def run_of(runs, config, seed=1337):
    (path,) = runs.glob(f"{config}/*-s{seed}")
    return path


def test_heads_over_training_shows_what_the_log_holds(runs, executed):
    text = printed(executed(NAMES[0]))
    log = run_of(runs, "char_mha") / "log.h5"
    entropy, distance = value(log, "heads/self/entropy"), value(log, "heads/self/mean_distance", -1)
    before, least, most = map(float, one(r"^entropy (\S+) nat .*, (\S+) to (\S+) nat", text))
    assert (before, least, most) == pytest.approx(
        (entropy[0].mean(), entropy[-1].min(), entropy[-1].max()), abs=0.006)
    layer, head = map(int, one(r"^farthest: layer (\d), head (\d)", text))
    assert distance[layer, head] == distance.max()

    log = run_of(runs, "induction_mha") / "log.h5"
    steps = value(log, "heads/self/step")
    score = value(log, "heads/self/induction")[:, 1].max(1)
    way = (score - score[0]) / (score[-1] - score[0])
    (step,) = one(r"^best induction head: +(\d+)$", text)
    assert int(step) == steps[np.argmax(way > 0.5)]


def test_attention_maps_show_the_probes_and_whose_weight_is_where(runs, executed):
    text = printed(executed(NAMES[1]))
    log = run_of(runs, "char_mha") / "log.h5"
    vocabulary = [token.decode() for token in value(log, "vocab/text")]
    tokens = value(log, "attention/self/key_token")
    shown = str.maketrans({" ": "␣", "\n": "⏎"})
    for probe, row in enumerate(tokens):
        assert f"\n{probe} {''.join(vocabulary[t] for t in row).translate(shown)}\n" in text
    maps = value(log, "attention/self/weights", -1) / 65534  # stored as whole numbers
    lines = re.findall(r"^(\S+)  layer (\d), head (\d): (\S+), all heads: (\S+)$", text, re.M)
    assert len(lines) == 5
    for token, layer, head, of_head, of_all in lines:
        there = np.array([vocabulary[t].translate(shown) == token for t in tokens.flat])
        there = there.reshape(tokens.shape)[:, None, None, None]  # probe, layer, head, query, key
        weight = (maps * there).sum(-1).mean((0, 3))
        assert float(of_head) == pytest.approx(weight[int(layer), int(head)], abs=0.006)
        assert float(of_all) == pytest.approx(weight.mean(), abs=0.006)


def test_bertviz_pages_are_whole_and_hold_the_tokens(runs, executed):
    pages = [html.unescape(page) for page in sum(outputs_of(executed(NAMES[1]), "text/html"), [])]
    log = run_of(runs, "char_mha") / "log.h5"
    vocabulary = [token.decode() for token in value(log, "vocab/text")]
    layers, heads = value(log, "attention/self/weights").shape[2:4]
    first = value(log, "attention/self/key_token", 0)
    assert len(pages) == 2
    for page, positions in zip(pages, (20, 12)):
        (packed,) = re.findall(r'const packed = "([^"]+)"', page)
        script = gzip.decompress(base64.b64decode(packed)).decode()
        for text in (page, script):
            assert re.findall(r"""(?:src|href)=\\?["']?(?:https?:)?//""", text) == []
        start = script.index('{"attention": [')
        (part,) = json.JSONDecoder().raw_decode(script[start:])[0]["attention"]
        assert np.shape(part["attn"]) == (layers, heads, positions, positions)
        shown = [token.replace("␣", " ").replace("⏎", "\n") for token in part["left_text"]]
        assert shown == [vocabulary[token] for token in first[:positions]]


def test_pruning_shows_every_order_and_every_head(runs, executed):
    text = printed(executed(NAMES[2]))
    run = run_of(runs, "char_mha")
    deltas = value(run / "ablation.h5", "ablation/self/loss_delta", 0)
    table = text[: text.index("rank correlation")].splitlines()[2:]
    costs = [float(line.split()[-2]) for line in table if line]
    assert costs == pytest.approx(sorted(deltas.flat), abs=6e-5)

    folder = runs / "pruned/char_mha"
    for order, names in {"ablation": ["ablation"],
                         "importance ranked anew": ["importance_ranked_anew"],
                         "random": ["random_0", "random_1", "random_2"]}.items():
        loss = [value(folder / name / "pruning.h5", "pruning/loss") for name in names]
        rise = statistics.fmean(curve[len(curve) // 2] - curve[0] for curve in loss)
        (shown,) = one(rf"^{order} +half the heads cost (\S+) nat", text)
        assert float(shown) == pytest.approx(rise, abs=6e-4)

    went = re.findall(r"^(\d:\d) +(\d+\.\d{3}) ", text, re.M)
    everyone = sorted(f"{layer}:{head}" for layer in range(2) for head in range(4))
    assert sorted(head for head, _ in went[:8]) == sorted(head for head, _ in went[8:]) == everyone
    losses = value(folder / "ablation/pruning.h5", "pruning/loss")
    assert [float(loss) for _, loss in went[:8]] == pytest.approx(list(losses[1:]), abs=6e-4)


def test_comparing_variants_shows_means_over_seeds_and_what_each_kind_has(runs, executed):
    text = printed(executed(NAMES[3]))
    for kind in ("mha", "moh", "dcmha", "collaborative", "mohsa"):
        logs = [run_of(runs, f"char_{kind}", seed) / "log.h5" for seed in (1337, 1338)]
        losses = [float(value(log, "eval/val_loss", -1)) for log in logs]
        mean, deviation, count = one(rf"^{kind} +(\S+) ± (\S+) nat, (\d) seeds", text)
        assert int(count) == 2
        assert float(mean) == pytest.approx(statistics.fmean(losses), abs=6e-4)
        assert float(deviation) == pytest.approx(statistics.stdev(losses), abs=6e-4)
    log = run_of(runs, "char_moh") / "log.h5"
    load = value(log, "heads/self/load_entropy", -1)
    shown = re.findall(r"^([01]) +(\S+) +\S+ +\S+$", text, re.M)[:2]
    assert [float(entropy) for _, entropy in shown] == pytest.approx(list(load), abs=6e-4)
    assert "same text: True" in text
    assert re.findall(r"^layer (\d): (\d) features of either neighbour", text, re.M) == [
        ("0", "1"), ("1", "2")]


def test_composed_and_plain_maps_differ_by_the_last_mixing_alone(runs):
    """What the notebook lays side by side: of one text, softmax and what was made of it."""
    run = run_of(runs, "char_dcmha")
    plain = value(run / "analysis.h5", "analysis/self/attention", 0)
    composed = value(run / "log.h5", "attention/self/weights", -1, 0)
    assert plain.sum(-1) == pytest.approx(1, abs=1e-5)
    assert np.abs(composed.sum(-1) - 1).max() > 1e-4
    assert np.corrcoef(plain.ravel(), composed.ravel())[0, 1] > 0.9  # hardly trained


def test_maps_from_elsewhere_shows_the_sentences_and_counts_the_roles(executed):
    text = printed(executed(NAMES[4]))
    said = subprocess.run([program(), "analyze", str(MAPS), "--json"], capture_output=True,
                          text=True, check=True)
    roles = json.loads(said.stdout)["roles"]
    held = {name: int(np.sum(heads)) for name, heads in roles.items() if np.sum(heads)}
    assert held["cls"] > 5 and held["previous"] == 1
    shown = re.findall(r"^(\w+) +(\d+) heads: ", text, re.M)
    assert {name: int(count) for name, count in shown} == held
    assert "\n[CLS] the quick brown fox jumps over the lazy dog . [SEP]\n" in text
    assert text.count("[CLS]") == 8 + 1  # sentences, and a share


def test_hosts_shows_what_each_site_does_and_which_heads_align(runs, executed):
    import make
    text = printed(executed(NAMES[5]))
    path = run_of(runs, "multi30k_mha") / "analysis.h5"
    for site in ("encoder_self", "decoder_self", "cross"):
        importance = value(path, f"analysis/{site}/importance_global", ...)
        found = one(rf"^{site} +sum of squares ([\d.]+), most ([\d.]+)$", text)
        assert found == (f"{(importance**2).sum():.2f}", f"{importance.max():.2f}")
    assert one(r"^(\d+) pairs of lines, (\d+) pairs of words$", text) == ("125", "36")
    words = {**make.SMALL_WORDS, ".": "."}
    known = re.findall(rf"^({'|'.join(make.SMALL_WORDS)}|\.) +(\S+) 0\.\d\d, ", text, re.M)
    assert known and all(words[word] == other for word, other in known)

    # The target is the source backwards but for the full stop, so that what aligns is known.
    source = value(path, "analysis/cross/token", ...)[:, None, None, :4]
    weights = value(path, "analysis/cross/attention", ...)[..., :4]
    looked = np.take_along_axis(source, np.nan_to_num(weights, nan=-1).argmax(-1), -1)
    share = {"read": looked[..., 1:5] == source[..., [2, 1, 0, 3]],
             "written": looked[..., :4] == source[..., [2, 1, 0, 3]]}
    for name, right in share.items():
        assert one(rf"word that is {name}: at best ([\d.]+) by", text)[0] == (
            f"{right.mean((0, 3)).max():.2f}")
    in_place = (source == source[..., [2, 1, 0, 3]]).mean()
    assert one(r"^in place: ([\d.]+), of (\d+) words in (\d+) pairs", text) == (
        f"{in_place:.2f}", "64", "16")

    path = run_of(runs, "mnist_vit_mha") / "analysis.h5"
    distances = value(path, "analysis/self/grid_distance", ...).mean(1)
    said = one(r"^distance layer by layer: ([\d. ]+) pixels; with even weights", text)[0]
    assert said == " ".join(f"{distance:.1f}" for distance in distances)


def test_pretrained_shows_the_heads_that_copy_and_those_that_parse(runs, executed):
    text = printed(executed(NAMES[6]))
    folder = runs / "pretrained"
    score = value(folder / "smollm2/analysis.h5", "analysis/self/induction_repeated", ...)
    best = np.dstack(np.unravel_index((-score).argsort(axis=None)[:8], score.shape))[0].tolist()
    assert re.findall(r"^(\d+):(\d+)  (\d\.\d\d)$", text, re.M) == [
        (str(layer), str(head), f"{score[layer, head]:.2f}") for layer, head in best]
    assert best[0] == [18, 6]
    said = (folder / "twice.txt").read_text()
    assert said in text and said[:len(said) // 2] == said[len(said) // 2 + 1:]
    whole, without = value(folder / "smollm2_induction/pruning.h5", "pruning/loss", ...)[[0, -1]]
    other = value(folder / "smollm2_random_0/pruning.h5", "pruning/loss", -1)
    assert re.findall(r" ([\d.]+)(?: nat a token| \(|$)", text[text.index("whole "):], re.M)[:3] == [
        f"{whole:.2f}", f"{without:.2f}", f"{other:.2f}"]

    path = folder / "minilm/analysis.h5"
    names = [name.decode() for name in value(path, "analysis/self/relation", ...)]
    accuracy = value(path, "analysis/self/accuracy", ...)[..., names.index("nsubj")]
    words, layer, head, found = one(r"^nsubj +(\d+) words  head (\d+):(\d+) +([\d.]+) %", text)
    assert words == "2" and found == f"{100 * accuracy.max():.1f}"
    assert accuracy[:, int(layer), int(head)].max() == accuracy.max()
    kept, parameters = (value(folder / "minilm_cut/pruning.h5", f"pruning/{name}", ...)
                        for name in ("kept", "parameters"))
    assert (f"{kept[0]:.0f} heads -> {kept[-1]:.0f}, {parameters[0]:,.0f} parameters -> "
            f"{parameters[-1]:,.0f}\n"
            in text)
