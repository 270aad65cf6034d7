"""Puts the page together: one HTML file with its style, scripts, data and Plotly."""

import base64
import functools
import gzip
import html as markup
import importlib.resources
import json
import re

from plotly import offline

SCRIPTS = ("core.js", "grid.js", "curves.js", "heads.js", "viewer.js", "page.js")
HERE = importlib.resources.files(__name__.rpartition(".")[0])


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


@functools.cache
def plotly():
    """Plotly's source, compressed: a third of the bytes, and nothing to fetch."""
    return base64.b64encode(gzip.compress(offline.get_plotlyjs().encode(), 9, mtime=0)).decode()


def as_json(content):
    """JSON that may stand inside a script element: tokens can be anything, such as `</script>`."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def size(content, chunks):
    """Bytes that the page takes before there are maps in it; with room for their axes."""
    return len(html(content, chunks).encode()) + 50_000


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
