"""What trainings ended with, kept in a file, so that a study that takes many hours can go on elsewhere."""

import hashlib
import importlib.util
import json
import os
import pathlib
import threading

from headlab_log.output import write_whole
from headlab_program import ROOT, headlab, said
from study import manifest, origin, say

spec = importlib.util.spec_from_file_location("code_digest", ROOT / "scripts/cmake/code_digest.py")
code_digest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_digest)


def sources_of(kinds):
    """The digests of kinds of heads as their sources are now, by kind."""
    sources = code_digest.sources_in(ROOT)
    files = code_digest.kinds_of(sources)
    return {kind: code_digest.digest_of([(name, sources[name]) for name in files[kind]])
            if kind in files else "" for kind in kinds}


def still_counts(result):
    """Whether the sources of its kinds of heads and its data are what they were."""
    return sources_of(result["kinds"]) == result["kinds"] and all(
        file_digest(ROOT / name) == digest for name, digest in result["data"].items())


class Kept:
    """Results by config, resolved settings and seed. One counts while the sources of its kinds of heads and
    its data are what they were; what else of the program has changed since is told by its commit."""

    def __init__(self, path):
        self.path = path  # None: nothing is kept
        self.results = json.loads(path.read_text()) if path and path.exists() else []
        self.lock = threading.Lock()

    def settings(self, program, config, overrides):
        """A digest of the config as it resolves, wherever the project lies. What is at its default is left
        out, as a run's own hash does it: an option that the program has since learned repeats nothing."""
        text = said(program, "config", "--minimal", config, *overrides).replace(f"{ROOT}/", "")
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, settings):
        return next((one for one in self.results if one["settings"] == settings and still_counts(one)), None)

    def trained(self, arguments, config, seed, overrides, end_of):
        """What is kept of a training, which is run where it is not known yet: `end` is what end_of(run)
        says of the finished one. arguments: program, and the folder `out` of the runs."""
        file = ROOT / "configs" / f"{config}.yaml"
        overrides = [f"seed={seed}", *overrides]
        settings = self.settings(arguments.program, file, overrides)
        if found := self.find(settings):
            return found
        say(f"{config} seed {seed}")
        run = pathlib.Path(headlab(arguments.program, "run", file, *overrides, "--out", arguments.out)["run"])
        return self.add(config, seed, settings, run, end_of(run))

    def add(self, config, seed, settings, run, end):
        made, now = manifest(run), origin(run)
        result = {"config": config, "seed": seed, "settings": settings,
                  "kinds": made["code"]["kinds"], "commit": now["commit"],
                  "data": {os.path.relpath(file["path"], ROOT): file["sha256"] for file in made["data"]},
                  "date": now["date"], "machine": now["machine"], "end": end}
        with self.lock:
            self.results = [one for one in self.results
                            if (one["config"], one["seed"], one["settings"]) != (config, seed, settings)]
            self.results.append(result)
            self.results.sort(key=lambda one: (one["config"], one["seed"]))
            if self.path:
                write_whole(self.path, json.dumps(self.results, indent=1) + "\n")
        return result


def file_digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
