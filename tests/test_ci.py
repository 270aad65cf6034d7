"""What .ci/run and .ci/night look at, what they count, and what they keep: on small trees, with
scripts that do nothing in the place of those that take minutes."""

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest

import conftest
from conftest import ROOT


def load(path, name):
    sys.path.insert(0, str(ROOT / ".ci"))  # .ci/tidy imports changes
    try:
        loader = importlib.machinery.SourceFileLoader(name, str(ROOT / path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        sys.modules[name] = module
        loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / ".ci"))
    return module


changes = load(".ci/changes.py", "changes")
tidy = load(".ci/tidy", "ci_tidy")

FILES = {
    "core/a.h": "", "core/a.cpp": '#include "core/a.h"\n',
    "core/deep.h": '#include "core/a.h"\n', "core/user.cpp": '#include "core/deep.h"\n',
    "core/kernels/k.h": "", "core/kernels/k.cu": '#include "core/kernels/k.h"\n', "core/alone.h": "",
    "experiments/x/y.h": "", "experiments/x/y.cpp": '#include "y.h"\n', "experiments/x/z.cpp": "",
    "experiments/x/w.h": "", "experiments/x/w.cpp": '#include "experiments/x/w.h"\n',
    "variants/moh.cpp": "", "variants/mo.cpp": "", "variants/fa/fa.cpp": "", "variants/fa/own.h": "", "scripts/s.py": "", "docs/d.md": "",
    "scripts/python/headlab/x.cpp": "",
    "tests/core/test_a.cpp": '#include "core/a.h"\n', "tests/core/test_b.cpp": "",
    "tests/experiments/x/test_y.cpp": '#include "experiments/x/y.h"\n',
    "tests/experiments/x/test_other.cpp": "",
    "tests/variants/test_moh.cpp": "", "tests/variants/test_moh_rows.cpp": "",
    "tests/variants/test_mo.cpp": "", "tests/variants/test_fa.cpp": "",
}


def git(root, *arguments):
    subprocess.run(["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True,
                   capture_output=True)


def make_tree(root, files=FILES):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], check=True, capture_output=True,
                          text=True).stdout.strip()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    make_tree(root)
    return changes.Sources(root)


def test_what_changed_is_committed_edited_or_new_since_the_checked_commit(tmp_path):
    first = make_tree(tmp_path)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/checked").write_text(first + "\n")
    (tmp_path / "core/a.cpp").write_text("int a;\n")
    (tmp_path / "docs/d.md").unlink()
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "second")
    (tmp_path / "core/a.h").write_text("int b;\n")
    (tmp_path / "core/new file.h").write_text("")
    assert changes.changed_files(tmp_path) == (
        {".ci/checked", "core/a.cpp", "core/a.h", "core/new file.h"}, "")


@pytest.mark.parametrize("text", [None, "", "0123456789" * 4, "HEAD", "--all"])
def test_everything_counts_as_changed_without_a_known_commit(tmp_path, text):
    make_tree(tmp_path)
    (tmp_path / ".ci").mkdir()
    if text is not None:
        (tmp_path / ".ci/checked").write_text(text)
    changed, why = changes.changed_files(tmp_path)
    assert changed >= FILES.keys()
    assert why


@pytest.mark.parametrize("changed, chosen", [
    ({"core/a.cpp", "docs/d.md", "scripts/s.py"}, {"core/a.cpp"}),
    ({"core/a.h"}, {"core/a.cpp"}),  # its own
    ({"core/deep.h"}, {"core/user.cpp"}),  # one that includes it
    ({"core/a.h", "core/user.cpp"}, {"core/user.cpp"}),  # chosen anyway, and it reaches the header
    ({"core/kernels/k.h"}, set()),  # only CUDA's compiler sees it
    ({"core/alone.h"}, {"core/alone.h"}),
    ({".clang-tidy"}, {name for name in FILES if name.endswith(".cpp")}),
])
def test_a_header_is_read_through_a_source_that_reaches_it(sources, changed, chosen):
    assert changes.to_tidy(changed, sources) == chosen


