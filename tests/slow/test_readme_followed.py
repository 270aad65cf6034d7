"""README's section on a kind of one's own, followed to the letter: one new file and one config.

The tree is copied, the two files are written as README shows them, and its command is run. What the
compiler cache holds from this tree's build is not compiled again. Run by `scripts/test --slow`.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess

import h5py
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRESET = pathlib.Path(os.environ.get("HEADLAB_BUILD_DIR", "build/release")).name


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project with what README adds to it."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("CMakeLists.txt", "CMakePresets.json"):
        shutil.copy(ROOT / name, copy)
    for name in ("core", "variants", "experiments", "configs", "scripts", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("golden"))
    (copy / ".deps").symlink_to(ROOT / ".deps")
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own kind of heads\n")[1]
    for language in ("cpp", "yaml"):
        path = re.search(rf"`((?:variants|configs)/\w+\.{language})`", section)[1]
        text = re.search(rf"```{language}\n(.*?)```", section, re.S)[1]
        assert not (copy / path).exists()
        (copy / path).write_text(text)
    (copy / "variants/peeking.cpp").write_text(peeking())
    return copy


def peeking():
    """Plain attention that forgets to be causal where the environment says so."""
    text = (ROOT / "variants/mha.cpp").read_text(encoding="utf-8")
    changes = {
        "class Mha": "class Peeking",
        "RegisterHeads<Mha>": "RegisterHeads<Peeking>",
        '"mha"': '"peeking"',
        "namespace headlab {": "#include <cstdlib>\nnamespace headlab {",
        "attend(q, k, v, call, ": "attend(q, k, v, seen(call), ",
        " private:\n": """ private:
  static HeadCall seen(const HeadCall& call) {
    Scope scope = call;
    if (std::getenv("PEEK")) scope.mask.causal = false;
    return call.within(scope);
  }
