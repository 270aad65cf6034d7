"""Data sets for headlab's kind of data `arrays`, from what Python programs have."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

# What the libraries of Hugging Face call them.
NAMES = {"input_ids": "ids", "token_type_ids": "segment", "pixel_values": "image", "label": "targets",
         "labels": "targets", "attention_mask": "length"}
KNOWN = ("ids", "image", "targets", "length", "segment")
SPLITS = ("train", "validation", "test")


def write_arrays(folder: str | pathlib.Path, *, vocabulary: int | None = None, classes: int | None = None,
                 **splits: Any) -> pathlib.Path:
    """Writes folder/train.safetensors, validation.safetensors and, where it is given, test.safetensors.

    write_arrays("sentences", train=train, validation=validation), each of them a mapping of names to arrays, a list of
    mappings, or a Dataset of Hugging Face `datasets`:

        ids       [N,T] integers; rows of different lengths are filled up, and their `length` is written
        image     [N,C,height,width] bytes or floats; [N,height,width] and [N,height,width,C] are turned
        targets   [N] or [N,T] integers, or [N] or [N,k] floats, which are numbers to be predicted
        length    [N] integers;  segment [N,T] integers

    Also under the names input_ids, attention_mask, token_type_ids, pixel_values, label and labels. `vocabulary` and
    `classes`: how many ids and classes there are; where they are not given, the largest of training, plus one.

    Returns the folder. ValueError says what does not fit; then nothing is written.

    >>> train = {"ids": [[1, 2], [3, 1], [2, 2]], "targets": [0, 1, 0]}
    >>> sorted(file.name for file in hl.write_arrays("sentences", train=train, validation=train).iterdir())
    ['train.safetensors', 'validation.safetensors']
    """
    from safetensors.numpy import save_file
    if unknown := sorted(splits.keys() - set(SPLITS)):
        raise ValueError(f"no split is called {unknown[0]}: they are {', '.join(SPLITS)}")
    if missing := [name for name in SPLITS[:2] if name not in splits]:
        raise ValueError(f"{missing[0]} is missing: training and validation are needed")
    metadata = {name: str(int(count)) for name, count in (("vocabulary", vocabulary), ("classes", classes))
                if count is not None}
    arrays = {split: _arrays(split, data) for split, data in splits.items()}
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split, named in arrays.items():
        unfinished = folder / f".{split}.safetensors"
        save_file(named, unfinished, metadata or None)
        unfinished.replace(folder / f"{split}.safetensors")
    return folder


def _columns(data):
    """A mapping of names to arrays or lists."""
    if isinstance(data, Mapping):
        return dict(data)
    if hasattr(data, "column_names"):  # of Hugging Face datasets
        return {name: data[name] for name in data.column_names}
    examples = list(data)
    if not examples or not all(isinstance(example, Mapping) for example in examples):
        raise ValueError("must be a mapping of arrays, a list of mappings or a Dataset")
    return {name: [example[name] for example in examples] for name in examples[0]}


def _arrays(split, data):
    try:
        found = {NAMES.get(name, name): values for name, values in _columns(data).items()}
        named, masks = {}, "attention_mask" in _columns(data)
        if "ids" in found:
            named["ids"], length = _rows(found["ids"])
            if length is not None:
                named["length"] = length
        if "image" in found:
            named["image"] = _images(found["image"])
        if "targets" in found:
            named["targets"] = _targets(found["targets"], named.get("ids"))
        if "segment" in found:
            named["segment"] = _rows(found["segment"])[0]
        if "length" in found:
            rows = _rows(found["length"])[0] if masks else np.asarray(found["length"])
            named["length"] = rows.sum(axis=1) if masks else rows
    except (TypeError, ValueError) as error:
        raise ValueError(f"{split}: {error}") from None
    if ("ids" in named) == ("image" in named) or "targets" not in named:
        raise ValueError(f"{split}: has {', '.join(sorted(found))}; must have ids or image, and targets")
    if len({len(array) for array in named.values()}) != 1:
        sizes = ", ".join(f"{name} {len(array)}" for name, array in named.items())
        raise ValueError(f"{split}: the numbers of examples differ: {sizes}")
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def _whole(array):
    if array.dtype.kind not in "iub":
        raise ValueError(f"{array.dtype} are no whole numbers")
    return array.astype(np.int64)


def _rows(values):
    """[N,T], and the lengths of rows that were filled up."""
    lengths = [len(row) for row in values]
    if len(set(lengths)) <= 1:
        return _whole(np.asarray(values)), None
    rows = np.zeros((len(lengths), max(lengths)), np.int64)
    for row, own in zip(rows, values):
        row[:len(own)] = _whole(np.asarray(own))
    return rows, np.asarray(lengths)


def _images(values):
    images = np.stack([np.asarray(image) for image in values])
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[-1] in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4:
        raise ValueError(f"images are {list(images.shape)}; must be [N,C,height,width]")
    return images if images.dtype == np.uint8 else images.astype(np.float32)


def _targets(values, ids):
    if len(values) and np.ndim(values[0]) == 1 and len({len(row) for row in values}) > 1:
        targets = np.full((len(values), max(len(row) for row in values)), -100, np.int64)
        for row, own in zip(targets, values):
            row[:len(own)] = _whole(np.asarray(own))
        return targets
    targets = np.asarray(values)
    if targets.dtype.kind == "f":
        return targets.astype(np.float32)
    return _whole(targets)
