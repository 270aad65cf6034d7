"""Models of every style that were trained here, cut and exported, and models of transformers that are imported:
both say the same. Run by `scripts/test --slow`."""

import subprocess

import pytest

from conftest import ROOT, headlab
from test_report_sites import translator  # noqa: F401: a fixture
from test_transformers import CLASSES, STYLES, check_same, exported, trained
from transformers_testing import asked, bench_python


@pytest.fixture(scope="module")
def opened(tmp_path_factory, translator):  # noqa: F811
    """What transformers says of every style, whole and with heads gone, by name."""
    bench_python()
    folder = tmp_path_factory.mktemp("exported")
    pairs = exported(folder, "marian", translator, ["cross/0:1", "encoder_self/0:0"])
    for style in STYLES:
        pairs |= exported(folder, style, trained(folder, style), ["0:1,3", "1:0"])
    return asked(pairs)["models"]


@pytest.mark.parametrize("style", CLASSES)
@pytest.mark.parametrize("cut", ["", "_cut"])
def test_the_class_of_the_task_gives_the_same_logits(opened, style, cut):
    check_same(opened[style + cut], style)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The same of every model of tests/transformers_maker.py, imported."""
    folder = tmp_path_factory.mktemp("made")
    done = subprocess.run([*bench_python(), ROOT / "tests/transformers_maker.py", folder],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pairs = {}
    for made in sorted(folder.iterdir()):
        run = folder / f"{made.name}_run"
        headlab("import", made, "--out", run)
        pairs[made.name] = run, made
    return asked(pairs)["models"]


@pytest.mark.parametrize("name", [
    "bert_classes", "bert_scores", "bert_bare", "bert_pretraining", "bert_tied", "gpt2_tied",
    "llama_tied", "marian_tied", "marian_apart", "mistral_default", "qwen2_late", "qwen3_types"])
def test_a_model_of_transformers_says_the_same_here(imported, name):
    assert imported[name]["difference"] < 2e-5 * max(1, imported[name]["largest"])
