"""What the tests of the package headlab share: golden cases, small runs of the program."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("HEADLAB_SHARED", ROOT.parent / "shared"))


def golden_cases():
    """Files of layers with expected numbers: of the project, and of HEADLAB_SHARED where it is there."""
    files = {}
    for folder in (ROOT / "tests/golden", SHARED / "golden"):
        for path in sorted(folder.glob("*/*.safetensors")):
            files.setdefault(f"{path.parent.name}/{path.name}", path)
    return {name: path for name, path in files.items() if metadata(path).get("headlab_case") == "1"}


def metadata(path):
    with open(path, "rb") as file:  # some files are damaged on purpose
        size = int.from_bytes(file.read(8), "little")
        try:
            return json.loads(file.read(size) if size < 1 << 26 else b"{}").get("__metadata__", {})
        except (ValueError, AttributeError):
            return {}


def settings_of(case):
    """The config of a case as arguments of Heads."""
    config = json.loads(case["config"])
    attention = dict(config.pop("attention"))
    position = config.pop("position", {"kind": "none"})
    if position.pop("kind") == "rope":
        config["rope"] = position
    config.pop("offer", None)
    config.setdefault("causal", False)
    return {**config, **attention}


def program():
    """The program of the build that HEADLAB_BUILD_DIR names, or else the command of this Python."""
    build = os.environ.get("HEADLAB_BUILD_DIR")
    return (pathlib.Path(build) if build else pathlib.Path(sys.executable).parent) / "headlab"


def run_program(*words):
    done = subprocess.run([program(), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


SMALL = {"layers": 2, "d_model": 16, "heads": 4}
TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n" * 60
TRAIN = {"steps": 3, "batch": 4, "eval_batches": 1, "eval_every": 3, "checkpoint": {"every": 3}}


@functools.cache
def run_of(host, kind="mha", **options):
    """A run of three updates: its folder."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="headlab-package-"))
    (folder / "text.txt").write_text(TEXT)
    if host == "seq2seq":
        lines = [f"{' '.join(chr(97 + (i * k) % 20) for k in range(1, 6))}\n" for i in range(60)]
        (folder / "source.txt").write_text("".join(lines))
        (folder / "target.txt").write_text("".join(" ".join(reversed(line.split())) + "\n" for line in lines))
    if host == "labelled":
        for split, count in (("train", 64), ("validation", 32)):
            ids = torch.randint(1, 12, (count, 10), generator=torch.Generator().manual_seed(count))
            save_file({"ids": ids, "targets": ids[:, 0] % 4}, folder / f"{split}.safetensors")
    text = {"path": str(folder / "text.txt"), "context": 16}
    data = {"decoder": {"kind": "char", **text}, "encoder": {"kind": "words", "objective": "masked", "min_count": 1, **text},
            "vit": {"kind": "digits"}, "labelled": {"kind": "arrays", "path": str(folder)},
            "seq2seq": {"kind": "lines", "min_count": 1,
                        **{f"{split}{side}": str(folder / f"{side}.txt")
                           for split in ("", "validation_") for side in ("source", "target")}}}[host]
    model = {"kind": "encoder" if host == "labelled" else host, **SMALL, "attention": {"kind": kind, **options}}
    model |= {"vit": {"patch": 4}}.get(host, {})
    config = {"name": f"{host}_{kind}", "data": data, "model": model, "train": TRAIN | ({"steps": 60, "lr": 1e-2, "warmup": 0, "eval_every": 60} if host == "labelled" else {}),
              "log": {"stats_every": 0, "attention": {"every": 0}}}
    (folder / "config.yaml").write_text(json.dumps(config))
    return pathlib.Path(run_program("run", folder / "config.yaml", "--out", folder / "runs").splitlines()[0])
