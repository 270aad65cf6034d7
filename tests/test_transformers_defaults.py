"""The table of what transformers assumes of keys that config.json leaves out, beside the library."""

import json
import re
import subprocess

import pytest

from conftest import ROOT
from transformers_testing import bench_python

TABLE = ROOT / "experiments/pretrained/hugging_face_defaults.cpp"
ASK = """
import dataclasses, json, sys, transformers
transformers.logging.set_verbosity_error()
found = {}
for name in sys.argv[1:]:
    config = transformers.AutoConfig.for_model(name)
    fields = {f.name: f.default for f in dataclasses.fields(config)
              if f.default is None or isinstance(f.default, (bool, int, float, str))}
    found[name] = {"fields": fields, "other": config.attribute_map, "labels": config.num_labels,
                   "theta": (getattr(config, "rope_parameters", None) or {}).get("rope_theta")}
print(json.dumps(found))
"""
# Of no class any more, or of some classes that read them from a file all the same: what the older or
# the other ones have.
FREE = {"pruned_heads": {}, "position_embedding_type": "absolute", "rope_scaling": None,
        "partial_rotary_factor": 1.0, "layer_types": None, "sliding_window": None, "head_dim": None,
        "attention_bias": False, "mlp_bias": False, "eos_token_id": None}


def tables():
    defaults, other = (json.loads(text) for text in re.findall(r'R"\((.*?)\)"', TABLE.read_text(), re.S))
    return defaults, other


@pytest.fixture(scope="module")
def library():
    names = [*tables()[0]]
    done = subprocess.run([*bench_python(), "-c", ASK, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", tables()[0])
def test_every_default_is_the_library_s(library, name):
    defaults, other = tables()
    theirs = library[name]
    assert other.get(name, {}) == theirs["other"]
    for key, value in defaults[name].items():
        if key == "rope_theta":
            assert value == theirs["theta"]
        elif key == "num_labels":
            assert value == theirs["labels"]
        elif key in theirs["fields"]:
            assert (key, value) == (key, theirs["fields"][key])
        else:
            assert (key, value) == (key, FREE[key])
