"""What README.md, docs/ and the help tell a reader to type or follow is there: commands with their
options, scripts, files, places on a page.
"""

import functools
import re
import subprocess

import pytest

from conftest import ROOT, commands, headlab

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def prose(page):
    """The page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def pieces(page):
    """What is typed: the code of blocks but Python's and C++'s, a line each, and of the text."""
    text = page.read_text(encoding="utf-8")
    blocks = [code for language, code in FENCE.findall(text)
              if language not in {"python", "cpp", "yaml"}]
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + [
        " ".join(span.split()) for span in spans]


def words_of(piece):
    """Its words up to the end of the command."""
    return re.split(r"\s[|;#&]|[;)]|\s>", re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", piece))[0].split()


@functools.cache
def help_of(command):
    """Its text and its example."""
    return headlab(command, "--help").split("\nExample:\n")


def wrong_words(words, names):
    """What is no command, or no option of it, in `headlab COMMAND OPTION...` without its first."""
    command, *rest = words
    if not re.fullmatch(r"[a-z]+", command):
        return []  # --help, COMMAND
    if command not in names:
        return [command]
    known = re.findall(r"--[\w-]+", help_of(command)[0])
    return [f"{command} {word}" for word in rest
            if word.startswith("--") and word.split("=")[0] not in known]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_page_exists_with_these_options(name):
    typed = [words for piece in pieces(ROOT / name)
             for words in re.findall(r"scripts/headlab (.*)", piece)]
    assert [wrong for words in typed for wrong in wrong_words(words_of(words), commands())] == []
    assert typed or name not in {"README.md", "docs/commands.md", "docs/cutting.md"}


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_a_page_are_written_as_a_clone_runs_them(name):
    bare = [piece for piece in pieces(ROOT / name)
            if re.match(rf"(\$ )?headlab ({'|'.join(commands())})\b", piece)]
    assert bare == [], "write scripts/headlab"


def test_every_example_of_the_help_exists_with_these_options():
    names, wrong = commands(), []
    for command in names:
        lines = re.findall(r"headlab ([a-z].*)", help_of(command)[1])
        assert lines, command
        for line in lines:
            wrong += wrong_words(words_of(line), names)
    assert wrong == []


def test_a_command_or_option_that_is_not_there_is_found():
    """So that the tests above can fail."""
    names = commands()
    assert wrong_words(words_of("prune RUN --slize --out runs/x"), names) == ["prune --slize"]
    assert wrong_words(words_of("prun RUN"), names) == ["prun"]
    assert wrong_words(words_of("prune RUN --count=2 --json # --no"), names) == []


@functools.cache
def source_of(script):
    """The text of a script and of the Python that it starts."""
    text = (ROOT / script).read_text(encoding="utf-8")
    for name in re.findall(r"[\w./]+\.py\b", text):
        for path in ((ROOT / script).parent / name.split("/")[-1], ROOT / name):
            if path.is_file():
                text += path.read_text(encoding="utf-8")
    if "headlab_log" in text:
        text += "".join(path.read_text(encoding="utf-8")
                        for path in (ROOT / "scripts/python/headlab_log").rglob("*.py"))
    return text


@pytest.mark.parametrize("name", NAMES)
def test_every_script_of_a_page_exists_and_knows_its_options(name):
    wrong = []
    for piece in pieces(ROOT / name):
        for script, rest in re.findall(r"(?<![\w/])(scripts/[\w/.]*\w)(?![\w/])((?: [^`]*)?)", piece):
            if script == "scripts/headlab":
                continue
            if not (ROOT / script).exists():
                wrong.append(script)
                continue
            words = words_of("x" + rest)[1:]
            if script == "scripts/venv" and words and (ROOT / words[0]).is_file():
                script, *words = words
            if (ROOT / script).is_file() and script != "scripts/venv":
                wrong += [f"{script} {word}" for word in words
                          if re.match(r"--\w", word) and word.split("=")[0] != "--help"
                          and word.split("=")[0] not in source_of(script)]
    assert wrong == []


def anchors(page):
    """Where a link may lead on a page, as GitHub makes it of the titles."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", prose(page), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in found)
        found.add(f"{anchor}-{count}" if count else anchor)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_places_that_are_there(name):
    page, lost, tracked = ROOT / name, [], files_of_git()
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", prose(page)):
        file, _, place = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        inside = target.is_relative_to(ROOT.resolve()) and target.exists()
        committed = inside and any(path == (relative := target.relative_to(ROOT.resolve()).as_posix())
                                   or path.startswith(relative + "/") for path in tracked)
        if not committed or (place and place not in anchors(target)):
            lost.append(link)
    assert lost == []


def files_of_git():
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others",
                           "--exclude-standard"], capture_output=True, text=True)
    return done.stdout.splitlines() or [path.relative_to(ROOT).as_posix()
                                        for path in ROOT.rglob("*") if path.is_file()]


def test_every_name_in_a_log_is_explained():
    frozen = (ROOT / "tests/frozen/interface.txt").read_text(encoding="utf-8")
    names = {line.split()[0].rstrip("/").split("/")[-1]
             for line in frozen.split("# a log\n")[1].splitlines() if line}
    text = (ROOT / "docs/log_format.md").read_text(encoding="utf-8")
    assert [name for name in sorted(names - {"self"}) if not re.search(rf"[`/]{name}\b", text)] == []
