"""Whether two runs ended alike: weights, optimizer, metrics and log, to the bit, but for the clock."""

import json

import h5py

CLOCK = {"wall_time", "wall_s", "tokens_per_s"}  # what no two runs have alike


def plain(value):
    return value.tobytes() if value.dtype.kind != "O" else value.tolist()


def datasets(path):
    """Name -> type, shape, attributes and bytes, of every dataset but those of the clock."""
    found = {}

    def look(name, node):
        if not isinstance(node, h5py.Dataset) or name.startswith("resumes/"):
            return
        whole = (str(node.dtype), node.shape)
        attributes = {key: str(value) for key, value in node.attrs.items()
                      if key not in ("REFERENCE_LIST", "DIMENSION_LIST")}  # places in the file
        clock = name.split("/")[-1] in CLOCK
        found[name] = (*whole, attributes) if clock else (*whole, attributes, plain(node[()]))

    with h5py.File(path) as file:
        file.visititems(look)
    return found


def rows(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def differences(one, other):
    """What two run directories do not have alike; [] where they end alike."""
    names = [f"ckpt/last/{name}.safetensors" for name in ("model", "optimizer")]
    found = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    if rows(one / "metrics.jsonl") != rows(other / "metrics.jsonl"):
        found.append("metrics.jsonl")
    logs = [datasets(run / "log.h5") for run in (one, other)]
    if list(logs[0]) != list(logs[1]):
        found.append("log.h5: other datasets")
    found += [f"log.h5: {name}" for name in logs[0] if logs[0][name] != logs[1].get(name)]
    steps = [row["step"] for row in rows(other / "metrics.jsonl")]
    if steps != sorted(set(steps)):
        found.append("metrics.jsonl: a step twice, or out of order")
    return found
