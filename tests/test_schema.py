"""`headlab config --schema` allows what the program reads and refuses what it refuses.

Run by pytest with scripts/requirements.txt installed; HEADLAB_BUILD_DIR names the build directory.
"""

import copy
import functools
import json
import subprocess

import jsonschema
import pytest
import yaml

from conftest import ROOT, headlab, program

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@functools.cache
def schema():
    return json.loads(headlab("config", "--schema"))


@functools.cache
def validator():
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def merged(base, over):
    """As the program merges: key by key, except that a mapping of another kind replaces."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    if "kind" in base and "kind" in over and base["kind"] != over["kind"]:
        return over
    return base | {key: merged(base[key], value) if key in base else value
                   for key, value in over.items()}


def load(path):
    """The YAML of a config, with what it extends."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    parent = config.get("extends")
    return merged(load(path.parent / parent), config) if parent else config


def changed(config, settings):
    """A copy in which each "a.b.c" has a value of its own."""
    config = copy.deepcopy(config)
    for path, value in settings.items():
        *way, last = path.split(".")
        place = config
        for key in way:
            place = place.setdefault(key, {})
        place[last] = value
    return config


def program_reads(config, tmp_path):
    """Whether the program takes a config; its complaint is the second value."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    done = subprocess.run([program(), "config", str(path)], capture_output=True, text=True)
    assert done.returncode in (0, 2), done.stderr
    return done.returncode == 0, done.stderr


@pytest.fixture
def small():
    return {"name": "small", "data": {"kind": "char", "path": "data/tinyshakespeare.txt"},
            "model": {"kind": "decoder", "layers": 2, "d_model": 32, "heads": 4}}


def test_there_are_configs():
    assert len(CONFIGS) > 10


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_obeys_the_schema_as_written_and_as_resolved(path):
    validator().validate(load(path))
    validator().validate(yaml.safe_load(headlab("config", path)))
    validator().validate(yaml.safe_load(headlab("config", path, "--minimal")))


ALLOWED = {
    "nothing more": {},
    "a word for a kind": {"model.attention": "moh"},
    "options of the usual kind": {"model.attention": {"bias": True}},
    "a kind within a kind": {"model.attention": {"kind": "gated", "inner": {"kind": "entmax"}}},
    "a list for one value": {"model.window": [16, 0]},
    "one value for a list": {"model.window": 16},
    "a word for positions": {"model.position": "rope"},
    "options of positions": {"model.position": {"kind": "rope", "base": 500000}},
    "positions of the usual kind": {"model.position": {}},
    "heads of some layers": {"model.attention_at": {"0": {"bias": True}, "1-1": {"kind": "moh"}}},
    "a word for the heads of a layer": {"model.attention_at": {"0": "entmax"}},
    "an overlap": {"model.attention": {"kind": "mohsa", "overlap": 3}},
    "an overlap that grows": {"model.attention": {"kind": "mohsa", "overlap": {"direction": "up"}}},
    "a scale by name": {"model.attention": {"kind": "collaborative", "scale": "shared"}},
    "a scale by number": {"model.attention": {"kind": "collaborative", "scale": 0.5}},
    "the largest seed": {"model.attention": {"kind": "bigbird", "seed": 2**64 - 1}},
}


@pytest.mark.parametrize("settings", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_the_program_reads_the_schema_allows(small, settings, tmp_path):
    config = changed(small, settings)
    reads, complaint = program_reads(config, tmp_path)
    assert reads, complaint
    validator().validate(config)


MISTAKES = {
    "unknown key at the top": {"modle": {}},
    "unknown key in a block": {"train.checkpoint.evry": 10},
    "unknown key of a kind": {"model.attention": {"kind": "mha", "shared": 1}},
    "unknown key of the usual kind": {"model.attention": {"shared": 1}},
    "unknown key within a kind": {"model.attention": {"kind": "gated", "inner": {"biass": True}}},
    "text for a number": {"train.lr": "fast"},
    "number for a switch": {"model.bias": 1},
    "fraction for an integer": {"train.steps": 1.5},
    "mapping for a number": {"train.steps": {"of": 3}},
    "list for a number": {"train.lr": [0.1]},
    "nothing for a number": {"train.lr": None},
    "wrong type within a list": {"train.betas": [0.9, "much"]},
    "unknown kind": {"model.attention": {"kind": "mhaa"}},
    "unknown word for a kind": {"model.attention": "mhaa"},
    "unknown kind of data": {"data": {"kind": "chars"}},
    "word that is none of a field's": {"train.schedule": "cosin"},
    "number below its bound": {"train.steps": 0},
    "number at an excluded bound": {"train.lr": 0},
    "number above its bound": {"model.dropout": 1.0},
    "number out of range within a list": {"train.betas": [0.9, 1.5]},
    "number out of range of a kind": {"model.attention": {"kind": "entmax", "alpha": 0.5}},
    "unknown positions": {"model.position": "ropes"},
    "option of other positions": {"model.position": {"kind": "rope", "buckets": 8}},
    "option of positions without their kind": {"model.position": {"base": 500000}},
    "base out of range": {"model.position": {"kind": "rope", "base": 1}},
    "layers that are none": {"model.attention_at": {"first": {"bias": True}}},
    "unknown kind in a layer": {"model.attention_at": {"0": {"kind": "mhaa"}}},
    "unknown key in a layer": {"model.attention_at": {"0": {"kind": "moh", "activ": 1}}},
    "unknown key without a kind in a layer": {"model.attention_at": {"0": {"biass": True}}},
    "wrong type in a layer": {"model.attention_at": {"0": {"bias": "very"}}},
    "wrong scale": {"model.attention": {"kind": "collaborative", "scale": "heads"}},
    "negative overlap": {"model.attention": {"kind": "mohsa", "overlap": -1}},
    "seed of more than 64 bits": {"model.attention": {"kind": "bigbird", "seed": 2**64}},
}


@pytest.mark.parametrize("settings", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_by_the_program_and_the_schema(small, settings, tmp_path):
    config = changed(small, settings)
    reads, _ = program_reads(config, tmp_path)
    assert not reads
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(config)
