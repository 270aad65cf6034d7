"""Puts the page together: one HTML file with its style, scripts, data and Plotly."""

import ast
import base64
import functools
import gzip
import hashlib
import html as markup
import importlib.resources
import re

from ..extras import needed
from .data import as_json

# What makes a file a module: its imports, and the word before what it exports. Other forms (import
# *, as, export default) are not used.
IMPORT = re.compile(r'^import \{[^}]*\}\s+from "\./(\w+\.js)";\n', re.M)
EXPORT = re.compile(r"^export (?=(?:async )?function|const|class)", re.M)
STYLE = re.compile(r"""\.textContent=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")  # in Plotly
HERE = importlib.resources.files(__name__.rpartition(".")[0])


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


def modules(name="page.js", found=()):
    """Names of a module and of all that it imports, each after what it imports itself."""
    for other in IMPORT.findall(read(name)):
        if other not in found:
            found = modules(other, found)
    return (*found, name)


@functools.cache
def script():
    """All modules as one, in the order in which a browser would run them.

    Joined, because a page that is one file can import from none: no relative path leads out of an
    inline script, and modules as data URLs would need an import map, a wider security policy, and
    would show no line of ours in an error. So no two modules may declare the same name at their
    top, nor may they import each other in a circle; the tests see to that.
    """
    return "\n" + "\n".join(EXPORT.sub("", IMPORT.sub("", read(name))) for name in modules()) + "\n"


@functools.cache
def plotly():
    """Plotly's source, compressed, a third of the bytes, and nothing to fetch; the digests of the
    source and of the styles that it puts into a page."""
    source = needed("plotly.offline", "report").get_plotlyjs()
    packed = base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()
    styles = ["", *map(ast.literal_eval, STYLE.findall(source))]  # "": for rules that it adds later
    return packed, digest(source), " ".join(map(digest, dict.fromkeys(styles)))


def digest(text):
    """What the page's policy calls a script or a style that may run in it; no other does."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def size(content, chunks):
    """Bytes that the page takes as it is."""
    return len(html(content, chunks).encode())


def html(content, chunks):
    style, (packed, plotly_digest, plotly_styles) = "\n" + read("page.css"), plotly()
    parts = {
        "scripts": f"{digest(script())} {plotly_digest}",
        "styles": f"{digest(style)} {plotly_styles}",
        "attribute": digest(""),  # Plotly empties the one of a colour bar
        "title": markup.escape(content["title"]),
        "network": "'self'" if content.get("version") else "'none'",
        "style": style,
        "script": script(),
        "plotly": packed,
        "content": as_json(content),
        "chunks": "".join(chunks.elements.values()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read("page.html"))
