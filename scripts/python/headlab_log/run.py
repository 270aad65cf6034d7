"""A run directory: its log, config, tokens and what analyses of it found, as labelled arrays."""

import hashlib
import json
import pathlib
import platform
import re
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import xarray as xr

from .attention_map import AttentionMap
from .config import read_config
from .files import (
    LogError, PathLike, check_schema, datasets_in, groups, is_locked, open_group, open_h5, pick,
    plain, read_text, reading)
from .group_names import FILES, file_of, inside_of_file, is_result, kind_of, measure_of, named
from .measures import measured
from .program import program_name
from .text import printable, shell_word, token_texts

# What makes a group that a run lacks, by its first name.
ANALYZE = "`{program} analyze {run}` makes it"
REMEDIES = {
    "analysis": ANALYZE, "roles": ANALYZE, "ablation": "`{program} ablate {run}` makes it",
    "pruning": "`{program} prune {run} --out DIR` makes it in DIR",
    "attention": "its config asked for none (log.attention.every, log.attention.probes), or its "
                 "kind of heads has no weights over tokens",
}


def read_head(log):
    """Attributes of a log and the names of its groups."""
    with open_h5(log) as file:
        with reading(log, "/"):
            attributes = {name: plain(value) for name, value in file.attrs.items()}
        check_schema(log, attributes)
        return attributes, groups(file)


def own(file):
    """The file of a run. LogError: it is a link out of the run, and its text would be shown."""
    if file.is_symlink() and file.resolve().parent != file.parent.resolve():
        raise LogError(f"{file}: is a link to {file.resolve()}; put a copy of that file in its place")
    return file