@pytest.mark.parametrize("changed, tests, kinds", [
    ({"tests/core/test_b.cpp"}, {"test_b"}, set()),
    ({"core/user.cpp"}, {"test_a", "test_b"}, set()),  # core: the folder's
    ({"core/kernels/k.h"}, {"test_a", "test_b"}, set()),  # the nearest folder above
    ({"experiments/x/y.cpp"}, {"test_y"}, set()),  # that includes its header
    ({"experiments/x/z.cpp"}, {"test_y", "test_other"}, set()),  # no header: the folder's
    ({"experiments/x/w.h"}, {"test_y", "test_other"}, set()),
    ({"variants/moh.cpp"}, {"test_moh", "test_moh_rows"}, {"moh"}),
    ({"variants/mo.cpp"}, {"test_mo"}, {"mo"}),
    ({"variants/fa/own.h"}, {"test_fa"}, {"fa"}),
    ({"docs/d.md", "scripts/s.py", "scripts/python/headlab/x.cpp"}, set(), set()),
])
def test_sanitized_tests_follow_from_what_changed(sources, changed, tests, kinds):
    assert changes.to_sanitize(changed, sources) == (tests, kinds)


def test_a_header_that_a_third_of_the_sources_reach_asks_for_all_tests(tmp_path):
    make_tree(tmp_path, {"core/wide.h": "", **{f"core/{n}.cpp": '#include "core/wide.h"\n' for n in range(2)},
                         "core/other.cpp": ""})
    assert changes.to_sanitize({"core/wide.h"}, changes.Sources(tmp_path)) == (None, set())


def test_places_in_a_unit_are_those_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "a.cpp").write_text("int a;\nnamespace {\nint b;\n}  // namespace")
    (tmp_path / "b.cpp").write_text("namespace {\nint b;\n}  // namespace\n")
    unit = tidy.Unit(["a.cpp", "b.cpp"], ())
    lines = unit.text.split("\n")
    assert "int b;" in lines[2] and unit.place(3) == ("a.cpp", 3)
    assert "int b;" in lines[5] and unit.place(6) == ("b.cpp", 2)
    compiled = subprocess.run(["g++", "-fsyntax-only", "-x", "c++", "-"], input=unit.text, text=True,
                              capture_output=True)
    assert compiled.returncode == 0, compiled.stderr
    assert [part.names for part in unit.without({"b.cpp"})] == [["b.cpp"], ["a.cpp"]]
    assert [part.names for part in unit.without(set())] == [["a.cpp"], ["b.cpp"]]
    assert [part.names for part in unit.without({"a.cpp", "b.cpp"})] == [["a.cpp"], ["b.cpp"]]


def test_a_name_that_only_another_file_of_the_unit_uses_is_unused(tmp_path, monkeypatch):
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "a.cpp").write_text("using std::swap;\nusing std::move;\nusing std::get;  // NOLINT\n"
                                    "int a = move(1);\n")
    assert [line.split()[0] for line in tidy.unused_names("a.cpp")] == ["a.cpp:1:"]


def test_options_of_joined_sources_are_those_of_their_unit(tmp_path):
    unit = tmp_path / "units/core_1.cpp"
    unit.parent.mkdir()
    unit.write_text('#include "core/a.cpp"\n#include "core/b.cpp"\n')
    command = (f"ccache /usr/bin/c++ -I. --param ggc-min-heapsize=1 -Werror -Winvalid-pch "
               f"-include {tmp_path}/cmake_pch.hxx -O2 -o a.o -c {unit}")
    database = tmp_path / "commands.json"
    database.write_text(json.dumps([{"file": str(unit), "command": command}] * 2))
    assert tidy.options_of(database) == {
        name: [("-I.", "-include", "core/pch.h", "-O2")] for name in ("core/a.cpp", "core/b.cpp")}


def test_the_extension_of_python_has_the_options_of_its_own_tree(tmp_path):
    for tree, option, name in (("release", "-DA", "core/a.cpp"), ("wheel-1", "-DB", "core/a.cpp"),
                               ("wheel-1", "-DB", "scripts/python/headlab/x.cpp")):
        (tmp_path / tree).mkdir(exist_ok=True)
        database = tmp_path / tree / "compile_commands.json"
        kept = json.loads(database.read_text()) if database.exists() else []
        database.write_text(json.dumps([*kept, {"file": name, "command": f"c++ {option} -c {name}"}]))
    options = tidy.all_options(tmp_path / "release/compile_commands.json")
    assert {name: [words[0] for words in found] for name, found in options.items()} == {
        "core/a.cpp": ["-DA"], "scripts/python/headlab/x.cpp": ["-DB"]}


