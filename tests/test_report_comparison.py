"""scripts/report of a comparison: its tables, curves and differences, and the runs behind every arm."""

import json
import shutil

import pytest

from comparison_testing import folder_of, written, written_arm
from conftest import log_command
from report_testing import choose, fits_the_window, text

import headlab_log as hl
from headlab_log import report
from headlab_log.report import comparison

# The data of a plot as the page handed it to Plotly.
TRACES = """return document.querySelector(arguments[0]).data.map(trace => ({name: trace.name, x: [...trace.x],
    y: [...trace.y], filled: trace.fill === 'toself', symbol: trace.marker && trace.marker.symbol}))"""


@pytest.fixture(scope="module")
def compared_page(compared, tmp_path_factory):
    path = tmp_path_factory.mktemp("compared_page") / "report.html"
    done = log_command("report", folder_of(compared[0]), "-o", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def task(compared):
    return hl.open_comparison(folder_of(compared[0])).task()


def shown(page, path, **state):
    page.show(path, **state)
    page.wait("return document.querySelector('#comparison').dataset.shown")
    page.wait("return document.querySelectorAll('#compared-curves .main-svg').length > 0")


def rows_of(page):
    return page.run("return [...document.querySelectorAll('#compared-tables tbody tr')].map("
                    "row => [...row.cells].map(cell => cell.textContent.trim()))")


def test_the_page_has_the_table_as_the_program_wrote_it(page, compared_page, compared):
    shown(page, compared_page)
    lines = (folder_of(compared[0]) / "compare.md").read_text().splitlines()
    table = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    heads = page.run("return [...document.querySelectorAll('#compared-tables th')].map(cell => cell.textContent)")
    assert heads == table[0]
    rows = rows_of(page)
    assert [row[1:] for row in rows] == [cells[1:] for cells in table[1:]]
    assert [row[0].split()[0] for row in rows] == ["mha", "wider", "again", "linformer", "chance"]
    notes = text(page, "#compared-notes")
    assert all(line[2:] in notes for line in lines if line.startswith("- "))
    assert "64 examples" in notes and text(page, "h1") == folder_of(compared[0]).name
    assert "Whether the order of the arms has settled is not asked" in text(page, "#compared-tables")


def test_curves_and_differences_are_those_of_the_comparison(page, compared_page, task):
    shown(page, compared_page)
    traces = page.run(TRACES, "#compared-curves")
    lines = {trace["name"]: trace for trace in traces if not trace["filled"]}
    assert list(lines) == ["mha", "wider", "again"] and sum(trace["filled"] for trace in traces) == 3
    assert lines["wider"]["x"] == [8, 16, 24]
    assert lines["wider"]["y"] == pytest.approx(task.curves.val_loss.sel(arm="wider").values, rel=1e-6)
    for metric in ("val_loss", "val_accuracy"):  # at first it shows what was solved
        choose(page, "metric", metric)
        page.wait(f"return document.querySelector('#comparison').dataset.shown === '0 {metric}'")
        found = task.differences.sel(metric=metric)
        points = {name: (x, trace["symbol"]) for trace in page.run(TRACES, "#compared-differences")
                  if trace["symbol"] for name, x in zip(trace["y"], trace["x"])}
        assert set(points) == {"wider", "again"}
        for name, (x, symbol) in points.items():
            assert x == pytest.approx(found.difference.sel(arm=name).item(), rel=1e-6, abs=1e-9)
            assert symbol == ("circle" if found.reported.sel(arm=name) else "circle-open")
    assert "linformer: 'linformer' heads cannot be causal" in text(page, "#compared-differences-note")
    choose(page, "metric", "solved")


def test_of_a_task_that_is_solved_or_not_the_page_shows_first_how_many_seeds_solved_it(page, compared_page, tmp_path):
    shown(page, compared_page)
    assert page.run("return document.querySelector('#metric').value") == "solved"
    assert text(page, "#compared-differences-title") == "Seeds that solved it"
    arms = [written_arm("mha", 2.0), written_arm("moh", 0.1, -1.9), {"name": "none", "reason": "no place"}]
    for arm, solved in zip(arms, ([False, True, False], [True] * 3)):
        arm["solved"] = {"seeds": solved, "count": sum(solved), "of": 3, "updates": [8 if one else None for one in solved],
                         "fisher": {"p": 0.01, "p_holm": 0.02, "reported": True} if arm["name"] == "moh" else None}
    done = log_command("report", written(tmp_path / "c-01234567", arms), "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page.open(tmp_path / "page.html")
    page.wait("return document.querySelectorAll('#compared-differences .main-svg').length")
    points = {name: (x, trace["symbol"]) for trace in page.run(TRACES, "#compared-differences") if trace["symbol"]
              for name, x in zip(trace["y"], trace["x"])}
    assert points == {"mha": (1, "circle-open"), "moh": (3, "circle")}
    assert "none: no place" in text(page, "#compared-differences-note")


def test_every_arm_leads_to_its_runs(page, compared_page, task):
    shown(page, compared_page)
    for arm in ("wider", "again"):
        cell = f"#compared-tables [data-arm={arm}]"
        links = page.run("return [...document.querySelectorAll(arguments[0])].map(link => link.textContent)",
                         f"{cell} a")
        assert links == [arm, "s1", "s2", "s3"]
        page.run("document.querySelector(arguments[0]).click()", f"{cell} a:last-child")
        label = page.run("const select = document.querySelector('#run'); return select.selectedOptions[0].textContent")
        assert label == ("wider s3" if arm == "wider" else "mha s3")  # the same settings are the same runs
        page.wait("return document.activeElement.id === 'losses'")
        pressed = page.run("return [...document.querySelectorAll('#losses [data-legend] button')]"
                           ".filter(b => b.ariaPressed === 'true').map(b => b.textContent)")
        assert pressed == ["mha s1", label]  # the baseline beside what was asked for
    assert not page.all("#compared-tables [data-arm=linformer] a")
    paths = page.run("return [...document.querySelectorAll('#runs tbody td:first-child')].map(cell => cell.title)")
    assert paths == [str(path) for arm in ("mha", "wider") for path in task.paths(arm).values()]


def test_a_phone_needs_no_scrolling_sideways_over_a_comparison(page, compared_page):
    page.size(390, 800)
    shown(page, compared_page)
    assert fits_the_window(page)


def test_a_comparison_whose_runs_are_elsewhere_is_shown_without_them(page, tmp_path):
    """And without compare.md, from the numbers alone; names are text."""
    hostile = "<img src=x onerror='window.ran = 1'> | __proto__"
    arms = [written_arm("mha", 2.0), written_arm(hostile, 1.9, -0.1, True), {"name": "none", "reason": "no place"}]
    folder = written(tmp_path / "c-01234567", arms, references={"chance": {"val/loss": 2.77}})
    done = log_command("report", folder, "-o", tmp_path / "page.html")
    assert done.returncode == 0 and "are not here" in done.stderr
    page.open(tmp_path / "page.html")
    page.wait("return document.querySelectorAll('#compared-differences .main-svg').length")
    assert [row[0] for row in rows_of(page)] == ["mha", hostile, "none"]
    assert rows_of(page)[1][-1] == "-0.1000 [-0.1200, -0.0800] *"
    assert rows_of(page)[2][1:] == ["-"] * 4
    assert "are not here" in text(page, "#notes") and "not there" in text(page, "#compared-notes")
    assert "none: no statistics: no place" in text(page, "#compared-notes")
    assert "chance" in text(page, "#compared-curves")
    visible = page.run("return [...document.querySelectorAll('section')].filter(s => !s.hidden).map(s => s.id)")
    assert visible == ["comparison"] and not page.one("#bar").is_displayed()
    assert page.run("return window.ran === undefined")


def test_what_the_program_says_of_the_order_stands_first(tmp_path):
    folder = written(tmp_path / "c", [written_arm("mha", 2.0)])
    (folder / "compare.md").write_text(
        "The order of the arms has not settled.\n\n## small\n\n| arm |\n|---|\n| mha |\n")
    shown = hl.open_comparison(folder)
    pages = comparison.pages_of(shown)
    assert comparison.first_words(shown, pages) == ["The order of the arms has not settled."]
    assert pages["small"] == [{"head": ["arm"], "rows": [["mha"]]}]
    (folder / "compare.md").write_text("## small\n\nThe order has settled.\n\n| arm |\n|---|\n| mha |\n")
    assert comparison.first_words(shown, comparison.pages_of(shown)) == []  # it stands above the table
    (folder / "compare.md").unlink()
    assert "is not known" in comparison.first_words(shown, comparison.pages_of(shown))[0]
    shown["small"].kept["settled"] = {"settled": None, "text": "Whether the order has settled was not asked."}
    assert comparison.first_words(shown, {}) == ["Whether the order has settled was not asked."]


def test_the_parts_of_a_page_are_its_tables_lists_and_sentences():
    found = comparison.blocks_of("## a\n\n| arm | loss |\n|---|--:|\n| x | y | 1 |\n| z |  |\n\none\nsentence\n\n"
                                 "- first\n- second\n\nanother\n\n## b\n")
    assert found == {"": [], "b": [], "a": [
        {"head": ["arm", "loss"], "rows": [["x | y", "1"], ["z", ""]]}, {"text": "one sentence"},
        {"items": ["first", "second"]}, {"text": "another"}]}


def test_of_many_runs_as_many_seeds_are_shown_as_there_is_room_for(compared, task, monkeypatch):
    monkeypatch.setattr(comparison, "MOST_RUNS", 3)
    html, left_out = report.compose([folder_of(compared[0])])
    content = json.loads(html.split('id="content">')[1].split("</script>")[0])
    assert [run["label"] for run in content["runs"]] == ["mha s1", "wider s1"]
    said, = left_out
    assert said.startswith("The page shows 1 of the 3 seeds of every arm, since it holds 3 runs at most.")
    assert said.endswith(f"of mha `scripts/report {' '.join(map(str, task.paths('mha').values()))}`.")


def test_a_comparison_beside_other_runs_or_not_ended_is_refused(compared, small_run, tmp_path):
    done = log_command("report", folder_of(compared[0]), small_run, "-o", tmp_path / "page.html")
    assert done.returncode == 4 and "a comparison has a page of its own; name it alone" in done.stderr
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(folder_of(compared[0]) / "compare.yaml", begun)
    done = log_command("report", begun, "-o", tmp_path / "page.html")
    assert done.returncode == 4 and "this comparison has not ended" in done.stderr
    assert not (tmp_path / "page.html").exists()