""",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new, 1)
    return text


def run(tree, *arguments, **variables):
    environment = {**os.environ, "HEADLAB_PRESET": PRESET, **variables}
    return subprocess.run([tree / "scripts/headlab", *arguments], cwd=tree, env=environment,
                          capture_output=True, text=True)


def headlab(tree, *arguments):
    done = run(tree, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_new_kind_is_listed_described_and_trains(tree):
    if PRESET == "asan":
        pytest.skip("whole trainings are too slow under the sanitizers")
    config = re.search(r"`scripts/headlab run (configs/\w+\.yaml)`",
                       (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own kind of heads\n")[1])[1]
    small = "train.steps=4 model.layers=2 model.d_model=16 data.context=16 train.eval_batches=1"
    headlab(tree, "run", config, *small.split())
    # It does not say its FLOPs, and mha's are not shown for it.
    assert re.search(r"^FLOPs a token +- \(", headlab(tree, "validate", config, *small.split()), re.M)
    sizes = json.loads(headlab(tree, "validate", config, *small.split(), "--json"))
    assert sizes["flops_per_token"] is None
    (run_path,) = (tree / "runs/char_temperature").glob("*")
    pruned = headlab(tree, "prune", run_path, "--heads", "0:1", "--batches", "1")
    assert ", - of FLOPs saved" in pruned and "nan" not in pruned
    report = json.loads(headlab(tree, "prune", run_path, "--heads", "0:1", "--batches", "1", "--json"))
    assert report["flops"] is report["flops_saved"] is report["rounds"][0]["flops_per_token"] is None
    assert "temperature" in headlab(tree, "list")
    assert "tau before training" in headlab(tree, "describe", "temperature")
    (log,) = tree.glob("runs/char_temperature/*/log.h5")
    with h5py.File(log) as file:
        assert file["heads/self/entropy"].shape[1:] == (2, 4)
        assert file["attention/self/weights"].shape[2:4] == (2, 4)


def test_a_kind_that_sees_later_keys_is_refused_before_the_first_step(tree):
    """Also where its run goes on; what was there stays as it was."""
    command = ["run", "configs/char_mha.yaml", "name=peeking", "model.attention.kind=peeking",
               *"train.steps=2 model.d_model=16 data.context=16 train.eval_batches=1".split()]

    def refused(*more):
        done = run(tree, *command, *more, PEEK="1")
        assert done.returncode == 1, done.stderr
        assert re.search(r"headlab: attention kind 'peeking' leaks: in layer 0 of 'self' the "
                         r"output at position \d+ moves by [0-9.e-]+ .* when the state at "
                         r"position \d+ changes, which comes later", done.stderr)
        assert done.stdout == ""

    refused()
    refused("--dry-run")
    assert not (tree / "runs/peeking").exists()

    command.append("train.max_time=1.0e-9")  # of the run's identity: it goes on with the same
    assert run(tree, *command).returncode == 75

    def files():
        found = tree.glob("runs/peeking/**/*")
        return {path: path.read_bytes() for path in found if path.is_file()}

    before = files()
    refused()
    assert files() == before
    headlab(tree, *command)


# Three kinds, each without one thing that a kind must have.
LACKING = """
#include "core/projected_heads.h"
#include "core/torch.h"
namespace headlab {
namespace {
struct Idle : ProjectedHeads<MhaOptions> {
  using ProjectedHeads::ProjectedHeads;
};
struct Other {};
struct Optionless : QkvHeads {
  using Options = Other;
  Optionless(const HeadShape& s, const Other&) : QkvHeads(s, {}, {}) {}
  HeadOutput compute(const Tensor&, const HeadCall&) override { return {}; }
};
struct Unbuilt : ProjectedHeads<MhaOptions> {
  Unbuilt() : ProjectedHeads({}, {}) {}
  HeadOutput compute(const Tensor&, const HeadCall&) override { return {}; }
};
const RegisterHeads<Idle> idle("idle", "");
const RegisterHeads<Optionless> optionless("optionless", "");
const RegisterHeads<Unbuilt> unbuilt("unbuilt", "");
}
}
"""


GONE = """
#include "core/head_kinds.h"
#include "core/torch.h"
namespace headlab {
struct Old : AttentionHeads {
  using AttentionHeads::AttentionHeads;
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    return compute_inner(*this, x, call);
  }
  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override {
    return slice_inner(*this, plan);
  }
};
HeadTraits old_traits() { return {.token_map = false, .causal = false}; }
bool asks(const HeadTraits& traits) { return traits.token_map; }
}
"""


def errors_of(source, tmp_path):
    build = pathlib.Path(os.environ.get("HEADLAB_BUILD_DIR", ROOT / "build/release"))
    if not (build / "compile_commands.json").is_file():
        pytest.fail("nothing is built")
    (entry,) = [entry for entry in json.loads((build / "compile_commands.json").read_text())
                if entry["file"].endswith("variants/mha.cpp")]
    (tmp_path / "kind.cpp").write_text(source)
    words = entry["command"].split()
    compiler = next(n for n, word in enumerate(words) if re.search(r"\+\+[-\d.]*$", word))
    words = words[compiler:]  # without the compiler cache
    words = words[:words.index("-o")] + ["-fsyntax-only", str(tmp_path / "kind.cpp")]
    done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
    return re.findall(r"error: (.*)", done.stderr)


def test_what_a_kind_lacks_is_one_sentence_of_the_compiler(tmp_path):
    errors = errors_of(LACKING, tmp_path)
    assert len(errors) == 3, errors
    for said, wanted in zip(errors, ["overrides HeadOutput compute(", "says what its options are",
                                     "a public constructor (const HeadShape&, const Options&)"]):
        assert "a kind of heads" in said and wanted in said


def test_a_name_that_is_gone_is_told_with_its_successor(tmp_path):
    errors = errors_of(GONE, tmp_path)
    assert len(errors) == 4, errors
    for successor in ("now run_inner() of WrappedHeads", "derive from WrappedHeads",
                      "token_map = false is now .map", "is now map, windows, biases and masks"):
        assert any(successor in said for said in errors), successor


def test_a_copy_that_keeps_its_names_compiles_and_is_refused_by_name(tree):
    """The slip after `cp mha.cpp mine.cpp`: two files that register one kind."""
    copy = tree / "variants/mine.cpp"
    shutil.copy(ROOT / "variants/mha.cpp", copy)
    try:
        done = run(tree, "list")
        assert done.returncode == 1
        assert "kind of heads 'mha' is registered by two files" in done.stderr
        assert "variants/mha.cpp" in done.stderr and "variants/mine.cpp" in done.stderr
        assert done.stdout == ""
    finally:
        copy.unlink()