def read_json(path):
    """The object in a file; empty where it is absent or of a run that stopped before it wrote it."""
    try:
        found = json.loads(read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _digests(manifest):
    """Of the kinds of heads in a manifest, in what went before it, and in what it was made from."""
    kinds = (manifest.get("code") or {}).get("kinds") or {}
    found = {f"{kind} {digest}" for kind, digest in kinds.items()}
    parent = manifest.get("parent")
    for other in [*manifest.get("previous", []), *([parent] if parent else [])]:
        found |= _digests(other)
    return found


class Run:
    """What `open_run` returns. Groups are read when first asked for; `refresh()` forgets them.

    Iterating names what there is: `scalars`, `heads/self`, `ablation/self`, ...; `in` asks for one,
    at a site (`"heads/cross" in run`) or at any (`"ablation" in run`). What is asked for and not
    there raises a LogError that lists what is, and says what makes it.

    >>> "heads/self" in run, "ablation" in run, "pruning" in run
    (True, True, False)
    """

    config: dict[str, Any]
    config_yaml: str
    manifest: dict[str, Any]
    status: dict[str, Any]  # status.json, which the writer keeps
    state: str  # running, finished, stopped, failed or killed

    def __init__(self, path: PathLike) -> None:
        self.path = pathlib.Path(path)
        self._groups: dict[str, xr.Dataset] = {}
        self._read_heads_of_files()

    def _read_heads_of_files(self):
        log = self.path / "log.h5"
        self._attributes, self._log_groups = {}, ()
        if log.is_file():
            self._attributes, self._log_groups = read_head(log)
        self.config_yaml = self._attributes.get("config_yaml")
        source = log if self.config_yaml else self.path / "config.yaml"
        self.config_yaml = self.config_yaml or read_text(own(source))
        self.config = read_config(source, self.config_yaml)
        self.manifest = read_json(self.path / "manifest.json")
        self.status = read_json(self.path / "status.json")
        self.state = self._state(log)

    def _state(self, log):
        said = self._attributes.get("status") or self.status.get("status", "finished")
        if said != "running" or is_locked(log) is not False:
            return said
        if log.is_file():  # it may have ended between the two looks
            said = read_head(log)[0].get("status")
            if said != "running":
                return said
        # A lock may be invisible from another machine, so only the writer's own can tell.
        elsewhere = self.status.get("host", platform.node()) != platform.node()
        return "running" if elsewhere else "killed"

    @property
    def name(self) -> str:
        """What its config calls it; of a run that prune or convert made, its directory."""
        if any(kind in self.manifest for kind in ("pruned", "converted", "tuning")):
            return self.path.resolve().name
        return str(self.config.get("name", self.path.name))

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def label(self) -> str:
        """Name, kind of heads where the name does not say it, tag, seed."""
        kind = f" ({self.kind})" if self.kind and self.kind not in self.name else ""
        tag = f" {self.config['tag']}" if self.config.get("tag") else ""
        return f"{self.name}{kind}{tag} s{self.seed}"

    @property
    def kind(self) -> str:
        """The kind of heads; several, with `+` between, where layers differ."""
        model = self.config.get("model", {})
        blocks = [model.get("attention") or {}, *(model.get("attention_at") or {}).values()]
        return "+".join(dict.fromkeys(b["kind"] for b in blocks if "kind" in b))

    @property
    def code(self) -> str:
        """Which code its kinds of heads had: 8 hexadecimal digits of the digests in the manifest.

        Those of the run itself, of the program before it was gone on with, and of the runs it was
        made from. "" where the manifest keeps none.
        """
        digests = sorted(_digests(self.manifest))
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:8] if digests else ""

    @property
    def sites(self) -> tuple[str, ...]:
        """Where the model attends: ("self",), or several in models with encoder and decoder."""
        return tuple(name.split("/")[1] for name in self._log_groups if name.startswith("heads/"))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups in the files of the run: `scalars`, `heads/self`, ..."""
        return tuple(group for name in ("log.h5", *self._result_files())
                     for group in self._groups_of(name))

    def _result_files(self):
        """Names of the files beside the log that there are, the usual measure first."""
        found = [path for path in self.path.glob("*.h5") if is_result(path)]
        return [path.name for path in sorted(found, key=lambda path: path.stem)]

    def _groups_of(self, file_name):
        """Those of one file: of the log as it was opened, of others as they are now."""
        if file_name == "log.h5":
            return self._log_groups
        file = self.path / file_name
        if not file.is_file():
            return ()
        measure = file.stem.partition("-")[2]
        with open_h5(file) as opened:
            return tuple(named(group, measure) for group in groups(opened))

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __contains__(self, name: str) -> bool:
        return any(group == name or group.startswith(f"{name}/")
                   for group in self._groups_of(file_of(name)))

    def group(self, name: str) -> xr.Dataset:
        """A group of any file of the run as a Dataset. LogError: it has no such group.

        `heads`, `analysis`, ... without a site mean the only site that there is.

        >>> run.group("heads/self").entropy.dims
        ('step', 'layer', 'head')
        """
        name = self._at_its_site(name)
        if name not in self._groups:
            if name not in self._groups_of(file_of(name)):
                raise self._lacks(name)
            lazy = name.startswith("attention/")  # the one that may not fit into memory
            self._groups[name] = open_group(self.path / file_of(name), inside_of_file(name), lazy)
        return self._groups[name]

    def _at_its_site(self, name):
        """`heads` as `heads/self` where that is the only site; a LogError where there are more."""
        there = self._groups_of(file_of(name))
        sites = [group for group in there if group.startswith(f"{name}/")]
        if name in there or not sites:
            return name
        if len(sites) > 1:
            raise LogError(f"{self.path} has {name} at {len(sites)} sites; name one of them: "
                           + ", ".join(sites))
        return sites[0]

    def _lacks(self, name):
        """The LogError of a group that is not there."""
        kind = name.split("/")[0]
        elsewhere = kind in self  # at another site, so it is not for want of a command
        said = [f"{self.path} has no {name if elsewhere else kind}",
                f"it has: {', '.join(self) or 'nothing'}"]
        if file_of(name) == "log.h5" and not (self.path / "log.h5").is_file():
            said.append(self._why_no_log())
        elif kind_of(name) in REMEDIES and not elsewhere:
            said.append(REMEDIES[kind_of(name)].format(program=program_name(), run=shell_word(self.path)))
        return LogError("; ".join(said))

    def _why_no_log(self):
        made = next((kind for kind in ("pruned", "converted") if kind in self.manifest), None)
        if made is None:
            return "it has no log.h5"
        parent = self.manifest[made].get("run")
        return (f"it has no log.h5, since it was {made} without --tune, so not trained: "
                f"`{program_name()} analyze {shell_word(self.path)}` measures its heads, for analysis()"
                + (f"; what training logged is in {parent}" if parent else ""))

    @property
    def scalars(self) -> xr.Dataset:
        """Loss, rate, gradient norm, ... of training, over `step`."""
        return self.group("scalars")

    @property
    def evaluations(self) -> xr.Dataset:
        """Loss and metrics of validation, over `step`.

        The coordinate `measured` says on what: the last evaluation covers the whole split, earlier
        ones its first batches, and the one does not compare with the others.

        >>> run.evaluations.measured.values[-1].partition(", ")[0]
        'whole split'
        """
        evaluations = self.group("eval")
        words = np.array(measured(evaluations, self.config.get("train", {}).get("eval_batches")), dtype=object)
        return evaluations.assign_coords(measured=("step", words))

    @property
    def resumes(self) -> xr.Dataset:
        """Where the run went on after an interruption."""
        return self.group("resumes")

    @property
    def pruning(self) -> xr.Dataset:
        """What `headlab prune` did, over `round`."""
        return self.group("pruning")

    def heads(self, site: str = "self") -> xr.Dataset:
        """Statistics of every head: (step, layer, head); `js` also over head2, those of experts
        over expert. NaN: no such head or expert.

        Units are in `attrs["units"]`, where there is one, the formula in `attrs["comment"]`.
        """
        return self.group(f"heads/{site}")

    @property
    def results(self) -> dict[str, str]:
        """The files of `headlab ablate` and `headlab analyze`: {name: what it was measured on}.

        `ablation` and `analysis` are of the usual measure; behind others stands what differs.
        `attrs["measured"]` of a variable says the same.

        >>> run.results["ablation"]
        'val of tinyshakespeare.txt, first 64 examples'
        """
        found = {}
        for file in self._result_files():
            if kind_of(file.removesuffix(".h5")) == "pruning":
                continue
            with open_h5(self.path / file) as opened:
                words = [data.attrs["measured"] for group in groups(opened)
                         for data in datasets_in(opened[group]).values() if "measured" in data.attrs]
            # Roles name no examples.
            found[file.removesuffix(".h5")] = max(words, key=len, default="not known on what")
        return found

    def _result(self, kind, site, of):
        """What a measure found; of: what stands behind `ablation-`; None: the usual measure, or the
        only one that there is."""
        if of:
            return self.group(f"{kind}-{of}/{site}")
        found = self.measures(kind, site)
        if "" in found or not found:
            return self.group(f"{kind}/{site}")
        if len(found) > 1:
            names = ", ".join(group.split("/")[0] for group in found.values())
            raise LogError(f"{self.path} has no {kind} of the usual measure; say which of these, by "
                           f"of= and what stands behind {kind}-: {names}")
        (only,) = found.values()
        return self.group(only)

    def measures(self, kind: str, site: str = "self") -> dict[str, str]:
        """The groups of `analysis`, `roles` or `ablation` at a site, by what they were
        measured on: the usual measure, "", first.

        >>> run.measures("ablation")
        {'': 'ablation/self'}
        """
        names = (file for file in self._result_files()
                 if file.partition(".")[0].partition("-")[0] == FILES[kind].partition(".")[0])
        return {measure_of(group).removeprefix("-"): group for file in names
                for group in self._groups_of(file)
                if kind_of(group) == kind and group.endswith(f"/{site}")}

    def analysis(self, site: str = "self", of: str | None = None) -> xr.Dataset:
        """What `headlab analyze` measured, (layer, head) and pairs.

        of: another measure than the usual one, as `results` names it without `analysis-`.
        With --maps `attention` (example, layer, head, query, key) and, of texts, the coordinates
        query_text (example, query) and key_text (example, key).
        """
        measured = self._result("analysis", site, of)
        return measured.set_coords([n for n in ("query_text", "key_text") if n in measured])

    def roles(self, site: str = "self", of: str | None = None) -> xr.Dataset:
        """Which heads have which role by `headlab analyze`, (layer, head); of: as in `analysis`."""
        return self._result("roles", site, of)

    def ablation(self, site: str = "self", of: str | None = None) -> xr.Dataset:
        """What `headlab ablate` measured, (mode, layer, head); of: another measure, as `mean`.

        >>> run.ablation().loss_delta.attrs["measured"]
        'val of tinyshakespeare.txt, first 64 examples'
        """
        return self._result("ablation", site, of)

    @property
    def vocabulary(self) -> list[str]:
        """The text of each token, by its number; empty where the data has no texts, or two
        vocabularies (/vocab_source, /vocab_target)."""
        return self._texts("vocab")

    def _texts(self, name: str) -> list[str]:
        return self.group(name)["text"].values.tolist() if name in self else []

    def attention(self, site: str = "self") -> xr.Dataset:
        """Logged maps, read when used: `weights` (step, probe, layer, head, query, key).

        NaN where a probe is padded or a head is not there. Coordinates: query_text (probe, query),
        key_text (probe, key), query_length and key_length (probe) [token]. Of models that look at
        images, texts are `class` and `row,column` of a patch, and there is `image`.

        >>> str(run.attention().key_text[0, 0].item()) == run.tokens(0)[0]
        True
        """
        name = f"attention/{site}"
        maps = self.group(name)
        if "query_text" in maps.coords:
            return maps
        for axis in ("query", "key"):
            token = maps[f"{axis}_token"].load()
            vocabulary = re.search(r"/(\w+)", token.attrs["comment"]).group(1)
            texts = token_texts(maps, token, self._texts(vocabulary))
            maps = maps.assign_coords({f"{axis}_text": (token.dims, texts)})
        maps = maps.set_coords(["query_length", "key_length"])
        for length in ("query_length", "key_length"):
            maps[length].load()
        self._groups[name] = maps
        return maps

    def tokens(self, probe: int = 0, site: str = "self", which: str = "key") -> list[str]:
        """The texts of one probe's tokens without padding; which: its `query` or `key` side.

        >>> len(run.tokens(0)) == int(run.attention().key_length[0])
        True
        """
        maps = self._maps(site)
        probe = pick(maps, "probe", probe)
        length = int(maps[f"{which}_length"].sel(probe=probe))
        return list(maps[f"{which}_text"].sel(probe=probe).values[:length])

    def image(self, probe: int = 0, site: str = "self") -> xr.DataArray | None:
        """What a model looked at, (channel, row, column) of bytes; None: its probes are texts.

        Each is scaled from 0, its least pixel, to 255, its greatest. `attrs["patch"]`: pixels a
        side of a patch.

        >>> run.image() is None  # it reads text
        True
        """
        maps = self.attention(site)
        if "image" not in maps:
            return None
        return maps.image.sel(probe=pick(maps, "probe", probe)).reset_coords(drop=True).load()

    def map(self, step: int | None = None, probe: int = 0, layer: int = 0, head: int = 0,
            site: str = "self") -> AttentionMap:
        """One attention map, (query, key), without padding, with its tokens as coordinates.

        step: of a snapshot (`run.attention().step`); None: the last. LogError: not logged. Its
        `.plot()` draws the first query on top; its `.image` is as `Run.image`.

        >>> one = run.map(layer=0, head=1)
        >>> one.dims, bool(abs(one.sum("key") - 1).max() < 1e-3)
        (('query', 'key'), True)
        """
        maps = self._maps(site)
        at = {"step": step, "probe": probe, "layer": layer, "head": head}
        one = maps.weights.sel({dim: pick(maps, dim, value) for dim, value in at.items()})
        one = one.isel(query=slice(int(one.query_length)), key=slice(int(one.key_length))).load()
        return AttentionMap.with_image(one, self.image(int(one.probe), site))

    def alive(self, site: str = "self", step: int | None = None) -> xr.DataArray:
        """Which heads there are, bool (layer, head); step: a logged one; None: the last.

        >>> bool(run.alive().all())
        True
        """
        heads = self.heads(site)
        return heads.head_mask.sel(step=pick(heads, "step", step)) == 1

    def _maps(self, site):
        maps = self.attention(site)
        if maps.sizes["step"] == 0:
            raise LogError(f"{self.path}: no map of site {site!r} is logged so far")
        return maps

    def refresh(self) -> None:
        """Reads anew what has been logged since; Datasets handed out before stay as they are."""
        self.close()
        self._read_heads_of_files()

    def close(self) -> None:
        """Lets go of the files; what is used afterwards is opened again."""
        for dataset in self._groups.values():
            dataset.close()
        self._groups = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return printable(f"<headlab run {self.label}: {self.kind}, {self.state}, {self.path}>")
