"""Which code a build is made of: what counts as a change, and what git is asked."""

import ast
import importlib.util
import pathlib
import re
import subprocess

from conftest import ROOT, program

spec = importlib.util.spec_from_file_location("code_digest", ROOT / "scripts/cmake/code_digest.py")
code_digest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_digest)


def test_comments_and_blank_lines_are_not_code():
    text = ('int a = 1\'000;  // a "count"\n\n/* of\n * what? */\nauto b = "// no comment";  \n'
            'auto c = R"x(/* nor */ this)x", d = \'"\';  // but this\n')
    assert code_digest.without_comments(text) == (
        'int a = 1\'000;\nauto b = "// no comment";\nauto c = R"x(/* nor */ this)x", d = \'"\';')
    assert code_digest.without_comments("a / b;") != code_digest.without_comments("a * b;")


def test_a_comment_changes_no_digest_and_code_changes_one(tmp_path):
    file = tmp_path / "mha.cpp"

    def digest(text):
        file.write_text(text)
        return code_digest.digest_of([("variants/mha.cpp", file)])

    base = digest("int a = 1;\n")
    assert digest("// Why.\n\nint a = 1;  // here\n") == base
    assert digest("int a = 2;\n") != base


def test_a_source_opens_with_the_comment_that_it_begins_with():
    assert code_digest.opening_of("// Heads.\n//\n//   y = x\n#include <a>\n// no\n") == (
        "Heads.\n\n  y = x")
    assert code_digest.opening_of("#include <a>\n// no\n") == ""


def git_in(folder):
    def git(*arguments):
        done = subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b.c",
                               *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return git


def test_git_names_what_differs_from_the_commit_and_what_it_does_not_track(tmp_path):
    git = git_in(tmp_path)
    assert code_digest.git_state(tmp_path) == ("", [], "")
    for folder in code_digest.FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "variants/mha.cpp").write_text("int a;\n")
    (tmp_path / "README.md").write_text("a\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "README.md").write_text("no source\n")
    assert code_digest.git_state(tmp_path) == (commit, [], "")
    (tmp_path / "variants/mha.cpp").write_text("int b;\n")
    (tmp_path / "variants/mine.cpp").write_text("int mine;\n")
    (tmp_path / "variants/notes.txt").write_text("no source\n")
    found, names, patch = code_digest.git_state(tmp_path)
    assert (found, names) == (commit, ["variants/mha.cpp", "variants/mine.cpp"])
    assert "-int a;\n+int b;\n" in patch and "+int mine;\n" in patch and "notes" not in patch


def test_any_text_becomes_a_literal_that_says_it():
    text = 'a "quoted"\\ line?\nnext: \t é\n'
    said = "".join(ast.literal_eval("b" + line.strip()).decode()
                   for line in code_digest.literal(text).split("\n"))
    assert said == text
    assert code_digest.literal("").strip() == '""'


def test_the_built_digests_are_those_of_the_files(tmp_path):
    out = tmp_path / "code.cpp"
    subprocess.run(["python3", ROOT / "scripts/cmake/code_digest.py", ROOT, out], check=True)
    names = re.findall(r'\{"(\w+)", "[0-9a-f]{64}", "variants/\w+(?:\.cpp|/)",', out.read_text())
    assert names == sorted({path.stem for path in (ROOT / "variants").iterdir()} - {"families"})


def test_a_kind_in_a_folder_is_all_that_lies_in_it(tmp_path):
    files = {"variants/a.cpp": "int a;\n", "variants/moh/moh.cpp": "// Heads.\nint m;\n",
             "variants/moh/away.h": "int h;\n", "variants/moh/rows.isa.cpp": "int r;\n",
             "variants/moh/notes.txt": "no source\n", "core/b.inc": "int b;\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert code_digest.kinds_of(code_digest.sources_in(tmp_path)) == {
        "a": ["variants/a.cpp"],
        "moh": ["variants/moh/moh.cpp", "variants/moh/away.h", "variants/moh/rows.isa.cpp"]}

    def written():
        subprocess.run(["python3", ROOT / "scripts/cmake/code_digest.py", tmp_path, tmp_path / "out.cpp"],
                       check=True)
        text = (tmp_path / "out.cpp").read_text()
        rest, = re.findall(r'kRestDigest = "(\w+)"', text)
        return {name: (digest, place, opening) for name, digest, place, opening in re.findall(
            r'\{"(\w+)", "(\w+)", "([^"]+)",\s*"([^"]*)"', text)}, rest

    kinds, rest = written()
    assert {name: values[1:] for name, values in kinds.items()} == {
        "a": ("variants/a.cpp", ""), "moh": ("variants/moh/", "Heads.")}
    (tmp_path / "variants/moh/away.h").write_text("int other;\n")
    changed, same = written()
    assert changed["moh"] != kinds["moh"] and changed["a"] == kinds["a"] and same == rest
    (tmp_path / "core/b.inc").write_text("int other;\n")
    assert written()[0] == changed and written()[1] != rest


def test_a_tree_with_many_changes_compiles(tmp_path):
    """Compilers count a text's characters up to some 260,000 only, unless it says its length."""
    tree = tmp_path / "tree"
    (tree / "variants").mkdir(parents=True)
    git_in(tmp_path)("init", "-q", "tree")
    git_in(tree)("commit", "-q", "--allow-empty", "-m", "one")
    (tree / "variants/mine.cpp").write_text("int a_line_of_mine;\n" * 20_000)
    out = tmp_path / "code.cpp"
    subprocess.run(["python3", ROOT / "scripts/cmake/code_digest.py", tree, out], check=True)
    subprocess.run(["c++", "-std=c++20", "-fsyntax-only", "-I",
                    pathlib.Path(program()).parent / "generated", out],
                   check=True)
