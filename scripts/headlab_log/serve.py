"""Serves the page of runs, which loads itself anew when their logs have grown.

    scripts/log serve RUN... [--port 8000]
"""

import argparse
import hashlib
import http.server
import pathlib
import threading
import time
from collections.abc import Sequence

from . import report
from .command import taken, told_plainly
from .files import LogError, PathLike
from .opening import find_run

FILES = ("log.h5", "status.json", "analysis*.h5", "ablation*.h5", "pruning.h5")
EVERY = 5.0  # seconds between two pages, at the least


class Pages:
    """The page of some runs and its version; made anew when it is asked for and files changed."""

    def __init__(self, runs, title=None, every=EVERY):
        self.runs = [find_run(pathlib.Path(run)) for run in runs]
        self.title, self.every = title, every
        self._lock = threading.Lock()
        self._version, self._html, self._made = None, None, -every

    def version(self):
        """What the page would say that it is, were it loaded now."""
        if self._version is not None and time.monotonic() - self._made < self.every:
            return self._version
        return self._stamp()

    def html(self):
        """The page. Raises LogError while a log cannot be read."""
        with self._lock:
            version = self.version()
            if version != self._version:
                started = time.monotonic()
                self._html = report.compose(self.runs, self.title, version=version)[0]
                self._version, self._made = version, time.monotonic()
                self.every = max(self.every, 4 * (self._made - started))  # leave time to train
            return self._html

    def _stamp(self):
        """Changes when a file of a run does."""
        seen = [(file.name, file.stat().st_mtime_ns, file.stat().st_size)
                for run in self.runs for name in FILES for file in sorted(run.glob(name))]
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def server(runs: Sequence[PathLike], port: int = 0, title: str | None = None,
           every: float = EVERY) -> http.server.ThreadingHTTPServer:
    """An http.server of the page of some runs, on 127.0.0.1 only; port 0: a free one.

    `/` is the page and `/version` its version, which the page asks for every few seconds. The page
    is made at most once in `every` seconds. Raises LogError where there is no such run, or no such
    port.
    """
    pages = Pages(runs, title, every)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            if path == "/version":
                self.answer(200, "text/plain", pages.version())
            elif path == "/":
                try:
                    self.answer(200, "text/html", pages.html())
                except LogError as error:  # of a log that is being made, or was taken away
                    self.answer(503, "text/plain", f"{error}\n")
            else:
                self.answer(404, "text/plain", "only / is here\n")

        def answer(self, status, kind, text):
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if status == 503:
                self.send_header("Refresh", "5")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Nothing: the terminal may show something else."""

    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise LogError(f"port {port}: {error.strerror}; --port 0 is a free one") from None


def serve(runs: Sequence[PathLike], port: int = 0, title: str | None = None) -> None:
    """Serves until interrupted; prints the address first."""
    with server(runs, port, title) as serving:
        print(f"http://127.0.0.1:{serving.server_port}/  (Ctrl-C ends)", flush=True)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            pass


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="serve", description=__doc__.splitlines()[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directory")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    options = parser.parse_args(arguments)
    with told_plainly("serve"):
        serve([taken("serve", run) for run in options.runs], options.port)
