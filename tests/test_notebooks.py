"""The notebooks of scripts/notebooks are kept whole, and what they call is there; the first one runs on
small trainings and shows what h5py reads from the same files. All run in tests/slow, those of the package in
tests/python.
"""

import ast
import base64
import importlib
import inspect
import io
import re
import subprocess
import sys

import h5py
import matplotlib.image
import nbformat
import numpy as np
import pytest

from conftest import ROOT, program, train

NOTEBOOKS = sorted((ROOT / "scripts/notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
OF_PROGRAM = [name for name in NAMES if name[0] not in "89"]  # tests/python runs those of the package
sys.path.insert(0, str(ROOT / "scripts/notebooks"))


def make_small(out, *options):
    script = [sys.executable, str(ROOT / "scripts/notebooks/make.py"), "--program", program()]
    options = ["--small", "--runs-only", "--seeds", "2", "--threads", "1", "--out", str(out),
               *options]
    return subprocess.run([*script, *options], capture_output=True, text=True)


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


def test_there_are_nine_notebooks():
    assert [name[0] for name in NAMES] == list("123456789")


def run_of(runs, config, seed=1337):
    (path,) = runs.glob(f"{config}/*-s{seed}")
    return path


def check_warns_of_nothing(notebook):
    for cell in code_cells(notebook):
        said = [output.text for output in cell.outputs
                if output.output_type == "stream" and output.name == "stderr"]
        assert said == [], cell.source


def check_pictures(notebook):
    """Every cell that draws yields its pictures, and none is blank."""
    drawn = 0
    for cell, images in zip(code_cells(notebook), outputs_of(notebook, "image/png")):
        assert len(images) >= figures_drawn(cell.source), cell.source
        for image in images:
            pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(image)))
            assert pixels[..., :3].std() > 0.02, f"a blank picture: {cell.source}"
        drawn += len(images)
    assert drawn >= 3


def check_heads_over_training(notebook, runs):
    """The first notebook shows what the logs hold."""
    text = printed(notebook)
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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the first notebook looks at."""
    out = tmp_path_factory.mktemp("notebooks")
    for config in "char_mha", "induction_mha":
        train(out, config)
    return out


def test_the_first_notebook_runs_and_shows_what_the_logs_hold(runs):
    import make
    notebook = make.execute(NOTEBOOKS[0], runs)
    check_warns_of_nothing(notebook)
    check_pictures(notebook)
    check_heads_over_training(notebook, runs)


def calls_of(notebook):
    """(function of headlab_log, its call), and what is asked of a run that it opens: its name."""
    tree = ast.parse("\n".join(re.sub("(?m)^[%!].*", "", cell.source) for cell in code_cells(notebook)))
    modules, runs, called, asked = {}, set(), [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: importlib.import_module(alias.name)
                        for alias in node.names if alias.name.startswith("headlab_log")}
        if isinstance(node, ast.ImportFrom) and node.module == "headlab_log":
            modules |= {alias.name: importlib.import_module(f"headlab_log.{alias.name}")
                        for alias in node.names}
        if (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) == "hl.open_run"):
            runs |= {ast.unparse(target) for target in node.targets}
    for node in ast.walk(tree):
        of = ast.unparse(node.value) if isinstance(node, ast.Attribute) else None
        if of in runs:
            asked.add(node.attr)
        if of in modules:
            assert hasattr(modules[of], node.attr), f"{of} has no {node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = modules.get(ast.unparse(node.func.value))
            if module:
                called.append((getattr(module, node.func.attr), node))
    return called, asked


@pytest.mark.parametrize("name", OF_PROGRAM)
def test_what_a_notebook_calls_is_there_and_takes_what_it_is_given(name, run):
    called, asked = calls_of(kept(name))
    assert len(called) > 3
    for function, call in called:
        if any(isinstance(given, ast.Starred) for given in call.args):
            continue
        words = {word.arg: None for word in call.keywords if word.arg}
        inspect.signature(function).bind(*call.args, **words)
    assert asked <= set(dir(run))


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
