"""The tests of tests/test_tokenizers.py, of what transformers makes of the same folders; and the tables of characters.
Run by `scripts/test --slow`."""

import subprocess

import pytest

from conftest import ROOT
from test_tokenizers import *  # noqa: F401, F403: tests
from test_tokenizers import served
from transformers_testing import bench_python

REFERENCE = """
import json, sys
from transformers import AutoTokenizer
for line in sys.stdin:
    folder, texts = json.loads(line)
    opened = AutoTokenizer.from_pretrained(folder)
    backend = opened.backend_tokenizer
    def described(text):
        encoding = backend.encode(text, add_special_tokens=False)
        return {"ids": encoding.ids, "offsets": encoding.offsets, "words": encoding.word_ids,
                "framed": opened(text)["input_ids"],
                "decoded": opened.decode(encoding.ids, skip_special_tokens=False)}
    print(json.dumps([described(text) for text in texts]), flush=True)
"""


@pytest.fixture(scope="module")
def reference():
    """What transformers says of texts."""
    yield from served(REFERENCE)


def test_the_classes_of_all_characters_are_those_of_the_tokenizers_library():
    """experiments/text/unicode_tables.cpp is what the installed library says, code point by code point."""
    done = subprocess.run([*bench_python(), ROOT / "tests/unicode_tables.py"], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    kept = (ROOT / "experiments/text/unicode_tables.cpp").read_text(encoding="utf-8")
    assert done.stdout == kept, "tests/unicode_tables.py writes it anew"
