"""Who may include whom, by folder: the table of what each may see.

Run as a program it prints the include lines that break the table (the pre-commit hook).
"""

import importlib.util
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("code_digest", ROOT / "scripts/cmake/code_digest.py")
code_digest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_digest)
# A row a folder, files below it included; "core/*" is the files right in core. Only downwards: no
# two rows see each other.
ROOMS = ["files", "text", "system", "ranks", "data/formats", "data/tokenizers", "data/*", "data/images", "data/given", "data/tasks",
         "models", "pretrained", "logs", "runs", "inference", "training", "measuring", "conversion", "pruning",
         "analysis/maps", "analysis/*", "sweeps", "comparison", "cases", "benchmarks", "commands"]
PLAIN = ["files", "text", "system", "data/formats"]
ALLOWED = {
    "core/*": {"core/*", "core/attention", "core/config"},
    "core/observe": {"core/observe", "core/attention", "core/kernels", "core/torch.h", "core/errors.h"},
    "core/attention": {"core/attention", "core/kernels", "core/torch.h", "core/errors.h"},
    "core/kernels": {"core/kernels"},
    "core/config": {"core/config", "core/errors.h"},
    "variants/families": {"variants/families", "core/*", "core/attention", "core/config", "core/kernels"},
    "variants": {"variants/families", "core/*", "core/attention", "core/config"},  # never another variant
    # Among the folders of experiments only to the left.
    **{f"experiments/{name}": {"core"} | {f"experiments/{other}" for other in ROOMS[:place + 1]}
       for place, name in enumerate(ROOMS)},
    # No torch: what CMakeLists.txt makes libraries of their own.
    **{f"experiments/{name}": {"core/errors.h", "core/config", f"experiments/{name}"} |
                              {f"experiments/{other}" for other in PLAIN[:place]}
       for place, name in enumerate(PLAIN)},
    "experiments/logs": {"core/errors.h", "core/config", "experiments/logs"} |
                        {f"experiments/{name}" for name in PLAIN[:3]},
    "experiments/*": {"core", "experiments"},
    "tests": {"core", "variants", "experiments", "tests"},
}
LEAVES = {"core/torch.h", "core/errors.h", "core/pch.h"}  # headers of core that include none of ours
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.M)


def matches(path, pattern):
    """Whether a path is a file, lies below a folder, or right in the folder of "folder/*"."""
    parent = pathlib.PurePosixPath(path).parent.as_posix()
    if pattern.endswith("/*"):
        return parent == pattern[:-2]
    return path == pattern or path.startswith(pattern + "/")


def row_of(path):
    """The longest pattern of the table that the path matches; None outside of it."""
    return max((row for row in ALLOWED if matches(path, row)), key=len, default=None)


def seen_by(path):
    """What a file may include: its row's, and what lies in the folder of a kind also that folder
    and kernels."""
    seen = ALLOWED.get(row_of(path), set())
    parts = path.split("/")
    return seen | {"/".join(parts[:2]), "core/kernels"} if parts[0] == "variants" and parts[2:] else seen


def violations(root):
    """One line for each include that the table forbids."""
    found = []
    sources = {folder for row in ALLOWED for folder in [row.split("/")[0]]}
    for path in sorted(p for folder in sources for p in (root / folder).rglob("*")
                       if p.suffix in SUFFIXES):
        here = path.relative_to(root).as_posix()
        row = row_of(here)
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            name = match[1] or match[2]
            beside = (path.parent / name).resolve()
            if match[1] and beside.is_file() and beside.is_relative_to(root):
                name = beside.relative_to(root).as_posix()
            ours = name.split("/")[0] in sources
            if ours and not any(matches(name, seen) for seen in seen_by(here)):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{here}:{line}: {row or here} may not include {name}")
    return found


def test_every_include_obeys_the_table():
    assert violations(ROOT) == []


def test_no_two_rows_see_each_other():
    """The graph of the folders has no way back."""
    def sees(row):
        return {other for name in ALLOWED[row] - LEAVES for other in ALLOWED
                if other != row and (other == name or other.startswith(name + "/"))}

    def reach(row, seen):
        for other in sees(row) - seen:
            seen.add(other)
            reach(other, seen)
        return seen

    for row in ALLOWED.keys() - {"tests"}:
        assert row not in reach(row, set()), row


def test_every_folder_has_a_row():
    for top in ("core", "experiments"):
        folders = {path.name for path in (ROOT / top).iterdir() if path.is_dir()}
        assert folders <= {row.split("/")[1] for row in ALLOWED if row.startswith(top + "/")}
    for leaf in LEAVES - {"core/pch.h"}:
        assert not re.search(r'#include "', (ROOT / leaf).read_text(encoding="utf-8"))


