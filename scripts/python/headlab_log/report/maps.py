"""Attention maps for the page: packed, and chosen so that the page stays below its size."""

import numpy as np

from ..text import visible
from .data import as_json, element, identifier, thin, whole

MOST = 32.0  # above this, weights times 1000 do not fit into int16


def add(content, runs, chunks, room):
    """Puts maps of the runs into the page while they fit into `room` bytes.

    All probes at all snapshots where possible; else fewer probes, then fewer snapshots, always
    with the last. Returns sentences on what is not there.
    """
    sources = [(n, site, Source(identifier(f"m{n}-{site}"), run, site)) for n, run in enumerate(runs)
               for site in content["runs"][n]["sites"]]
    sources = [entry for entry in sources if entry[2].steps]
    if not sources:
        return []
    room -= 500 + sum(source.axes_size() for *_, source in sources)  # 500: what is said of it
    probes, steps = choose([source for *_, source in sources], room)
    for n, site, source in sources:
        kept = source.choice(probes, steps)
        chunks.elements.update(source.elements(kept))
        if kept:
            content["runs"][n]["sites"][site]["maps"] = source.content(kept)
    return left_out([source for *_, source in sources], probes, steps)


def choose(sources, room):
    """How many probes and snapshots of every source are taken."""
    most_probes = max(source.probes for source in sources)
    most_steps = max(len(source.steps) for source in sources)
    counts = [(probes, most_steps) for probes in range(most_probes, 0, -1)]
    while counts[-1][1] > 1:
        counts.append((1, int(counts[-1][1] * 0.8)))
    return next((count for count in counts if fits(sources, *count, room)), (0, 0))


def fits(sources, probes, steps, room):
    """Whether the choice takes at most `room` bytes; gives up as soon as it does not."""
    size = 0
    for source in sources:
        for _, text in source.elements(source.choice(probes, steps)):
            size += len(text)
            if size > room:
                return False
    return True


def left_out(sources, probes, steps):
    most_probes = max(source.probes for source in sources)
    most_steps = max(len(source.steps) for source in sources)
    if probes == 0:
        return ["No attention maps are shown: not even one probe at the last step fits into the "
                "page's size (--max-mb)."]
    said = []
    if probes < most_probes:
        said.append(f"{probes} of {most_probes} probes")
    if steps < most_steps:
        said.append(f"{steps} of {most_steps} snapshots")
    if not said:
        return []
    return [f"Attention maps are shown of {' and '.join(said)}, to keep the page's size "
            "(--max-mb); the log has all."]


class Source:
    """The maps of one site of one run."""

    def __init__(self, prefix, run, site):
        self.prefix, self.run, self.site = prefix, run, site
        self.maps = run.attention(site) if f"attention/{site}" in run else None
        there = self.maps is not None and self.maps.sizes["step"] > 0
        self.steps = whole(self.maps.step) if there else []
        self.probes = self.maps.sizes["probe"] if there else 0
        self.image = self.maps.image if there and "image" in self.maps else None
        self._chunks = {}

    def choice(self, probes, steps):
        """(step, probe) indices, the last snapshot first."""
        if probes == 0:
            return []
        kept = thin(len(self.steps), steps) if steps > 1 else [len(self.steps) - 1]
        return [(int(step), probe) for step in reversed(kept)
                for probe in range(min(probes, self.probes))]

    def name(self, step, probe):
        return f"{self.prefix}-{self.steps[step]}-{probe}"

    def chunk(self, step, probe):
        """The element with the maps of all heads at one snapshot and probe; made once."""
        if (step, probe) not in self._chunks:
            queries, keys = self.lengths(probe)
            weights = self.maps.weights.isel(step=step, probe=probe, query=slice(queries),
                                             key=slice(keys))
            self._chunks[step, probe] = pack(self.name(step, probe),
                                             weights.values.astype("f8"))
        return self._chunks[step, probe]

    def elements(self, kept):
        """(name, element) of the maps at these (step, probe), and of the images under them."""
        for probe in sorted({probe for _, probe in kept} if self.image is not None else ()):
            name = f"{self.prefix}-image-{probe}"
            yield name, element(name, self.image[probe].values)
        for at in kept:
            yield self.name(*at), self.chunk(*at)

    def lengths(self, probe):
        return (int(self.maps.query_length[probe]), int(self.maps.key_length[probe]))

    def axes_size(self):
        """Bytes of `content` when nothing is left out."""
        everything = self.content(self.choice(self.probes, len(self.steps)))
        return len(as_json({"maps": everything}).encode())

    def tokens(self, probe, which):
        """Texts as they are shown; of what has none, images in a log without them, positions."""
        texts = self.run.tokens(probe, self.site, which)
        if not any(texts):
            return [str(position) for position in range(len(texts))]
        return [visible(text) for text in texts]

    def content(self, kept):
        """Axes of the maps and tokens of the probes that are in the page."""
        steps = sorted({self.steps[step] for step, _ in kept})
        probes = sorted({probe for _, probe in kept})
        return {
            "prefix": self.prefix, "steps": steps, "probes": probes,
            "layers": whole(self.maps["layer"]), "heads": whole(self.maps["head"]),
            "signed": self.maps.weights.attrs.get("normalization") == "composed",
            "comment": str(self.maps.weights.attrs.get("comment", "")),
            "query": [self.tokens(probe, "query") for probe in probes],
            "key": [self.tokens(probe, "key") for probe in probes],
            "image": self.about_image(),
        }

    def about_image(self):
        """Its sizes in pixels; None: the probes are texts."""
        if self.image is None:
            return None
        channels, rows, columns = self.image.shape[1:]
        return {"channels": channels, "rows": rows, "columns": columns,
                "patch": int(self.image.attrs["patch"]),
                "ahead": int(self.image.attrs["cls_tokens"])}


def pack(name, weights):
    """Weights (layer, head, query, key) times 1000 as whole numbers; NaN is the least there is.

    Where nothing attends ahead only the triangle up to the diagonal is kept, row by row.
    """
    queries, keys = weights.shape[-2:]
    kind = np.int16 if np.nanmax(np.abs(weights), initial=0) < MOST else np.int32
    numbers = np.where(np.isfinite(weights), np.round(weights * 1000.0), np.iinfo(kind).min)
    attributes = ""
    if queries == keys and not np.nan_to_num(np.triu(weights, 1)).any():
        numbers = numbers[..., *np.tril_indices(queries)]
        attributes = " data-lower"
    return element(name, numbers.astype(kind), attributes)
