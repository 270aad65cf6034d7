"""Trains small models of several kinds and hosts while what can happen to a run happens to it: killed with -9,
told to stop by three signals, its disk full. What a run is started with again until it has finished must end as
one that was left alone: weights, optimizer, metrics and log, to the bit. Exits 1 where one did not."""

import argparse
import collections
import itertools
import json
import os
import pathlib
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import same_end
from headlab_program import ROOT

STOPS = {signal.SIGKILL: {-9}, signal.SIGTERM: {143}, signal.SIGINT: {130}, signal.SIGUSR1: {75}}
EVERY = 20  # steps between checkpoints
SETTINGS = ["train.steps=160", "train.threads=1", "train.eval_every=30", "train.eval_batches=1",
            f"train.checkpoint.every={EVERY}", "model.layers=2", "model.d_model=24", "model.dropout=0.1",
            "log.every=5", "log.stats_every=15", "log.stats=[all]", "log.attention.every=35",
            "log.attention.probes=2"]
CHAR = f"data={{kind: char, path: {ROOT}/configs/data/tinyshakespeare.txt, context: 16}}"
WORDS = (f"data={{kind: words, objective: masked, path: {ROOT}/configs/data/tinyshakespeare.txt, context: 16, "
         "min_count: 20}")
HOSTS = {"decoder": [CHAR], "encoder": [WORDS], "vit": ["data={kind: digits}", "model.patch=2"], "seq2seq": []}


def heads(kind, options="", number=4):
    return [f"model.heads={number}", f"model.attention={{kind: {kind}{options}}}"]


CASES = {
    "mha": ("decoder", [*heads("mha", number=3), "train.batch=4"]),
    "mha, grouped, accumulated": ("decoder", [*heads("mha"), "model.kv_heads=2", "train.batch=4",
                                              "train.accumulate=2"]),
    "moh": ("decoder", [*heads("moh"), "train.batch=4", "train.accumulate=2"]),
    "dcmha": ("decoder", [*heads("dcmha"), "train.batch=4"]),
    "reattention": ("decoder", [*heads("reattention", ", norm: batch"), "train.batch=4"]),
    "gated, with a target": ("decoder", [*heads("gated", ", target: {heads: 5}"), "train.batch=4",
                                         "train.label_smoothing=0.1"]),
    "collaborative, masked words": ("encoder", [*heads("collaborative"), "train.batch=4"]),
    "mohsa, images": ("vit", [*heads("mohsa"), "train.batch=8"]),
    "mha, translating": ("seq2seq", [*heads("mha"), "train.max_positions=128", "train.label_smoothing=0.1"]),
}


def write_config(out, host, settings):
    path = out / f"{host}.yaml"
    path.write_text(f"name: {host}\nmodel: {{kind: {host}}}\n", encoding="utf-8")
    if host != "seq2seq":
        return [path, *HOSTS[host], *SETTINGS, *settings]
    text = (ROOT / "configs/data/tinyshakespeare.txt").read_text(encoding="utf-8").split("\n")
    lines = [line for line in text if 3 < len(line.split()) < 12][:2200]
    for name, chosen in {"train": lines[:2000], "valid": lines[2000:]}.items():
        (out / f"{name}.one").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        turned = (" ".join(reversed(line.split())) for line in chosen)
        (out / f"{name}.two").write_text("\n".join(turned) + "\n", encoding="utf-8")
    data = (f"data={{kind: lines, source: {out}/train.one, target: {out}/train.two, validation_source: "
            f"{out}/valid.one, validation_target: {out}/valid.two, min_count: 5}}")
    return [path, data, *SETTINGS, *settings]


class Disk:
    """A file system of its own that can be filled; where none can be mounted (without root), a folder that cannot."""

    def __init__(self, path, megabytes):
        self.path, self.mounted = path, False
        path.mkdir()
        if os.geteuid() == 0:
            line = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "headlab", path]
            self.mounted = subprocess.run(line, capture_output=True).returncode == 0

    def fill(self, left):
        """All but so many bytes."""
        free = shutil.disk_usage(self.path).free
        with open(self.path / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - left, 1))

    def empty(self):
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=True)


