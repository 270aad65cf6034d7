"""A model that was trained here, cut and exported says the same in transformers; and what transformers assumes of
keys that config.json leaves out is what the table here says. Every style of model, and models of transformers that
are imported: tests/slow/test_transformers_all.py."""

import json
import re

import pytest

from conftest import ROOT, headlab
from transformers_testing import asked

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
CLASSES = {"gpt2": "GPT2LMHeadModel", "gpt2_with_biases": "GPT2LMHeadModel",
           "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "bert": "BertForMaskedLM",
           "vit": "ViTForImageClassification", "marian": "MarianMTModel"}


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


def exported(folder, style, run, heads):
    """A run and what was exported of it, whole and with heads gone, by name."""
    headlab("prune", run, "--heads", *heads, "--slice", "--batches", 1, "--out", folder / f"{style}_cut")
    pairs = {}
    for name, model in ((style, run), (f"{style}_cut", folder / f"{style}_cut")):
        headlab("export", model, folder / f"{name}_out")
        pairs[name] = model, folder / f"{name}_out"
    return pairs


def check_same(found, style):
    assert found["class"] == CLASSES[style]
    assert found["missing"] == [] and found["unexpected"] == []
    assert found["difference"] < 2e-5 * max(1, found["largest"])


TABLE = ROOT / "experiments/pretrained/hugging_face_defaults.cpp"
# Of no class any more, or of some classes that read them from a file all the same: what the older or
# the other ones have.
FREE = {"pruned_heads": {}, "position_embedding_type": "absolute", "rope_scaling": None,
        "partial_rotary_factor": 1.0, "layer_types": None, "sliding_window": None, "head_dim": None,
        "attention_bias": False, "mlp_bias": False, "eos_token_id": None}


def tables():
    defaults, other = (json.loads(text) for text in re.findall(r'R"\((.*?)\)"', TABLE.read_text(), re.S))
    return defaults, other


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What transformers says of one style, and of the defaults of every class; its start takes seconds."""
    folder = tmp_path_factory.mktemp("exported")
    return asked(exported(folder, "llama", trained(folder, "llama"), ["0:1,3", "1:0"]), tables()[0])


@pytest.mark.parametrize("cut", ["", "_cut"])
def test_the_class_of_the_task_gives_the_same_logits(said, cut):
    check_same(said["models"]["llama" + cut], "llama")


@pytest.mark.parametrize("name", tables()[0])
def test_every_default_is_the_library_s(said, name):
    defaults, other = tables()
    theirs = said["defaults"][name]
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
