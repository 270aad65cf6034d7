"""Puts the page together: one HTML file with its style, scripts, data and Plotly."""

import base64
import functools
import gzip
import html as markup
import importlib.resources
import re

from ..extras import needed
from .data import as_json

SCRIPTS = ("core.js", "grid.js", "curves.js", "heads.js", "map.js", "viewer.js",
           "page.js")
HERE = importlib.resources.files(__name__.rpartition(".")[0])


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


@functools.cache
def plotly():
    """Plotly's source, compressed: a third of the bytes, and nothing to fetch."""
    source = needed("plotly.offline", "report").get_plotlyjs()
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


def size(content, chunks):
    """Bytes that the page takes as it is."""
    return len(html(content, chunks).encode())


def html(content, chunks):
    parts = {
        "title": markup.escape(content["title"]),
        "network": "'self'" if content.get("version") else "'none'",
        "style": read("page.css"),
        "script": "\n".join(read(name) for name in SCRIPTS),
        "plotly": plotly(),
        "content": as_json(content),
        "chunks": "".join(chunks.elements.values()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read("page.html"))