class Soak:
    def __init__(self, program, out, seed, kills_alone=False):
        self.program, self.out = program, out
        self.stops = [signal.SIGKILL] if kills_alone else list(STOPS)
        self.draws = random.Random(seed)
        self.counts = collections.Counter()
        self.failures = []
        self.disk = Disk(out / "disk", 96)
        self.fills = self.disk.mounted and not kills_alone

    def start(self, words, out):
        return subprocess.Popen([self.program, "run", *words, "--out", out], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)

    def undisturbed(self, words):
        began = time.monotonic()
        process = self.start(words, self.out / "whole")
        told = process.communicate()[1]
        if process.returncode != 0:
            raise SystemExit(f"soak: the undisturbed run failed: {told}")
        return only_run(self.out / "whole"), time.monotonic() - began

    def disturb(self, words, seconds):
        """One start and what happens to it; whether the run has finished."""
        fills = self.fills and self.draws.random() < .25
        if fills:
            self.disk.fill(self.draws.choice([0, 4096, 65536, self.draws.randrange(1 << 22)]))
        process = self.start(words, self.disk.path / "parts")
        happens = None
        if not fills or self.draws.random() < .5:
            happens = self.draws.choice(self.stops)
            process.stderr.readline()  # main has begun: before, a signal has its default action
            time.sleep(self.draws.uniform(0, seconds))
            process.send_signal(happens)
        told = process.communicate()[1]
        self.disk.empty()
        lawful = {0} | STOPS.get(happens, set()) | ({4} if fills else set())
        if process.returncode not in lawful:
            self.failures.append(f"exit {process.returncode}, expected of {sorted(lawful)}: {told[-500:]}")
        name = {0: "finished", 4: "disk full"}.get(process.returncode, happens and happens.name)
        self.counts[name or f"exit {process.returncode}"] += 1
        return process.returncode == 0

    def case(self, name):
        host, settings = CASES[name]
        words = [*write_config(self.out, host, settings), f"seed={self.draws.randrange(1 << 30)}"]
        whole, seconds = self.undisturbed(words)
        for _ in range(200):
            if self.disturb(words, seconds / 3) or self.failures:
                break
        else:
            self.failures.append(f"{name}: did not finish in 200 starts")
        if not self.failures:
            found = same_end.differences(whole, only_run(self.disk.path / "parts"))
            self.failures += [f"{name}: {text}" for text in found]
            self.counts["runs that ended alike"] += not found
        folders = [self.out / "whole", self.disk.path / "parts"]
        if self.failures:
            kept = pathlib.Path(tempfile.mkdtemp(prefix="headlab-soak-failed-"))
            for folder in folders:
                shutil.copytree(folder, kept / folder.name, symlinks=True)
            self.failures.append(f"kept in {kept}")
        for folder in folders:
            shutil.rmtree(folder)


def only_run(out):
    path, = out.glob("*/*")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=str(ROOT / "build/release/headlab"), help="the program")
    parser.add_argument("--minutes", type=float, default=30, help="how long, at least one run of every case")
    parser.add_argument("--kills", type=int, metavar="N", help="instead: kill -9 alone, until it happened so often")
    parser.add_argument("--seed", type=int, default=1, help="of when what happens")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()

    def enough(cases):
        if arguments.kills:
            return soak.counts["SIGKILL"] >= arguments.kills
        return cases >= len(CASES) and time.monotonic() - began > 60 * arguments.minutes

    with tempfile.TemporaryDirectory(prefix="headlab-soak-") as folder:
        soak = Soak(arguments.program, pathlib.Path(folder), arguments.seed, bool(arguments.kills))
        try:
            for count, name in enumerate(itertools.cycle(CASES), 1):
                soak.case(name)
                print(f"soak: {name}: {dict(soak.counts)}", file=sys.stderr, flush=True)
                if soak.failures or enough(count):
                    break
        finally:
            soak.disk.close()
    result = {"minutes": round((time.monotonic() - began) / 60, 1), "seed": arguments.seed,
              "full_disks": soak.fills, "counts": dict(soak.counts), "failures": soak.failures,
              "cpu": platform.processor() or platform.machine()}
    print(json.dumps(result) if arguments.json else
          "\n".join([f"{count:6} {name}" for name, count in soak.counts.items()] + soak.failures))
    if not soak.disk.mounted:
        print("soak: no full disks: a file system of its own needs root", file=sys.stderr)
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
