#!/usr/bin/env python3
"""What changed since the commit named in .ci/checked, and what of it is to be looked at.

    .ci/changes.py files    the changed files, committed or not
    .ci/changes.py tidy     the .cpp files that clang-tidy reads: those that changed, and one for each
                            header that changed
    .ci/changes.py tests    what runs under the sanitizers beside test_plain and test_command_line:
                            `all`, or a line for each file of tests (test_prune) and each kind of
                            heads whose laws are to be tried (kind mha)

Everything counts as changed where .ci/checked is missing or names a commit that git does not know.

The tests of a changed file, by simple rules:
- tests/.../test_x.cpp: itself;
- a source or a header: the test files that include the header of that name; where none does, and
  for all of core, those of the folder under tests/ that mirrors its folder, or of the nearest above;
- a header that a third of all sources reach, through others or not: all tests;
- the extension of Python: none, since a Python would have to be sanitized with it;
- variants/KIND.cpp, and what lies in variants/KIND/: tests/variants/test_KIND*.cpp, and the laws for this kind;
- variants/families: the tests and laws of the kinds that include it, through others or not.
"""

import collections
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("core", "variants", "experiments", "tests", "scripts/python")


def git(root, *arguments):
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def listed(root, command, *arguments):
    return {name for name in (git(root, command, "-z", *arguments) or "").split("\0")
            if name and (root / name).is_file()}


def changed_files(root):
    """The changed files, and why everything counts as changed (empty where it does not)."""
    everything = listed(root, "ls-files", "--cached", "--others", "--exclude-standard")
    named = root / ".ci/checked"
    if not named.is_file():
        return everything, "there is no .ci/checked"
    commit = named.read_text().strip()
    if not re.fullmatch("[0-9a-f]{40}", commit) or \
            git(root, "cat-file", "-e", commit + "^{commit}") is None:
        return everything, f"git does not know the commit {commit[:40]!r} of .ci/checked"
    return (listed(root, "diff", "--name-only", "--no-renames", commit) |
            listed(root, "ls-files", "--others", "--exclude-standard")), ""


class Sources:
    """The sources of a tree and what they include of it."""

    def __init__(self, root):
        self.root = root
        names = listed(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS)
        self.names = {name for name in names if re.search(r"\.(cpp|h|cu|cuh)$", name)}
        self.includes = {name: self.included(name) for name in self.names}
        self.includers = collections.defaultdict(set)
        for name, included in self.includes.items():
            for other in included:
                self.includers[other].add(name)

    def included(self, name):
        text = (self.root / name).read_text(encoding="utf-8", errors="replace")
        found = re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.M)
        beside = pathlib.PurePosixPath(name).parent
        return {str(path) for each in found for path in (pathlib.PurePosixPath(each), beside / each)
                if str(path) in self.names}

    def closure(self, names, edges):
        """These and all that they reach."""
        found, left = set(names), list(names)
        while left:
            for name in edges.get(left.pop(), ()):
                if name not in found:
                    found.add(name)
                    left.append(name)
        return found

    def reached_by(self, header):
        return {name for name in self.closure([header], self.includers) if name.endswith(".cpp")}


def to_tidy(changed, sources):
    """The .cpp files that changed, and for each header that changed one that reaches it: one that
    is chosen anyway, the source of that name, or one that includes it itself. A header that only
    CUDA sources reach has none; one that nothing reaches stands for itself. Other rules for
    clang-tidy ask for all."""
    if ".clang-tidy" in changed:
        return {name for name in sources.names if name.endswith(".cpp")}
    chosen = {name for name in changed & sources.names if name.endswith(".cpp")}
    for header in sorted(name for name in changed & sources.names if name.endswith(".h")):
        reaching = sources.reached_by(header)
        if reaching & chosen:
            continue
        if not reaching:
            if not sources.includers[header]:
                chosen.add(header)
            continue
        own = header[:-1] + "cpp"
        direct = sorted(sources.includers[header] & reaching)
        chosen.add(own if own in reaching else (direct or sorted(reaching))[0])
    return chosen


def to_sanitize(changed, sources):
    """The stems of test files and the kinds; None for the former means all tests."""
    tests, kinds = set(), set()
    cpp = [name for name in sources.names if name.endswith(".cpp")]
    all_tests = [name for name in cpp if re.fullmatch(r"tests/.*/test_[^/]*", name)]
    for name in sorted(changed & sources.names):
        path = pathlib.PurePosixPath(name)
        if path.parts[0] == "scripts":
            continue
        if name in all_tests:
            tests.add(name)
            continue
        if path.parts[0] == "variants":
            touched = kinds_of({name}) or kinds_of(sources.reached_by(str(path.with_suffix(".h"))))
            kinds |= touched
            tests |= {test for test in all_tests for kind in touched
                      if re.fullmatch(rf"tests/variants/test_{kind}(_.*)?\.cpp", test)}
            tests |= sources.includers[str(path.with_suffix(".h"))].intersection(all_tests)
            continue
        header = str(path.with_suffix(".h"))
        if name.endswith(".h") and len(sources.reached_by(name)) > len(cpp) / 3:
            return None, set()
        including = sources.includers[header].intersection(all_tests)
        tests |= including
        if not including or path.parts[0] == "core":
            tests |= mirrored(path.parent, all_tests)
    return {pathlib.PurePosixPath(test).stem for test in tests}, kinds


def kinds_of(names):
    """The kinds that sources are of: none of those in variants/families."""
    return {pathlib.PurePosixPath(path.parts[1]).stem for path in map(pathlib.PurePosixPath, names)
            if path.parts[0] == "variants"} - {"families"}


def mirrored(folder, all_tests):
    """The test files of tests/FOLDER; where there are none, of the nearest folder above."""
    for above in (folder, *folder.parents):
        found = {test for test in all_tests
                 if pathlib.PurePosixPath(test).parent == pathlib.PurePosixPath("tests") / above}
        if found:
            return found
    return set()


def main():
    what = sys.argv[1] if len(sys.argv) == 2 else None
    if what not in ("files", "tidy", "tests"):
        sys.exit(__doc__)
    changed, why = changed_files(ROOT)
    print(f"everything counts as changed: {why}" if why else
          f"{len(changed)} files changed since the commit of .ci/checked", file=sys.stderr)
    if what == "files":
        lines = changed
    elif what == "tidy":
        lines = to_tidy(changed, Sources(ROOT))
    else:
        stems, kinds = (None, set()) if why else to_sanitize(changed, Sources(ROOT))
        lines = {"all"} if stems is None else stems | {f"kind {kind}" for kind in kinds}
    print("".join(f"{line}\n" for line in sorted(lines)), end="")


if __name__ == "__main__":
    main()
