"""Opens exported folders by transformers, beside headlab on the same inputs -> JSON on stdout.

    scripts/bench/environment tests/transformers_peer.py PROGRAM '[[RUN, FOLDER], ...]' [CLASS ...]

"models": of each pair {"class", "missing", "unexpected", "difference", "largest"}: the most by which logits
(of a model without a head, states) differ where no padding is, and their largest size. "defaults": of each
class of configs what it assumes of keys that are not there.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

LENGTHS = (7, 4)  # of the examples


def tokens(vocabulary):
    return torch.randint(4, vocabulary, (len(LENGTHS), LENGTHS[0]))


def inputs_of(config):
    """Names of headlab -> (name of transformers, value)."""
    mask = torch.tensor([[1] * n + [0] * (LENGTHS[0] - n) for n in LENGTHS])
    if config.model_type == "vit":
        shape = (2, config.num_channels, config.image_size, config.image_size)
        return {"in.pixels": ("pixel_values", torch.randn(shape))}
    if config.model_type == "marian":
        ids = tokens(config.vocab_size)
        return {"in.source_ids": ("input_ids", torch.where(mask == 1, ids, config.pad_token_id)),
                "in.source_mask": ("attention_mask", mask),
                "in.decoder_ids": ("decoder_input_ids", tokens(config.decoder_vocab_size))}
    found = {"in.ids": ("input_ids", tokens(config.vocab_size))}
    if config.model_type == "bert":
        found["in.mask"] = ("attention_mask", mask)
    return found


def compare(program, run, folder):
    torch.manual_seed(5)
    name = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager")
    inputs = inputs_of(model.config)
    with torch.no_grad():
        out = model.eval()(**dict(inputs.values()))
    logits = next((name for name in ("logits", "prediction_logits") if name in out), None)
    theirs = out[logits] if logits else out.last_hidden_state
    with tempfile.TemporaryDirectory() as scratch:
        given, made = f"{scratch}/in.safetensors", f"{scratch}/out.safetensors"
        save_file({key: value.contiguous() for key, (_, value) in inputs.items()}, given)
        subprocess.run([program, "forward", run, given, "--out", made], check=True,
                       stdout=subprocess.DEVNULL)
        tensors = load_file(made)
    last = max((key for key in tensors if key.startswith("out.hidden.")),
               key=lambda key: int(key.rpartition(".")[2]), default="")
    ours = tensors["out.logits"] if logits else tensors[last]
    there = torch.ones(ours.shape[:-1], dtype=bool)
    if "in.mask" in inputs and there.dim() == 2:
        there = inputs["in.mask"][1] == 1
    return {"class": name, "missing": sorted(info["missing_keys"]),
            "unexpected": sorted(info["unexpected_keys"]),
            "difference": (ours - theirs)[there].abs().max().item(),
            "largest": theirs[there].abs().max().item()}


def defaults_of(name):
    config = transformers.AutoConfig.for_model(name)
    fields = {f.name: f.default for f in dataclasses.fields(config)
              if f.default is None or isinstance(f.default, (bool, int, float, str))}
    return {"fields": fields, "other": config.attribute_map, "labels": config.num_labels,
            "theta": (getattr(config, "rope_parameters", None) or {}).get("rope_theta")}


def main():
    program, pairs, *classes = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    print(json.dumps({"models": [compare(program, *pair) for pair in json.loads(pairs)],
                      "defaults": {name: defaults_of(name) for name in classes}}))


if __name__ == "__main__":
    main()
