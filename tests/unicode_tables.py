"""Writes experiments/text/unicode_tables.cpp: what the tokenizers library takes characters for.

    scripts/bench/environment tests/unicode_tables.py > experiments/text/unicode_tables.cpp

Each of its parts has the tables of another version of Unicode. They are read off the installed
library, code point by code point; tests/slow/test_tokenizers_opened.py holds the file to it.
"""

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
STARTER = "a"
# Marks of the least and of the greatest class that reorder: any other changes its place with one.
FIRST, LAST = "\u0334", "\u0345"


def isolated(splitter):
    """The code points that a pre-tokenizer cuts off from what is before and behind."""
    found, beside = set(), "\x01"  # no letter, number or white space
    for begin in range(0, len(CODE_POINTS), 4096):
        text = beside + beside.join(map(chr, CODE_POINTS[begin:begin + 4096])) + beside
        for _, (first, last) in splitter.pre_tokenize_str(text):
            if last - first == 1 and text[first] != beside:
                found.add(ord(text[first]))
    return found


def of_pattern(pattern):
    return isolated(pre_tokenizers.Split(Regex(pattern), "isolated"))


def bert(**steps):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False,
           "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **steps})


def changed(normalizer):
    made = {c: normalizer.normalize_str(chr(c)) for c in CODE_POINTS}
    return {c: text for c, text in made.items() if text != chr(c)}


def punctuation():
    cut = pre_tokenizers.BertPreTokenizer()
    marks = {c for c in CODE_POINTS if len(cut.pre_tokenize_str(f"a{chr(c)}b")) == 3}
    return marks - set(b"$+<=>^`|~")  # which are marks, too, but of another category


def reordered():
    """Marks that change places with others: those of no class but 0."""
    nfd = normalizers.NFD()
    return {c for c in CODE_POINTS
            if nfd.normalize_str(STARTER + LAST + chr(c)) != STARTER + LAST + chr(c)
            or nfd.normalize_str(STARTER + chr(c) + FIRST) != STARTER + chr(c) + FIRST}


def ranges(code_points):
    found = []
    for c in sorted(code_points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def lines(items):
    line = ""
    for item in items:
        if len(line) + len(item) + 2 > 98:
            yield f"  {line.rstrip()}"
            line = ""
        line += item + ", "
    yield f"  {line.rstrip(' ,')}"


def table(kind, name, begin, items, end):
    return "\n".join([f"constexpr {begin}", *lines(items), f"}}{end};",
                      f"const std::span<const {kind}> {name} = {name}List;", ""])


def set_table(name, code_points):
    """By turns how many code points are not in the set, and how many are."""
    counts, at = [], 0
    for first, last in ranges(code_points):
        counts += [first - at, last + 1 - first]
        at = last + 1
    return table("CodePoints", name, f"auto {name}List = ranges_of({{", map(str, counts), ")")


def case_table(name, lower):
    """Runs of code points, each or every second one, that change by as much."""
    runs = []  # first, last, step, more
    for c, text in sorted(lower.items()):
        if len(text) > 1:
            continue
        more = ord(text) - c
        if runs and runs[-1][3] == more:
            first, last, step, _ = runs[-1]
            if c - last == step or first == last and c - last == 2:
                runs[-1] = (first, c, c - last, more)
                continue
        runs.append((c, c, 1, more))
    items = [f"{{0x{first:X}, 0x{last:X}, {step}, {more}}}" for first, last, step, more in runs]
    return table("CaseChange", name, f"CaseChange {name}List[] = {{", items, "")


def main():
    numbers = of_pattern(r"\p{N}")
    dropped = changed(bert(clean_text=True))
    parts = [
        ("kLetters", of_pattern(r"\p{L}")),
        ("kNumbers", numbers),
        ("kMoreDigits", isolated(pre_tokenizers.Digits(individual_digits=True)) - numbers),
        ("kPunctuation", punctuation()),
        ("kNonspacingMarks", {c for c, text in changed(bert(strip_accents=True)).items() if not text}),
        ("kControls", {c for c, text in dropped.items() if not text} - {0xFFFD} | set(b"\t\n\r")),
        ("kReordered", reordered()),
        ("kDecomposed", changed(normalizers.NFD())),
    ]
    print("// Written by tests/unicode_tables.py, of the tokenizers library "
          f"{tokenizers.__version__}.")
    print('#include "experiments/text/unicode_tables.h"\n')
    print("// clang-format off\nnamespace headlab {\n")
    for name, code_points in parts:
        print(set_table(name, code_points))
    print(case_table("kLowerCase", changed(bert(lowercase=True))))
    print("}  // namespace headlab")


if __name__ == "__main__":
    main()
