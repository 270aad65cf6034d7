"""Names that several sources of a folder have each for itself, in anonymous namespaces: what
Units.cmake keeps out of one unit. Prints a line for each such source: its path and these names.

    own_names.py SOURCE_DIR

Found by the look of declarations. A name too many parts two files that could be joined; one too few
is an error of the compiler in a first build. A name that is the same alias everywhere does not count.
"""

import collections
import pathlib
import re
import sys

FOLDERS = ("core", "variants", "experiments", "tests")
# Texts, characters, comments and directives.
NO_CODE = re.compile(r"""R"([^()\s\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9])'(?:\\.|[^'\\\n])*'"""
                     r"""|//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*""", re.S | re.M)
NAMESPACE = re.compile(r"\bnamespace\s+(\w+(?:::\w+)*)\s*\{")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class)?) (\w+)(?: final)?(?: :.*)?(?: ?\{\})?$")
ALIAS = re.compile(r"using (\w+) = ?(.*)")


def declarations(text):
    """What stands in the anonymous namespaces of a source, with {} for what is between braces."""
    for namespace in re.finditer(r"\bnamespace\s*\{", text):
        depth, begin, said = 1, namespace.end(), ""
        for brace in re.compile("[{}]").finditer(text, begin):
            if depth == 1:
                said += text[begin:brace.start()]
            depth += 1 if brace[0] == "{" else -1
            begin = brace.end()
            if depth == 1:
                said += "{}" if not re.match(r"\s*[,;(]", text[begin:begin + 80]) else "{} "
                if text[begin:begin + 1] == "\n":  # the end of a function; others end in a semicolon
                    said += ";"
            if depth == 0:
                break
        for declaration in said.split(";"):
            declaration = " ".join(declaration.split())
            if declaration:
                yield declaration


def names_in(declaration):
    if alias := ALIAS.match(declaration):
        return {(alias[1], alias[2].replace(" ", ""))}
    while (shorter := re.sub(r"<[^<>]*>|\[\[[^\]]*\]\]", "", declaration)) != declaration:
        declaration = shorter
    declaration = declaration.removeprefix("template").strip()
    if re.match(r"using |namespace |static_assert|friend ", declaration):
        return set()
    if found := TYPE.match(declaration):
        return {(found[1], "")}
    head = re.split(r"[({=\[]", declaration, maxsplit=1)[0].rstrip()
    own = re.search(r"(?<!::)\b(\w+)$", head)
    names = {own[1]} if own and "operator" not in head and " " in head else set()
    if "(" not in declaration.partition("=")[0]:  # variables
        names |= set(re.findall(r", [*&]?(\w+)(?= ?[={\[,]|$)", declaration))
    return {(name, "") for name in names}


def own_names(text):
    """The names that a source has for itself, with the namespace around them, and what they are an
    alias of."""
    text = NO_CODE.sub(lambda found: '""' if found[0][0] in "R\"'" else " ", text)
    around = NAMESPACE.search(text)
    around = around[1] if around else ""
    return {(f"{around}::{name}", alias) for declaration in declarations(text)
            for name, alias in names_in(declaration)}


def shared_names(root):
    """{path: names} of the sources that have a name which another one of their folder has, too."""
    sources = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.cpp"))
    names = {path: own_names(path.read_text(encoding="utf-8", errors="replace")) for path in sources}
    uses = collections.defaultdict(list)  # what a name stands for in the files of a folder
    for path in sources:
        for name, alias in names[path]:
            uses[path.parent, name].append(alias)
    shared = {path: {name for name, _ in names[path]
                     if (found := uses[path.parent, name])[1:] and ("" in found or len(set(found)) > 1)}
              for path in sources}
    return {path: each for path, each in shared.items() if each}


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv[1])
    for source, shared in shared_names(ROOT).items():
        print(source.relative_to(ROOT).as_posix(), *sorted(re.sub(r"\W+", "_", name) for name in shared))
