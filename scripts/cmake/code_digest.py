"""Writes headlab_code.cpp: which code a build is made of. See headlab_build.h.

    code_digest.py SOURCE_DIR OUTPUT
"""

import hashlib
import os
import pathlib
import re
import subprocess
import sys

MOST_OF_PATCH = 1 << 20
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".inc"}
FOLDERS = ["core", "experiments", "variants"]
# Kept: strings, raw ones too, and characters; 1'000 is a number. Left out: comments.
TOKENS = re.compile(r"""(R"([^()\s\\]*)\(.*?\)\2"|"(?:\\.|[^"\\\n])*"|(?<![0-9])'(?:\\.|[^'\\\n])*')"""
                    r"|//[^\n]*|/\*.*?\*/", re.S)


def without_comments(text):
    """Source text without comments, blank lines and space at the end of lines."""
    lines = TOKENS.sub(lambda token: token[1] or " ", text).split("\n")
    return "\n".join(line.rstrip() for line in lines if line.strip())


def opening_of(text):
    """The comment that a source begins with: paper and equations of a variant."""
    return "\n".join(line[2:].removeprefix(" ") for line in
                     re.match(r"(?://[^\n]*\n)*", text)[0].splitlines())


def digest_of(files):
    sums = hashlib.sha256()
    for name, path in files:
        sums.update(f"{name}\n{without_comments(path.read_text(errors='replace'))}\n".encode())
    return sums.hexdigest()


def sources_in(root):
    """All sources of the project, by name."""
    return dict(sorted((path.relative_to(root).as_posix(), path) for folder in FOLDERS
                       for path in (root / folder).rglob("*") if path.suffix in SUFFIXES))


def kinds_of(names):
    """The sources of each kind of heads by its name, the kind's own first: variants/KIND.cpp, or
    variants/KIND/KIND.cpp and what lies beside it. What lies in variants/families is of no single kind."""
    kinds = {}
    for name in sorted(names):
        if match := re.fullmatch(r"variants/(?!families/)([^/.]+)(\.cpp|/.*)", name):
            kinds.setdefault(match[1], []).append(name)
    for kind, files in kinds.items():
        files.sort(key=lambda name: not name.endswith(f"/{kind}.cpp"))
    return kinds


def place_of(kind, names):
    """Where a kind of these sources is: its file or its folder."""
    return names[0] if names == [f"variants/{kind}.cpp"] else f"variants/{kind}/"


def ask_git(root, *arguments):
    """What git prints; None where there is no git, no checkout, or git fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(root.parent)
    try:
        done = subprocess.run(["git", "--no-optional-locks", "-C", root, *arguments],
                              env=environment, capture_output=True)
    except OSError:
        return None
    good = (0, 1) if "--no-index" in arguments else (0,)  # 1: they differ
    return done.stdout.decode(errors="replace") if done.returncode in good else None


def git_state(root):
    """commit, names of changed and untracked sources, and their text as a patch."""
    commit = ask_git(root, "rev-parse", "HEAD")
    if commit is None:
        return "", [], ""
    changed = ask_git(root, "diff", "--name-only", "HEAD", "--", *FOLDERS) or ""
    untracked = ask_git(root, "ls-files", "--others", "--exclude-standard", "--", *FOLDERS) or ""
    names = [name for name in untracked.splitlines() if pathlib.Path(name).suffix in SUFFIXES]
    patch = ask_git(root, "diff", "HEAD", "--", *FOLDERS) or ""
    for name in names:
        patch += ask_git(root, "diff", "--no-index", "--", "/dev/null", name) or ""
    if len(patch) > MOST_OF_PATCH:
        patch = patch[:MOST_OF_PATCH] + "\n[cut here: 1 MB at most]\n"
    return commit.strip(), sorted(changed.splitlines() + names), patch


def literal(text):
    """A C++ string literal, a line of text a line."""
    def escaped(character):
        code = character.encode()
        plain = len(code) == 1 and 32 <= code[0] < 127 and character not in '\\"?'
        return character if plain else "".join(f"\\{byte:03o}" for byte in code)
    lines = text.split("\n")
    ends = ["\\n"] * (len(lines) - 1) + [""]
    return "\n".join(f'    "{"".join(map(escaped, line))}{end}"' for line, end in zip(lines, ends))


def main():
    root, output = map(pathlib.Path, sys.argv[1:])
    sources = sources_in(root)
    kinds = kinds_of(sources)
    of_kinds = {name for names in kinds.values() for name in names}
    variants = [(kind, digest_of([(name, sources[name]) for name in names]), place_of(kind, names),
                 opening_of(sources[names[0]].read_text(errors="replace")))
                for kind, names in kinds.items()]
    rest = digest_of([(name, path) for name, path in sources.items() if name not in of_kinds])
    commit, changed, patch = git_state(root)
    entries = "\n".join(f'    {{"{kind}", "{digest}", "{place}",\n{literal(opening)}}},'
                        for kind, digest, place, opening in variants)
    names = "\n".join(f"{literal(name)}," for name in changed)
    text = f"""// Written by scripts/cmake/code_digest.py at each build.
#include <array>

#include "headlab_build.h"

namespace headlab::build {{
namespace {{

using namespace std::string_view_literals;
constexpr std::array<SourceDigest, {len(variants)}> kVariants = {{{{
{entries}
}}}};
constexpr std::array<std::string_view, {len(changed)}> kNames = {{
{names}
}};

}}  // namespace

constinit const std::span<const SourceDigest> kVariantDigests = kVariants;
constinit const std::string_view kRestDigest = "{rest}";
constinit const std::string_view kCommit = "{commit}";
constinit const std::span<const std::string_view> kChangedSources = kNames;
constinit const std::string_view kPatch =
{literal(patch)}sv;

}}  // namespace headlab::build
"""
    if not output.exists() or output.read_text() != text:  # else nothing is compiled
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)


if __name__ == "__main__":
    main()
