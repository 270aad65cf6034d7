"""Tokenizers beside the tokenizers library, which scripts/bench/environment installs: what headlab writes it opens,
and texts have the same ids and places with both. As transformers opens them: tests/slow/test_tokenizers_opened.py."""

import json
import pathlib
import random
import subprocess

import pytest

from conftest import ROOT, program
from transformers_testing import bench_python

GOLDEN = ROOT / "tests/golden"
# What the library makes of texts with the tokenizer of a folder, request by request.
REFERENCE = """
import json, os, sys
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer
def opened_of(folder):
    if os.path.exists(folder + "/tokenizer.json"):
        return Tokenizer.from_file(folder + "/tokenizer.json")
    config = json.load(open(folder + "/tokenizer_config.json"))
    if os.path.exists(folder + "/vocab.txt"):
        return BertWordPieceTokenizer(folder + "/vocab.txt", lowercase=config["do_lower_case"],
                                      strip_accents=config.get("strip_accents"))
    opened = ByteLevelBPETokenizer(folder + "/vocab.json", folder + "/merges.txt")
    opened.add_special_tokens([config["eos_token"]])
    return opened
for line in sys.stdin:
    folder, texts = json.loads(line)
    opened = opened_of(folder)
    def described(text):
        encoding = opened.encode(text, add_special_tokens=False)
        return {"ids": encoding.ids, "offsets": encoding.offsets, "words": encoding.word_ids,
                "framed": opened.encode(text).ids,
                "decoded": opened.decode(encoding.ids, skip_special_tokens=False)}
    print(json.dumps([described(text) for text in texts]), flush=True)
"""


def served(code):
    """Asks a Python that has the library about texts, with what a folder holds."""
    with subprocess.Popen([*bench_python(), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as serving:
        def describe(folder, texts):
            print(json.dumps([str(folder), texts]), file=serving.stdin, flush=True)
            return json.loads(serving.stdout.readline())

        yield describe
        serving.stdin.close()


@pytest.fixture(scope="module")
def reference():
    """What the library says of texts."""
    yield from served(REFERENCE)


def tokenizers(verb, folder, text):
    path = pathlib.Path(program()).with_name("headlab_tokenizers")
    done = subprocess.run([path, verb, folder], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(folder, texts):
    lines = tokenizers("encode", folder, "".join(json.dumps(text) + "\n" for text in texts))
    return [json.loads(line) for line in lines.split("\n")[:-1]]


def golden(name):
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def texts():
    """Those of the golden file, and as many again that no one would write."""
    given = [case["text"] for case in golden("wordpiece.json")["cases"]]
    parts = [*"abstTSrevemld''  .,!-\u0229\u0301\u0327\u0302\u00c5\u017f\uac00\u1112\u1161\u11ab",
             *"\u0130\u03a3\u03c2\u4e2d\u3042\u3099\u0967\u00b2\u00bd12345\t\n\r\u00a0\u2028\u200b",
             "\U0001f642", *"\u2e52\u08d4\u0898\u07fd\U0002ebf0\U00010d50\U00011de0\U00010d40",
             *"\U00011935\U00011930\ua7cb\u166d\u0890", "\u0f71", "\u0323", "\u0344", "'s", "'LL", "  ", "\r\n", "the", " the",
             "<|endoftext|>", "[MASK]", "[mask]"]
    draw = random.Random(3)
    return given + ["".join(draw.choices(parts, k=draw.randint(1, 14))) for _ in range(1000)]


def bpe(pattern="gpt2", **settings):
    folder = GOLDEN / "bpe"
    ids = golden("bpe/vocab.json")
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    return {"kind": "bpe", "pattern": pattern, "specials": ["<|endoftext|>"],
            "tokens": sorted(ids, key=ids.get), "merges": [m for m in merges if m], **settings}


def wordpiece(lower_case, strip_accents):
    text = (GOLDEN / "wordpiece/vocab.txt").read_text(encoding="utf-8")
    return {"kind": "wordpiece", "lower_case": lower_case, "strip_accents": strip_accents,
            "unknown": "[UNK]", "specials": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            "begin": 101, "end": 102, "tokens": text.split("\n")[:-1]}


BPE = {"gpt2": bpe(), "smollm2": bpe("smollm2"), "qwen2": bpe("qwen2", end=5),
       "llama3": bpe("llama3", ignore_merges=True, begin=0)}
WORDPIECE = {"uncased": wordpiece(True, True), "cased": wordpiece(False, False),
             "accents": wordpiece(True, False)}


def write(tokenizer, folder):
    tokenizers("write", folder, json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("name", BPE)
def test_bpe_gives_the_ids_and_places_of_the_tokenizers_library(reference, tmp_path, name):
    write(BPE[name], tmp_path)
    for text, ours, theirs in zip(texts(), described(tmp_path, texts()),
                                  reference(tmp_path, texts()), strict=True):
        for key in "ids", "offsets", "framed", "decoded":
            assert ours[key] == theirs[key], (key, text)


@pytest.mark.parametrize("name", WORDPIECE)
def test_wordpiece_gives_the_ids_places_and_words_of_the_tokenizers_library(reference, tmp_path,
                                                                            name):
    write(WORDPIECE[name], tmp_path)
    for text, ours, theirs in zip(texts(), described(tmp_path, texts()),
                                  reference(tmp_path, texts()), strict=True):
        for key in "ids", "offsets", "words", "framed", "decoded":
            assert ours[key] == theirs[key], (key, text)


def test_characters_are_opened_by_the_library(reference, tmp_path):
    some = "".join(sorted(set("".join(texts()))))
    write({"kind": "char", "characters": some}, tmp_path)
    for ours, theirs in zip(described(tmp_path, texts()), reference(tmp_path, texts()), strict=True):
        assert ours["ids"] == theirs["ids"]
        assert ours["decoded"] == theirs["decoded"]


@pytest.mark.parametrize("line_end", ["", "<eos>"])
def test_words_are_opened_by_the_library(reference, tmp_path, line_end):
    write({"kind": "words", "specials": ["<unk>", "<eos>"], "unknown": 0, "line_end": line_end,
           "words": ["the", "cat", "sat.", "on"]}, tmp_path)
    some = ["", "the cat  sat.", "the dog\nsat. on the\n\ncat <unk> <eos> the", " \n "]
    for ours, theirs in zip(described(tmp_path, some), reference(tmp_path, some), strict=True):
        assert ours["ids"] == theirs["ids"]


def test_bytes_are_opened_by_the_library(reference, tmp_path):
    write({"kind": "bytes"}, tmp_path)
    for text, theirs in zip(texts(), reference(tmp_path, texts()), strict=True):
        assert theirs["ids"] == list(text.encode("utf-8"))
