"""The page's JavaScript: modules that are type-checked, and become one script."""

import re
import shutil
import subprocess

import pytest

from conftest import ROOT

from headlab_log.report import page

FOLDER = ROOT / "scripts/python/headlab_log/report"
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js")}
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.M)


def type_errors(folder):
    if not shutil.which("tsc"):
        pytest.skip("no TypeScript compiler, so the page's JavaScript is not type-checked "
                    "(apt install node-typescript)")
    done = subprocess.run(["tsc", "-p", str(folder / "jsconfig.json")], capture_output=True,
                          text=True)
    assert done.returncode == 0 or done.stdout, done.stderr
    return done.stdout.splitlines()


MISTAKES = (  # module, what is wrong in it, what is said of it
    ("viewer.js", "cellName({ leyer: 1 });", "leyer"),
    ("page.js", "set({ heads: 1 });", "heads"),
    ("page.js", "data.runs[0].heading.lost.toFixed(1);", "lost"),
    ("grid.js", "make('div').value = 1;", "value"),
    ("curves.js", "limits([]);", "limits"),  # of another module, and not imported
    ("view.js", "function free(a) { return a; }", "implicitly"),
)


def test_every_module_is_free_of_type_errors_but_for_the_mistakes_put_in(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "report")
    for module, mistake, _ in MISTAKES:
        with open(tmp_path / "report" / module, "a", encoding="utf-8") as file:
            file.write(f"{mistake}\n")
    errors = [line for line in type_errors(tmp_path / "report") if not line.startswith(" ")]
    for module, mistake, said in MISTAKES:
        assert any(module in error and said in error for error in errors), mistake
    assert len(errors) == len(MISTAKES)


def test_the_page_holds_every_module_after_those_that_it_imports():
    order = page.modules()
    assert sorted(order) == sorted(SOURCES) and order[-1] == "page.js"
    for place, name in enumerate(order):
        for imported in re.findall(r'from "\./(\w+\.js)"', SOURCES[name]):
            assert imported in order[:place], f"{name} imports {imported} in a circle"


def test_joined_modules_neither_import_nor_declare_a_name_twice():
    script = page.script()
    assert re.findall(r"^(?:import|export)\b.*", script, re.M) == []
    names = DECLARED.findall(script)
    assert len(names) > 100
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_no_module_speaks_to_another_but_by_import():
    for name, text in SOURCES.items():
        assert not re.search(r"\b(?:window|globalThis)\.(?!devicePixelRatio|Plotly\b)", text), name
