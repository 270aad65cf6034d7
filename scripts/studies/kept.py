"""What trainings ended with, kept in a file, so that a study that takes many hours can go on elsewhere."""

import datetime
import hashlib
import importlib.util
import json
import os
import pathlib
import threading

from headlab_program import ROOT, said
from study import machine

spec = importlib.util.spec_from_file_location("code_digest", ROOT / "scripts/cmake/code_digest.py")
code_digest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_digest)


def sources_of(kinds):
    """The digests of kinds of heads as their sources are now, by kind."""
    files = {kind: ROOT / "variants" / f"{kind}.cpp" for kind in kinds}
    return {kind: code_digest.digest_of([(f"variants/{kind}.cpp", file)]) if file.exists() else ""
            for kind, file in files.items()}


class Kept:
    """Results by config, resolved settings and seed. One counts while the sources of its kinds of heads and
    its data are what they were; what else of the program has changed since is told by its commit."""

    def __init__(self, path):
        self.path = path  # None: nothing is kept
        self.results = json.loads(path.read_text()) if path and path.exists() else []
        self.lock = threading.Lock()

    def settings(self, program, config, overrides):
        """A digest of the config as it resolves, wherever the project lies."""
        text = said(program, "config", config, *overrides).replace(f"{ROOT}/", "")
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, settings):
        return next((one for one in self.results if one["settings"] == settings
                     and sources_of(one["kinds"]) == one["kinds"] and all(
                         file_digest(ROOT / name) == digest for name, digest in one["data"].items())),
                    None)

    def add(self, config, seed, settings, run, end):
        manifest = json.loads((pathlib.Path(run) / "manifest.json").read_text())
        result = {"config": config, "seed": seed, "settings": settings,
                  "kinds": manifest["code"]["kinds"], "commit": manifest["git"]["commit"],
                  "data": {os.path.relpath(file["path"], ROOT): file["sha256"]
                           for file in manifest["data"]},
                  "date": str(datetime.date.today()), "machine": machine(), "end": end}
        with self.lock:
            self.results = [one for one in self.results
                            if (one["config"], one["seed"], one["settings"]) != (config, seed, settings)]
            self.results.append(result)
            self.results.sort(key=lambda one: (one["config"], one["seed"]))
            if self.path:
                part = self.path.with_suffix(".part")
                part.write_text(json.dumps(self.results, indent=1) + "\n")
                part.replace(self.path)
        return result


def file_digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
