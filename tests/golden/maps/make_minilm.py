"""Writes minilm.safetensors: attention maps of a pretrained encoder, for `headlab analyze`.

    HEADLAB_SHARED=FOLDER python make_minilm.py

FOLDER/golden/models holds minilm_forward.safetensors, the maps as transformers printed them, and
wordpiece/vocab.txt, the encoder's vocabulary. Needs NumPy and safetensors.
"""

import json
import os
import pathlib

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = {"[CLS]": 1, "[SEP]": 2, ".": 3, ",": 3}  # anything else: 0, a word


def read(path):
    """Tensors by name, and the metadata, of a safetensors file."""
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def main():
    models = pathlib.Path(os.environ["HEADLAB_SHARED"]) / "golden/models"
    found, about = read(models / "minilm_forward.safetensors")
    vocabulary = (models / "wordpiece/vocab.txt").read_text(encoding="utf-8").splitlines()
    ids, length = found["in.ids"], found["in.mask"].sum(1, dtype=np.int64)
    texts = [[vocabulary[i] for i in row[:n]] for row, n in zip(ids, length)]
    classes = [[CLASSES.get(vocabulary[i], 0) for i in row] for row in ids]
    tensors = {
        "in.attention": np.ascontiguousarray(found["out.attention.f16"].swapaxes(0, 1)),  # layer first
        "in.length": length,
        "in.tokens": ids,
        "in.class": np.array(classes, np.uint8),
        "in.frequency_rank": ids,  # the vocabulary lists words by falling frequency
    }
    metadata = {
        "causal": "false",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "source": about["source"],
        "sentences": about["sentences"],
        "tokens": json.dumps(texts, ensure_ascii=False),
    }
    save_file(tensors, HERE / "minilm.safetensors", metadata)


if __name__ == "__main__":
    main()
