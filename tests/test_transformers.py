"""Models that were trained here, cut and exported, and models of transformers that are imported: both
say the same."""

import json
import subprocess

import pytest

from conftest import ROOT, headlab, program
from test_report_sites import translator  # noqa: F401: a fixture
from transformers_testing import bench_python

TEXT = "to be or not to be that is the question . " * 60
STYLES = {  # data and model of a config
    "gpt2": ("{kind: words, path: text, context: 16}", "{kind: decoder, dropout: 0.1}"),
    "gpt2_with_biases": ("{kind: words, path: text, context: 16}",
                         "{kind: decoder, bias: true, tie: false, mlp: gelu_tanh, "
                         "attention: {kind: mha, bias: true}}"),
    "llama": ("{kind: words, path: text, context: 16}",
              "{kind: decoder, kv_heads: 2, norm: rms, mlp: swiglu, "
              "position: {kind: rope, layout: interleaved}}"),
    "mistral": ("{kind: words, path: text, context: 16}",
                "{kind: decoder, norm: rms, mlp: swiglu, tie: false, position: rope, window: 3}"),
    "qwen2": ("{kind: words, path: text, context: 16}",
              "{kind: decoder, norm: rms, mlp: swiglu, position: rope, "
              "attention: {kind: mha, qkv_bias: true}}"),
    "qwen3": ("{kind: words, path: text, context: 16}",
              "{kind: decoder, norm: rms, norm_eps: 1.0e-6, mlp: swiglu, position: rope, "
              "attention: {kind: mha, qk_norm: true}}"),
    "bert": ("{kind: words, path: text, context: 16, objective: masked}",
             "{kind: encoder, attention: {kind: mha, bias: true}}"),
    "vit": ("{kind: digits}", "{kind: vit, patch: 2}"),
}


def trained(folder, style):
    data, model = STYLES[style]
    (folder / "text").write_text(TEXT)
    sizes = "layers: 2, d_model: 24, heads: 4, d_ff: 48, "
    (folder / f"{style}.yaml").write_text(f"""
name: {style}
data: {data}
model: {model.replace("{", "{" + sizes, 1)}
train: {{steps: 5, batch: 4, eval_batches: 1}}
""")
    headlab("run", folder / f"{style}.yaml", "--out", folder)
    return next(folder.glob(f"{style}/*"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory, translator):  # noqa: F811
    """What transformers says of every style, whole and with heads gone, by name."""
    bench_python()
    folder = tmp_path_factory.mktemp("exported")
    pairs = {}
    for style in [*STYLES, "marian"]:
        run = translator if style == "marian" else trained(folder, style)
        heads = ["cross/0:1", "encoder_self/0:0"] if style == "marian" else ["0:1,3", "1:0"]
        headlab("prune", run, "--heads", *heads, "--slice", "--batches", 1,
                "--out", folder / f"{style}_cut")
        for name, model in ((style, run), (f"{style}_cut", folder / f"{style}_cut")):
            headlab("export", model, folder / f"{name}_out")
            pairs[name] = [str(model), str(folder / f"{name}_out")]
    return compared(pairs)


def compared(pairs):
    """What transformers says of each pair of a run and a folder, by its name."""
    done = subprocess.run([*bench_python(), ROOT / "tests/transformers_peer.py", program(),
                           *sum(pairs.values(), [])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(pairs, json.loads(done.stdout)))


CLASSES = {"gpt2": "GPT2LMHeadModel", "gpt2_with_biases": "GPT2LMHeadModel",
           "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "bert": "BertForMaskedLM",
           "vit": "ViTForImageClassification", "marian": "MarianMTModel"}


@pytest.mark.parametrize("style", CLASSES)
@pytest.mark.parametrize("cut", ["", "_cut"])
def test_the_class_of_the_task_gives_the_same_logits(opened, style, cut):
    found = opened[style + cut]
    assert found["class"] == CLASSES[style]
    assert found["missing"] == [] and found["unexpected"] == []
    assert found["difference"] < 2e-5 * max(1, found["largest"])


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
        pairs[made.name] = [str(run), str(made)]
    return compared(pairs)


@pytest.mark.parametrize("name", [
    "bert_classes", "bert_scores", "bert_bare", "bert_pretraining", "bert_tied", "gpt2_tied",
    "llama_tied", "marian_tied", "marian_apart", "mistral_default", "qwen2_late", "qwen3_types"])
def test_a_model_of_transformers_says_the_same_here(imported, name):
    assert imported[name]["difference"] < 2e-5 * max(1, imported[name]["largest"])
