"""What scripts and notebooks of users rely on: tests/frozen/interface.txt lists it, and the program
has it: commands and options, keys of a config, exit codes, groups and variables of a log.

Run as a program it writes the list anew.
"""

import json
import re

import h5py

from conftest import ROOT, commands, headlab, train

FROZEN = ROOT / "tests/frozen/interface.txt"
REMEDY = ("the interface has changed. If that is meant: write the list anew by\n"
          "  HEADLAB_BUILD_DIR=build/release scripts/venv tests/test_interface.py\n"
          "say in the commit what changes for users, and give every new option a test of its effect.")
OPTION = re.compile(r"^  (?:-\w,)?(\S+)(?: (TEXT|INT|UINT|FLOAT)(\S*))?( REQUIRED)?( \.\.\.)?", re.M)


def words_of(command):
    """A command's positional words and options, with type, choices and default: a line each."""
    text = headlab(command, "--help").split("\n\nExample:")[0]
    parts = re.split(r"\n(?:Positionals|Options):\n", text)[1:]
    lines = [" ".join(filter(None, (name, kind + rest, must.strip(), many.strip())))
             for part in parts for name, kind, rest, must, many in OPTION.findall(part)]
    return [line for line in lines if line != "--help"]


def options_of(command):
    return [line.split()[0] for line in words_of(command) if line.startswith("--")]


def config_keys(node, definitions, path="", inside=()):
    """`a.b`; the options of a kind as `a{kind}.b`. A kind inside of itself is not entered again, nor
    is a mapping that names no kind, whose keys are those of kinds."""
    for other in node.get("anyOf", []) + node.get("allOf", []):
        yield from config_keys(other, definitions, path, inside)
    if "not" not in node.get("if", {}):
        for branch in {"then", "else"} & node.keys():
            yield from config_keys(node[branch], definitions, path, inside)
    if node.get("$ref", "").startswith("#/$defs/") and node["$ref"] not in inside:
        name = node["$ref"].removeprefix("#/$defs/")
        kind = definitions[name]["properties"]["kind"].get("const")  # else it is any of some
        yield from config_keys(definitions[name], definitions, f"{path}{{{kind}}}" if kind else path,
                               (*inside, node["$ref"]) if kind else inside)
    for key, value in node.get("properties", {}).items():
        if key == "kind" and "allOf" in node:  # any of some kinds, each of which has it
            continue
        below = f"{path}.{key}" if path else key
        yield below
        if key == "inner":  # of a wrapper, which takes the kinds that `attention` takes
            continue
        yield from config_keys(value, definitions, below, inside)


def log_names(run):
    names = []
    with h5py.File(run / "log.h5", "r") as log:
        log.visititems(lambda name, item: names.append(
            f"/{name}" + (f" [{item.dtype.str[1:]}]" if isinstance(item, h5py.Dataset) else "/")))
    return sorted(names)


def interface(run):
    schema = json.loads(headlab("config", "--schema"))
    del schema["then"]  # of files that extend others: the same keys
    codes = (ROOT / "experiments/system/exit_codes.h").read_text(encoding="utf-8")
    sections = {"commands and their options": [f"{command} {word}" for command in commands()
                                               for word in words_of(command)],
                "keys of a config": sorted(set(config_keys(schema, schema["$defs"]))),
                "exit codes": [" ".join(code) for code in re.findall(r"^  (k\w+) = (\d+),", codes, re.M)],
                "a log": log_names(run)}
    return "".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) + "\n"
                   for title, lines in sections.items())


def test_the_interface_is_the_frozen_one(tmp_path):
    now, then = interface(train(tmp_path)).splitlines(), FROZEN.read_text(encoding="utf-8").splitlines()
    changes = [f"- {line}" for line in then if line not in now]
    changes += [f"+ {line}" for line in now if line not in then]
    assert not changes, "\n".join([REMEDY, *changes])
    assert now == then, REMEDY


def test_every_option_of_every_command_is_used_by_a_test():
    """In a file of tests that names its command in quotes."""
    texts = [(text, set(re.findall(r"(?<![\w-])--\w[\w-]*", text))) for text in (
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*")
        if path.suffix in {".py", ".cpp"} and path.name != "test_interface.py")]

    def options_in_tests_of(command):
        named = re.compile(rf"[\"' ]{command}[\"' ]")
        return {option for text, options in texts if named.search(text) for option in options}

    names = commands()
    assert len(names) > 10
    untested = [f"{command} {option}" for command in names
                for option in sorted({*options_of(command)} - options_in_tests_of(command))]
    assert untested == [], "give each a test of its effect, beside others of its command"


if __name__ == "__main__":
    import pathlib
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        FROZEN.write_text(interface(train(pathlib.Path(folder))), encoding="utf-8")
