"""`headlab config --schema` allows what the program reads and refuses what it refuses.

Run by pytest with scripts/requirements.txt installed; HEADLAB_BUILD_DIR names the build directory.
"""

import copy
import functools
import json
import re
import subprocess

import jsonschema
import pytest
import yaml

from conftest import ROOT, headlab, program

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SWEEPS = sorted((ROOT / "configs/sweeps").rglob("*.yaml"))
COMPARISONS = sorted((ROOT / "configs/compare").rglob("*.yaml"))


def read_yaml(text):
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.cache
def validator(of="config"):
    schema = json.loads(headlab("config", "--schema", "--of", of))
    known = {} if of == "config" else validator("config").schema["$defs"]  # and checked: it takes a second
    new = {name: part for name, part in schema["$defs"].items() if part != known.get(name)}
    jsonschema.Draft202012Validator.check_schema(schema | {"$defs": new})
    return jsonschema.Draft202012Validator(schema)


def complaints(config, of="config"):
    """Every error of the schema: where it is, and what it says."""
    return [(".".join(map(str, error.absolute_path)), error.message)
            for error in validator(of).iter_errors(config)]


def plain(path):
    """The YAML of a file as an editor sees it: without what it extends."""
    return read_yaml(path.read_text(encoding="utf-8"))


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
    config = read_yaml(path.read_text(encoding="utf-8"))
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
    assert len(CONFIGS) > 10 and len(SWEEPS) > 2 and len(COMPARISONS) > 10
    assert {*CONFIGS, *SWEEPS, *COMPARISONS} == {*(ROOT / "configs").rglob("*.yaml")}


def test_every_file_that_lies_in_configs_obeys_its_schema_as_an_editor_sees_it():
    wrong = {path.name: said for files, of in ((CONFIGS, "config"), (SWEEPS, "sweep"),
                                               (COMPARISONS, "comparison"))
             for path in files if (said := complaints(plain(path), of))}
    assert wrong == {}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_obeys_the_schema_as_written_and_as_resolved(path):
    validator().validate(load(path))
    validator().validate(read_yaml(headlab("config", path)))
    validator().validate(read_yaml(headlab("config", path, "--minimal")))


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


LEFT_TO_A_PARENT = {"unknown key of the usual kind", "option of positions without their kind"}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_by_its_key_and_not_as_none_of_many_forms(small, name):
    for parent in ({}, {"extends": "other.yaml"}):
        config = changed(small | parent, MISTAKES[name])
        said = complaints(config)
        assert bool(said) == (not parent or name not in LEFT_TO_A_PARENT)
        keys = re.findall(r"[A-Za-z_]+", str(MISTAKES[name]))
        for path, message in said:
            assert "any of the given schemas" not in message
            assert any(key in f"{path} {message}" for key in keys), (path, message)


def test_an_error_is_about_the_key_that_is_wrong(small):
    def one(settings):
        (said,) = complaints(changed(small, settings))
        return said

    assert one({"model.attention": {"kind": "moh", "sharedd": 1}}) == (
        "model.attention", "Additional properties are not allowed ('sharedd' was unexpected)")
    assert one({"model.attention": {"kind": "moh", "active": "all"}}) == (
        "model.attention.active", "'all' is not of type 'integer'")
    path, said = one({"model.attention": {"kind": "moj"}})
    assert path == "model.attention.kind" and said.startswith("'moj' is not one of ['bigbird'")
    path, said = one({"model.attention": "moj"})
    assert path == "model.attention" and said.startswith("'moj' is not one of ['bigbird'")
    inner = {"kind": "entmax", "alpha": 0.5}
    path, said = one({"model.attention": {"kind": "gated", "inner": inner}})
    assert path == "model.attention.inner.alpha" and said.startswith("0.5 is less than")
    assert one({"model.window": [16, -1]})[0] == "model.window.1"
    assert one({"train.warmup": -5}) == ("train.warmup", "-5 is less than the minimum of 0")
    assert one({"train.warmup": 1.5})[0] == "train.warmup"


