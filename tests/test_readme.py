"""README.md and docs/ say what the program says; README shows the example that is compiled.

Run by pytest with scripts/requirements.txt installed; HEADLAB_BUILD_DIR names the build directory.
Run as a program it writes the blocks between README's markers anew.
"""

import json
import re
import sys

import pytest
import xarray as xr

from conftest import ROOT, headlab, in_this_python

sys.path.insert(0, str(ROOT / "scripts/studies"))
import comparison  # noqa: E402
import plot_run  # noqa: E402
import study  # noqa: E402

README = ROOT / "README.md"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def kinds_with_results():
    """The program's table of kinds, and what docs/kinds.json found of each on its tasks; of arms that are called
    otherwise than a kind (other positions, its authors' initialisation) the page docs/kinds.md tells."""
    report = json.loads((ROOT / "docs/kinds.json").read_text(encoding="utf-8"))
    head, _, *rows = [cells(line) for line in headlab("describe", "--table").splitlines()]
    columns, results = [], {row[0]: [] for row in rows}
    for task in report["tasks"]:
        metric, is_solved = comparison.measures(task)[0], comparison.is_solved_or_not(task)
        columns += ([f"{task['name']}: seeds that solved it", "p, Holm"] if is_solved else
                    [f"{task['name']}: {comparison.titled(metric)}", f"less {report['baseline']}'s [95 %]"])
        arms = {f"`{arm['name']}`": arm for arm in task["arms"]}
        for kind, row in results.items():
            arm = arms.get(kind, {})
            row += comparison.solved(arm)[:2] if is_solved else [comparison.mean(arm, metric),
                                                                 comparison.difference(arm, metric)]
    lines = [head + columns, ["---"] * len(head) + ["--:"] * len(columns)]
    lines += [row + results[row[0]] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# What stands between the markers of a page.
BLOCKS = {
    ("README.md", "kinds"): kinds_with_results,
    ("README.md", "example"): lambda: (
        "```cpp\n" + (ROOT / "tests/example_head.cpp").read_text() + "```\n"),
    **{(f"docs/{page}.md", page): lambda page=page: headlab("describe", "--markdown", page)
       for page in ("config", "commands", "kinds")},
}


@pytest.mark.parametrize("page, name", BLOCKS)
def test_the_block_is_what_it_is_made_from(page, name):
    (block,) = study.marked(name).findall((ROOT / page).read_text(encoding="utf-8"))
    remedy = "write the blocks anew: .deps/venv/bin/python tests/test_readme.py"
    assert block.strip() == BLOCKS[page, name]().strip(), remedy


def test_the_exit_codes_are_explained_each():
    source = (ROOT / "experiments/system/exit_codes.h").read_text()
    codes = {int(code) for code in re.findall(r"^  k\w+ = (\d+),", source, re.M)}
    table = (ROOT / "docs/commands.md").read_text(encoding="utf-8").split("| exit code |")[1]
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)}
    assert codes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny training by README's first config."""
    small = (
        "train.steps=4 train.batch=2 model.layers=2 model.heads=2 model.d_model=8 data.context=16 "
        "train.checkpoint.every=4 log.every=2 log.stats_every=2 log.attention.every=4"
    )
    folder = tmp_path_factory.mktemp("runs")
    headlab("run", str(ROOT / "configs/char_mha.yaml"), *small.split(), "--out", str(folder))
    return next(folder.glob("char_mha/*"))


def plot(*arguments):
    return in_this_python(plot_run.main, *arguments)


def test_plot_run_tabulates_every_head_of_the_log(run):
    done = plot(str(run))
    assert done.returncode == 0, done.stderr
    first, *rows = [line for line in done.stdout.splitlines() if not line.startswith("| layer")]
    with xr.open_dataset(run / "log.h5", group="eval", engine="h5netcdf") as evaluations:
        loss = float(evaluations.val_loss[-1])
    assert first.startswith("step 4: ")
    assert first.endswith(f"validation loss {loss:.3f} nat")
    with xr.open_dataset(run / "log.h5", group="heads/self", engine="h5netcdf") as heads:
        for layer in range(2):
            for head in range(2):
                entropy = float(heads.entropy.sel(step=4, layer=layer, head=head))
                start = f"| {layer} | {head} | {entropy:.2f} |"
                assert any(row.startswith(start) for row in rows), start


def test_plot_run_draws_a_picture(run, tmp_path):
    picture = tmp_path / "run.png"
    done = plot(str(run), "-o", str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000


def test_plot_run_names_what_it_cannot_read(run, tmp_path):
    assert "log.h5" in plot(str(tmp_path)).stderr
    assert "has no heads/cross; it has: " in plot(str(run), "--site", "cross").stderr


if __name__ == "__main__":
    for (page, name), make in BLOCKS.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        made = make().strip() + "\n"
        (ROOT / page).write_text(study.marked(name).sub(lambda _, made=made: made, text), encoding="utf-8")