def test_core_is_small_enough_to_read():
    """At most 16 files right in core, none of core over 400 lines."""
    files = [path for path in (ROOT / "core").rglob("*") if path.suffix in SUFFIXES]
    assert len([path for path in files if path.parent == ROOT / "core"]) <= 16
    assert [path.name for path in files
            if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


def test_a_planted_include_is_found(tmp_path):
    planted = {
        "core/a.cpp": '#include "experiments/train.h"\n',
        "core/attention/a.h": '#include "core/heads.h"\n#include "core/observe/probe.h"\n',
        "core/config/a.h": '#include "core/torch.h"\n',
        "core/kernels/b.cu": '#include "../../variants/mha.cpp"\n',
        "core/new/c.h": '#include "core/heads.h"\n',
        "core/observe/d.cpp": '#include "core/config/config.h"\n',
        "experiments/models/e.cpp": "  # include <variants/d.h>\n",
        "variants/c.cpp": '#include "core/heads.h"\n#include "d.h"\n',
        "variants/d.h": '#include "core/observe/probe.h"\n',
        "variants/e/e.cpp": '#include "variants/f/f.h"\n#include "../d.h"\n',
        "variants/e/f.h": '#include "core/observe/probe.h"\n',
    }
    allowed = {
        "core/heads.h": '#include <vector>\n#include "core/config/config.h"\n#include "attention/b.h"\n',
        "core/attention/b.h": '#include "core/torch.h"\n',
        "experiments/f.cpp": '#include "core/observe/probe.h"\n#include "experiments/train.h"\n',
        "tests/g.cpp": '#include "variants/d.h"\n#include "tests/catch.h"\n',
        "variants/mha.cpp": '#include "core/attention/b.h"\n',
        "variants/f/f.cpp": '#include "core/heads.h"\n#include "f.h"\n',
        "variants/f/f.h": '#include "core/attention/b.h"\n',
        "variants/f/rows.isa.cpp": '#include "core/kernels/b.h"\n#include "variants/f/f.h"\n',
    }
    for name, text in (planted | allowed).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == [
        "core/a.cpp:1: core/* may not include experiments/train.h",
        "core/attention/a.h:1: core/attention may not include core/heads.h",
        "core/attention/a.h:2: core/attention may not include core/observe/probe.h",
        "core/config/a.h:1: core/config may not include core/torch.h",
        "core/kernels/b.cu:1: core/kernels may not include variants/mha.cpp",
        "core/new/c.h:1: core/new/c.h may not include core/heads.h",
        "core/observe/d.cpp:1: core/observe may not include core/config/config.h",
        "experiments/models/e.cpp:1: experiments/models may not include variants/d.h",
        "variants/c.cpp:2: variants may not include variants/d.h",
        "variants/d.h:1: variants may not include core/observe/probe.h",
        "variants/e/e.cpp:1: variants may not include variants/f/f.h",
        "variants/e/e.cpp:2: variants may not include variants/d.h",
        "variants/e/f.h:1: variants may not include core/observe/probe.h",
    ]


# Torch's functions; the softmax with a sink, which is core's; and the options of plain heads, from
# which own kinds derive.
NO_KIND = re.compile(r"(?:\.|\bat::)sigmoid\(|sink|MhaOptions")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def kinds_named(text, kinds):
    """The kinds of heads that code names: in a text, an enumerator, or any other name."""
    code = NO_KIND.sub(" ", code_digest.without_comments(text))
    return kinds & {word.lower() for word in WORD.findall(code)}


def test_core_names_no_kind_of_heads_and_no_map_of_theirs():
    kinds = {path.stem for path in (ROOT / "variants").iterdir()} - {"families"}
    assert len(kinds) > 1
    named = {path.relative_to(ROOT).as_posix(): found for path in (ROOT / "core").rglob("*")
             if path.suffix in SUFFIXES
             for found in [kinds_named(path.read_text(encoding="utf-8"), kinds)] if found}
    assert named == {}


def test_a_kind_that_is_named_in_core_is_found():
    kinds = {"moh", "mla", "entmax", "sigmoid", "softpick", "sink"}
    for code, found in [
            ('if (kind == "moh") return;', {"moh"}), ("enum Kind { kSoftmax, kEntmax };", {"entmax"}),
            ("Tensor sigmoid_of(const Tensor& z);", {"sigmoid"}), ("int entmax15 = 2;  // mla", {"entmax"}),
            ('complain("softpick needs eps");', {"softpick"}),
            ("raw.sigmoid() + at::sigmoid(x) * share_beside_sink(lse);  // of softpick", set())]:
        assert kinds_named(code, kinds) == found, code


if __name__ == "__main__":
    lines = violations(ROOT)
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
