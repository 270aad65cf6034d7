"""Writes minilm.safetensors: attention maps of a pretrained encoder, for `headlab analyze`.

    HEADLAB_SHARED=FOLDER python make_minilm.py

FOLDER/golden/models holds minilm_forward.safetensors, the maps as transformers printed them, and
wordpiece/vocab.txt, the encoder's vocabulary. Needs NumPy.
"""

import json
import os
import pathlib
import struct

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TYPES = {"F16": np.float16, "F32": np.float32, "I64": np.int64, "U8": np.uint8}
CLASSES = {"[CLS]": 1, "[SEP]": 2, ".": 3, ",": 3}  # anything else: 0, a word


def read(path):
    """Tensors by name, and the metadata, of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def write(path, tensors, metadata):
    names = {np.dtype(kind): name for name, kind in TYPES.items()}
    header, at = {"__metadata__": metadata}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": names[values.dtype], "shape": values.shape,
                        "data_offsets": [at, at + values.nbytes]}  # fmt: skip
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(np.ascontiguousarray(values).tobytes() for values in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    models = pathlib.Path(os.environ["HEADLAB_SHARED"]) / "golden/models"
    found, about = read(models / "minilm_forward.safetensors")
    vocabulary = (models / "wordpiece/vocab.txt").read_text(encoding="utf-8").splitlines()
    ids, length = found["in.ids"], found["in.mask"].sum(1, dtype=np.int64)
    texts = [[vocabulary[i] for i in row[:n]] for row, n in zip(ids, length)]
    classes = [[CLASSES.get(vocabulary[i], 0) for i in row] for row in ids]
    tensors = {
        "in.attention": found["out.attention.f16"].swapaxes(0, 1),  # layer first
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
    write(HERE / "minilm.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
