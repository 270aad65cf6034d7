"""Writes small models of transformers, as their users keep them.

    scripts/bench/environment tests/transformers_maker.py FOLDER    # a folder a model in it
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_model

TEXT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24}
ROPE = {**TEXT, "max_position_embeddings": 32, "num_key_value_heads": 1}
BERT = {**TEXT, "max_position_embeddings": 32}
MARIAN = {"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
          "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
          "decoder_ffn_dim": 24, "pad_token_id": 39, "decoder_start_token_id": 39, "eos_token_id": 0,
          "max_position_embeddings": 32}
SLIDES = {"use_sliding_window": True, "sliding_window": 3}
MODELS = {  # class and settings; tied: by save_model; without: keys that config.json lacks
    "bert_classes": ("BertForSequenceClassification", BERT | {"num_labels": 3}, {}),
    "bert_scores": ("BertForSequenceClassification", BERT | {"num_labels": 1}, {}),
    "bert_bare": ("BertModel", BERT, {}),
    "bert_pretraining": ("BertForPreTraining", BERT, {}),
    "bert_tied": ("BertForMaskedLM", BERT, {"tied": True}),
    "gpt2_tied": ("GPT2LMHeadModel", {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2,
                                      "n_positions": 32, "eos_token_id": 0, "bos_token_id": 0},
                  {"tied": True, "without": ["activation_function", "layer_norm_epsilon"]}),
    "llama_tied": ("LlamaForCausalLM", ROPE | {"tie_word_embeddings": True},
                   {"tied": True, "without": ["rms_norm_eps", "rope_parameters"]}),
    "marian_tied": ("MarianMTModel", MARIAN, {"tied": True, "without": ["activation_function"]}),
    "marian_apart": ("MarianMTModel", MARIAN | {"share_encoder_decoder_embeddings": False,
                                                "decoder_vocab_size": 40}, {"tied": True}),
    "mistral_default": ("MistralForCausalLM", ROPE, {"without": ["sliding_window", "hidden_act"]}),
    "qwen2_late": ("Qwen2ForCausalLM", ROPE | SLIDES | {"num_hidden_layers": 30},
                   {"without": ["max_window_layers", "layer_types"]}),
    "qwen3_types": ("Qwen3ForCausalLM",
                    ROPE | SLIDES | {"head_dim": 8,
                                     "layer_types": ["sliding_attention", "full_attention"]}, {}),
}


def write(folder, name, settings, tied=False, without=()):
    made = getattr(transformers, name)
    model = made(made.config_class(**settings))
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:  # waves, which are computed
            torch.nn.init.normal_(parameter, std=0.3)
    model.tie_weights()
    model.save_pretrained(folder)
    if tied:
        save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key not in without}))


def main():
    torch.manual_seed(3)
    transformers.logging.set_verbosity_error()
    for name, (made, settings, how) in MODELS.items():
        write(pathlib.Path(sys.argv[1]) / name, made, settings, **how)


if __name__ == "__main__":
    main()