PASSED = '<testsuite><testcase name="a" time="1"/></testsuite>'
FAILED = '<testsuite><testcase name="bad" time="1"><failure message="no"/></testcase></testsuite>'
RAN = ('<testsuite><testcase name="test_heads:test_x" time="1"><system-out>skipped: GPU: none here\n'
       "All tests passed (9 assertions in 3 test cases)\n</system-out></testcase></testsuite>")
LEAKED = RAN.replace("</testcase>", '<failure message="99"/></testcase>')
CUT = '<testsuite><testcase name="t" time="1"><system-out>...</system-out><failure/></testcase></testsuite>'


@pytest.mark.parametrize("files, ended, last, said", [
    ({"pytest": PASSED}, ["pytest:0"], "1 passed, 0 failed", ""),
    ({"ctest": RAN, "pytest": PASSED}, ["ctest:0", "pytest:0"], "3 passed, 0 failed, 1 skipped", ""),
    ({"pytest": FAILED}, ["pytest:1"], "0 passed, 1 failed", "FAILED: bad"),
    ({"ctest": RAN}, ["ctest:0", "pytest:1"], "2 passed, 1 failed, 1 skipped", "FAILED: pytest: it ended"),
    ({"pytest": PASSED}, ["ctest:0", "fuzz:1", "pytest:0"], "1 passed, 2 failed", "FAILED: fuzz: it"),
    ({"pytest": PASSED}, ["pytest:3"], "1 passed, 1 failed", "FAILED: pytest: it ended with 3"),
    ({"pytest": PASSED[:-9]}, ["pytest:0"], "0 passed, 1 failed", "results are damaged"),
    ({"ctest": LEAKED}, ["ctest:8"], "2 passed, 1 failed, 1 skipped", "FAILED: test_heads:test_x"),
    ({"ctest": CUT}, ["ctest:8"], "0 passed, 1 failed", "FAILED: t"),
    ({}, [], "0 passed, 0 failed", ""),
])
def test_results_are_counted_and_missing_ones_fail(tmp_path, files, ended, last, said):
    for name, text in files.items():
        (tmp_path / f"{name}.xml").write_text(text)
    done = subprocess.run([sys.executable, ROOT / "scripts/count_results.py", tmp_path, *ended],
                          capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == last, done.stderr
    assert said in done.stdout
    assert (done.returncode == 0) == (", 0 failed" in last and not last.startswith("0 passed"))


def test_a_missing_program_fails_and_is_not_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADLAB_BUILD_DIR", str(tmp_path))
    with pytest.raises(pytest.fail.Exception):
        conftest.program()


def test_the_night_runs_every_test_program():
    said = (ROOT / ".ci/night").read_text()
    selected = [re.compile(each) for each in re.findall(r"--preset asan -R '([^']*)'", said)]
    programs = set(re.findall(r"headlab_test(?:_files)?\((test_\w+)", (ROOT / "scripts/cmake/Tests.cmake").read_text()))
    assert len(programs) > 4
    for program in programs:
        assert sum(bool(each.match(program + ":test_x")) for each in selected) == 1, program


def stub(path, words):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{words}\n")
    path.chmod(0o755)


@pytest.fixture
def bench(tmp_path):
    """A tree of .ci and of scripts that pass at once."""
    for name in "run", "night", "changes.py":
        (tmp_path / ".ci").mkdir(exist_ok=True)
        shutil.copy(ROOT / ".ci" / name, tmp_path / ".ci" / name)
    for name in (".ci/tidy", ".ci/unprivileged", ".ci/hour", ".ci/python", "scripts/setup", "scripts/build",
                 "scripts/studies/soak"):
        stub(tmp_path / name, 'echo "$0 $*"')
    stub(tmp_path / "scripts/test", 'echo "test $*"; echo "7 passed, 0 failed"')
    make_tree(tmp_path, {**FILES, ".gitignore": "/build\n__pycache__\n"})
    return tmp_path


def ci(bench, *words):
    done = subprocess.run(words, cwd=bench, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_the_night_keeps_what_passed_and_names_the_commit(bench):
    code, said = ci(bench, ".ci/night", "sanitizers")
    assert code == 0
    assert re.search(r"\| sanitizers-laws \| passed \| \d+ \| [-0-9]+ \| \d+ \|\n", said)
    assert "| hour | not run |" in said
    assert not (bench / ".ci/checked").exists()
    stub(bench / ".ci/hour", "exit 77")
    git(bench, "commit", "-qam", "an hour that cannot be played")
    code, said = ci(bench, ".ci/night")
    assert code == 1
    assert "FAILED: hour cannot be run here" in said and "| hour | failed |" in said
    assert not (bench / ".ci/checked").exists()
    stub(bench / ".ci/hour", "exit 0")
    code, said = ci(bench, ".ci/night", "hour")  # passes, but is not committed
    assert "not kept" in said and "| hour | not run |" in said
    assert not (bench / ".ci/checked").exists()
    git(bench, "checkout", "-q", "HEAD~1", "--", ".ci/hour")
    git(bench, "commit", "-qam", "an hour as before")
    code, said = ci(bench, ".ci/night")
    assert code == 0 and "| not run |" not in said
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=bench, capture_output=True, text=True).stdout
    assert (bench / ".ci/checked").read_text() == head
    code, said = ci(bench, ".ci/night")
    assert code == 0 and "==" not in said  # nothing left
    assert ci(bench, ".ci/night", "nothing")[0] == 2


def test_the_last_line_of_a_run_counts_and_what_failed_is_named(bench):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=bench, capture_output=True, text=True).stdout
    (bench / ".ci/checked").write_text(head)
    (bench / "experiments/x/y.cpp").write_text("int y;\n")
    code, said = ci(bench, ".ci/run", "tests", "tidy", "sanitizers")
    assert (code, said.splitlines()[-1]) == (0, "10 passed, 0 failed")
    assert ".ci/tidy experiments/x/y.cpp\n" in said
    assert "test --preset asan -R ^test_(plain|command_line):|:(test_y)$\n" in said
    (bench / "variants/moh.cpp").write_text("int m;\n")
    stub(bench / ".ci/tidy", "exit 1")
    stub(bench / "scripts/test", 'echo "FAILED: a bad case"; echo "6 passed, 1 failed, 2 skipped"\n'
         '[[ "$*" != *--kind* ]] || echo "kind: $*"; exit 1')
    code, said = ci(bench, ".ci/run", "tests", "tidy", "sanitizers")
    assert (code, said.splitlines()[-1]) == (1, "6 passed, 4 failed, 2 skipped")
    assert said.split("\n\n")[-1].startswith("FAILED: a bad case\nFAILED: tests\nFAILED: tidy\n")
    assert "kind: --preset asan --kind moh" in said
    stub(bench / "scripts/test", "echo no count")
    code, said = ci(bench, ".ci/run", "tests")
    assert (code, said.splitlines()[-1]) == (1, "0 passed, 1 failed")
    assert ci(bench, ".ci/run", "nothing")[0] == 2


def test_cases_of_the_python_package_are_counted_beside_the_others(bench):
    stub(bench / "scripts/test", 'echo "6 passed, 0 failed, 2 skipped"')
    stub(bench / ".ci/python", 'echo "python: $*"; echo "FAILED: a case"; echo "4 passed, 1 failed, 3 skipped"; exit 1')
    code, said = ci(bench, ".ci/run", "tests", "python")
    assert code == 1 and said.index("== tests") < said.index("== python")
    assert said.splitlines()[-3:] == ["FAILED: a case", "FAILED: python", "11 passed, 2 failed, 5 skipped"], said


def test_a_file_that_is_not_formatted_fails_a_run(bench):
    if not shutil.which("clang-format"):
        pytest.skip("no clang-format; .ci/run fails without")
    shutil.copy(ROOT / ".clang-format", bench)
    assert ci(bench, ".ci/run", "format")[0] == 0
    (bench / "core/new.cpp").write_text("int   a ;\n")
    code, said = ci(bench, ".ci/run", "format")
    assert (code, said.splitlines()[-1]) == (1, "0 passed, 1 failed")