def test_a_file_that_extends_another_may_leave_kinds_to_it():
    part = {"extends": "other.yaml", "model": {"attention": {"shared": 1}, "patch": 4},
            "data": {"symbols": 16}}
    assert complaints(part) == []
    assert [at for at, _ in complaints({key: value for key, value in part.items()
                                        if key != "extends"})] != []
    for wrong, at in (({"model": {"attention": {"sharde": 1}}}, "model.attention"),
                      ({"model": {"pach": 4}}, "model"), ({"model": {"patch": "four"}}, "model.patch"),
                      ({"model": {"kind": "decoder", "patch": 4}}, "model"),
                      ({"data": {"sybols": 16}}, "data")):
        assert [path for path, _ in complaints({"extends": "other.yaml"} | wrong)] == [at]


SWEEP = {"base": "char_mha.yaml", "grid": {"seed": [1, 2]}}
SWEEP_MISTAKES = {
    "unknown key": ({"gird": {}}, "gird"),
    "no base": ({"base": None}, "base"),
    "unknown setting": ({"grid": {"train.lrr": [0.1]}}, "train.lrr"),
    "one value for a list": ({"grid": {"seed": 3}}, "grid.seed"),
    "wrong type of a value": ({"grid": {"train.lr": ["fast"]}}, "grid.train.lr.0"),
    "unknown kind": ({"grid": {"model.attention": ["mha", {"kind": "mhaa"}]}},
                     "grid.model.attention.1.kind"),
    "unknown option": ({"zip": {"model.attention": [{"kind": "moh", "sharde": 1}]}}, "sharde"),
    "a value twice": ({"grid": {"seed": [1, 1]}}, "grid.seed"),
    "no list of points": ({"exclude": {"seed": 1}}, "exclude"),
    "unknown setting of a point": ({"exclude": [{"sed": 1}]}, "sed"),
}
COMPARISON = {"tasks": ["char_mha.yaml"], "kinds": ["mha", "moh"], "rates": [1e-3, 2e-3],
              "choose_seeds": 6, "seeds": [1, 2]}
COMPARISON_MISTAKES = {
    "unknown key": ({"kind": ["mha"]}, "'kind'"),
    "unknown kind": ({"kinds": ["mha", "mhaa"]}, "kinds.1"),
    "an arm without a name": ({"kinds": [{"attention": "moh"}]}, "name"),
    "unknown option of an arm": ({"kinds": [{"name": "a", "attention": {"kind": "moh", "x": 1}}]},
                                 "kinds.0.attention"),
    "a seed of an arm": ({"kinds": [{"name": "a", "set": {"seed": 1}}]}, "seed"),
    "unknown setting of a task": ({"tasks": [{"base": "a.yaml", "set": {"train.lrr": 1}}]},
                                  "train.lrr"),
    "one seed": ({"seeds": [1]}, "seeds"),
    "a rate of 0": ({"rates": [0]}, "rates.0"),
    "unknown match": ({"match": "dff"}, "match"),
}


@pytest.mark.parametrize("of, whole, mistakes", [("sweep", SWEEP, SWEEP_MISTAKES),
                                                 ("comparison", COMPARISON, COMPARISON_MISTAKES)])
def test_mistakes_in_sweeps_and_comparisons_are_told_by_their_key(of, whole, mistakes):
    assert complaints(whole, of) == []
    for name, (change, key) in mistakes.items():
        said = complaints(whole | change, of)
        assert said, name
        assert all("any of the given schemas" not in message for _, message in said), (name, said)
        assert all(key in f"{path} {message}" for path, message in said), (name, said)


def test_what_a_sweep_may_hold_its_schema_allows():
    allowed = SWEEP | {"base": ["a.yaml", "b.yaml"], "zip": {"model.d_model": [8, 16],
                                                            "model.heads": [2, 4]},
                       "grid": {"model.attention": ["mha", {"kind": "moh", "shared": 1}, {"bias": True}],
                                "model.attention.inner.alpha": [1.5], "log.stats": [[], ["entropy"]],
                                "model.attention_at.0.kind": ["moh"], "train.warmup": [0.1, 100]},
                       "exclude": [{"base": "a.yaml", "model.heads": 2}]}
    assert complaints(allowed, "sweep") == []
