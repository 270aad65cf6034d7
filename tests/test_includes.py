"""Who may include whom: core <- core; variants <- core; experiments <- core, experiments; tests <- any.

Run as a program it prints the include lines that break the table (the pre-commit hook).
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = {
    "core": {"core"},
    "variants": {"core"},  # never another variant: a shared function belongs in core
    "experiments": {"core", "experiments"},
    "tests": {"core", "variants", "experiments", "tests"},
}
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.M)


def violations(root):
    """One line for each include that the table forbids."""
    found = []
    for folder, allowed in ALLOWED.items():
        for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in SUFFIXES):
            text = path.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                name = match[1] or match[2]
                beside = (path.parent / name).resolve()
                if match[1] and beside.is_file() and beside.is_relative_to(root):
                    name = beside.relative_to(root).as_posix()
                target = pathlib.PurePosixPath(name).parts[0]
                if target in ALLOWED and target not in allowed:
                    line = text.count("\n", 0, match.start()) + 1
                    found.append(
                        f"{path.relative_to(root)}:{line}: {folder} may not include {name}"
                    )
    return found


def test_every_include_obeys_the_table():
    assert violations(ROOT) == []


def test_a_planted_include_is_found(tmp_path):
    planted = {
        "core/a.cpp": '#include "experiments/train.h"\n',
        "core/kernels/b.cu": '#include "../../variants/mha.cpp"\n',
        "variants/c.cpp": '#include "core/heads.h"\n#include "d.h"\n',
        "variants/d.h": '#include "core/attention/attend.h"\n',
        "experiments/models/e.cpp": "  # include <variants/d.h>\n",
    }
    allowed = {
        "core/heads.h": '#include <vector>\n#include "core/config/config.h"\n#include "attend.h"\n',
        "core/attention/attend.h": "",
        "experiments/f.cpp": '#include "core/heads.h"\n#include "experiments/train.h"\n',
        "tests/g.cpp": '#include "variants/d.h"\n#include "tests/catch.h"\n',
        "variants/mha.cpp": "",
    }
    for name, text in (planted | allowed).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == [
        "core/a.cpp:1: core may not include experiments/train.h",
        "core/kernels/b.cu:1: core may not include variants/mha.cpp",
        "variants/c.cpp:2: variants may not include variants/d.h",
        "experiments/models/e.cpp:1: experiments may not include variants/d.h",
    ]


def test_a_kind_fits_into_300_lines():
    long = [path.name for path in (ROOT / "variants").glob("*.cpp")
            if len(path.read_text(encoding="utf-8").splitlines()) > 300]
    assert long == []


def test_core_knows_no_kind_by_name():
    """No text in core's code equals the name of a kind."""
    kinds = {path.stem for path in (ROOT / "variants").glob("*.cpp")}
    assert len(kinds) > 1
    for path in (ROOT / "core").rglob("*"):
        if path.suffix in SUFFIXES:
            texts = set(re.findall(r'"(\w+)"', path.read_text(encoding="utf-8")))
            assert texts & kinds == set(), path


if __name__ == "__main__":
    lines = violations(ROOT)
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
