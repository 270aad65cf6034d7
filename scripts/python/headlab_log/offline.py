"""BertViz and CircuitsVis as single HTML pages that need neither network nor PyTorch."""

import base64
import gzip
import html
import importlib.util
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .exports import to_bertviz, to_circuitsvis
from .files import LogError, PathLike, pick
from .output import write_whole
from .run import Run

# Scripts come compressed, as text that has no character special to HTML: no token of a model and
# no library can end the script early, and a notebook with several views stays small.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
  body {{ background: white; color: black; font-family: sans-serif; margin: 8px; max-width: 980px }}
  p {{ color: #444; font-size: 13px }} h2, h3, h4 {{ font-size: 12px }}
</style>
</head>
<body>
<p>{caption}</p>
{body}
<script>
(async function () {{
  const packed = "{packed}";
  const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(plain).text();
  document.body.append(script);
}})();
</script>
</body>
</html>
"""
# BertViz asks require.js for two libraries, which are loaded already.
REQUIRE = """
var require = {config() {}};
function requirejs(names, start) { start(...names.map(name => ({jquery: jQuery, d3: d3})[name])); }
"""
# Its arguments: what a choice of them is called, their queries (left) and their keys (right).
BERTVIZ_PARTS = {
    "attention": ("All", "tokens", "tokens"),
    "encoder_attention": ("Encoder", "encoder_tokens", "encoder_tokens"),
    "decoder_attention": ("Decoder", "decoder_tokens", "decoder_tokens"),
    "cross_attention": ("Cross", "decoder_tokens", "encoder_tokens"),
}
HIGHEST = 800  # of a frame in a notebook, in CSS pixels; what is longer scrolls inside


class Page:
    """An HTML page that is whole in itself. A notebook shows it, in a frame of its own."""

    def __init__(self, title: str, text: str, height: int) -> None:
        self.title, self.html, self.height = title, text, height

    def __repr__(self) -> str:
        return f"<page of {self.title}>"

    def _repr_html_(self) -> str:
        # A frame keeps scripts, styles and names of one view out of the next one's.
        return (f'<iframe srcdoc="{html.escape(self.html)}" width="100%" '
                f'height="{min(self.height, HIGHEST)}" style="border: 0"></iframe>')

    def save(self, path: PathLike) -> pathlib.Path:
        """Writes the page, whole or not at all, and returns the path."""
        return write_whole(path, self.html)


def bertviz_html(source: Run | Mapping[str, Any], view: str = "head", layer: int | None = None,
                 heads: Sequence[int] | None = None, display_mode: str = "light",
                 **select: Any) -> Page:
    """BertViz' head view or model view of a run as a Page: `_repr_html_` for notebooks, `save`.

    source: an open run, of which `select` chooses as in `to_bertviz` (step, probe, site, layers,
    positions); or keyword arguments of BertViz themselves. view: `head` or `model`. layer, heads:
    what the head view shows first. display_mode: `light` or `dark`, of the model view. Pruned heads
    are empty; weights below 0 are not drawn, which the page says. LogError: not logged, or a
    package is missing.

    >>> hl.bertviz_html(run, "model", positions=8).save("model.html").name
    'model.html'
    """
    given = source if isinstance(source, Mapping) else to_bertviz(source, **select)
    layers = given.get("include_layers") or list(range(len(given[next(iter(given))])))
    parts = bertviz_parts(given, layers)
    count = len(parts[0]["attn"][0])  # heads of a layer
    parameters = {"attention": parts, "default_filter": "0", "root_div_id": "view",
                  "include_layers": layers}
    if view == "head":
        parameters |= {"layer": layers[0] if layer is None else layer, "heads": heads}
    elif view == "model":
        parameters |= {"include_heads": list(range(count)), "total_heads": count,
                       "display_mode": display_mode}
    else:
        raise LogError(f"BertViz has no view {view!r}; it has 'head' and 'model'")
    # BertViz' JavaScript without its Python, which imports PyTorch only to stack arrays: so there
    # is one way, with and without PyTorch, and what it asks for is these parameters.
    code = read("bertviz", f"{view}_view.js").replace("PYTHON_PARAMS", json.dumps(parameters))
    libraries = read("mpld3", "js/d3.v5.min.js"), read("sphinxcontrib.jquery", "jquery.js")
    caption = [described(source, select)] + [
        remark for part in parts for remark in remarks(part, layers, named=len(parts) > 1)]
    return page("BertViz", caption, bertviz_body(view, parts), [*libraries, REQUIRE, code],
                bertviz_height(view, parts))


def bertviz_parts(given, layers):
    """What BertViz makes of its arguments: for each kind of attention its maps and both texts."""
    parts = []
    for name, (title, queries, keys) in BERTVIZ_PARTS.items():
        if given.get(name) is None:
            continue
        maps = np.stack([np.asarray(given[name][layer])[0] for layer in layers])
        parts.append({"name": title, "attn": rounded(maps), "left_text": list(given[queries]),
                      "right_text": list(given[keys])})
    return parts


def bertviz_body(view, parts):
    choices = "".join(f'<option value="{index}">{part["name"]}</option>'
                      for index, part in enumerate(parts))
    layer = 'Layer: <select id="layer"></select> ' if view == "head" else ""
    which = f'Attention: <select id="filter">{choices}</select>' if len(parts) > 1 else ""
    return f'<div id="view">{layer}{which}<div id="vis"></div></div>'


def bertviz_height(view, parts):
    """Of the drawing and what is above it, in pixels, by the constants of BertViz' JavaScript."""
    rows = max(len(part[side]) for part in parts for side in ("left_text", "right_text"))
    layers, heads = len(parts[0]["attn"]), len(parts[0]["attn"][0])
    if view == "head":
        return round(rows * 22.5) + 130
    return max(round(layers * (rows * 7 * 12 / heads + 10)), rows * 18 + 55) + 150


def circuitsvis_html(source: Run | Mapping[str, Any], **select: Any) -> Page:
    """CircuitsVis' view of attention heads as a Page: `_repr_html_` for notebooks, `save`.

    source: an open run, of which `select` chooses as in `to_circuitsvis` (layer, step, probe, site,
    positions); or keyword arguments of `circuitsvis.attention.attention_heads`. Point at a head to
    see it large, at a cell for its weight. LogError: not logged, or the package is missing.

    >>> hl.circuitsvis_html(run, layer=1, positions=8).save("heads.html").name
    'heads.html'
    """
    given = source if isinstance(source, Mapping) else to_circuitsvis(source, **select)
    names = {"attention_head_names": "attentionHeadNames", "max_value": "maxValue",
             "min_value": "minValue", "mask_upper_tri": "maskUpperTri", "tokens": "tokens",
             "negative_color": "negativeColor", "positive_color": "positiveColor"}
    parameters = {names[name]: value for name, value in given.items() if name != "attention"}
    parameters["attention"] = rounded(np.asarray(given["attention"]))
    call = f'CircuitsVis.render("view", CircuitsVis.AttentionHeads, {json.dumps(parameters)});'
    return page("CircuitsVis", [described(source, select)], '<div id="view"></div>',
                [read("circuitsvis", "dist/cdn/iife.js"), call], 1200)


def described(source, select):
    """Which maps these are, as far as a reader of the page must be told."""
    if isinstance(source, Mapping):
        return ""
    sites = select.get("site", "self")
    maps = source.attention(sites if isinstance(sites, str) else sites[0])
    step, probe = (pick(maps, axis, select.get(axis, last))
                   for axis, last in (("step", None), ("probe", 0)))
    return f"{source.label}, step {step}, probe {probe}."


def remarks(part, layers, named):
    """What BertViz cannot show of these maps."""
    maps = np.asarray(part["attn"])
    which = f"{part['name']}: " if named else ""
    empty = [f"L{layers[i]}H{head}" for i, head in np.argwhere(~maps.any((2, 3)))]
    if empty:
        yield f"{which}Not there (pruned, or not logged): {', '.join(empty)}."
    if maps.min() < 0:
        yield f"{which}Weights below 0 (down to {maps.min():.2f}) are not drawn."


def rounded(maps):
    return np.round(maps.astype(np.float64), 4).tolist()


def read(package, name):
    """A file of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # its parent
        spec = None
    if spec is None:
        project = package.replace(".", "-")
        raise LogError(f"this view needs the package {project}: pip install --no-deps {project}")
    return (pathlib.Path(spec.origin).parent / name).read_text(encoding="utf-8")


def page(title, caption, body, scripts, height):
    packed = base64.b64encode(gzip.compress("\n;\n".join(scripts).encode(), mtime=0)).decode()
    text = html.escape(" ".join(filter(None, caption)))
    return Page(title, PAGE.format(title=title, caption=text, body=body, packed=packed), height)
