"""Serves the page of runs, which loads itself anew when their logs have grown.

    scripts/log serve RUN... [--port 8000]

Whoever has the address with its token sees the page: no other user of the machine, and no page of
the web that a browser shows meanwhile.
"""

import argparse
import hashlib
import hmac
import http.cookies
import http.server
import os
import pathlib
import secrets
import threading
import time
import urllib.parse
from collections.abc import Sequence

from . import report
from .command import taken, told_plainly
from .files import LogError, PathLike, is_locked
from .group_names import is_result
from .opening import find_run, open_run
from .program import program_name
from .run import Run

HOSTS = ("127.0.0.1", "localhost", "[::1]")
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # a page's own policy cannot say this
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
EVERY = 5.0  # seconds between two pages, at the least


class Pages:
    """The page of some runs and its version; made anew when it is asked for and files changed."""

    def __init__(self, runs, title=None, every=EVERY):
        self.runs = [find_run(pathlib.Path(run)) for run in runs]
        self.title, self.every = title, every
        self._lock = threading.Lock()
        self._opened: dict[pathlib.Path, tuple[list, Run]] = {}  # each as of its stamp
        self._version, self._html, self._made = None, None, -every

    def version(self):
        """What the page would say that it is, were it loaded now."""
        if self._version is not None and time.monotonic() - self._made < self.every:
            return self._version
        return digest([stamp(run) for run in self.runs])

    def html(self):
        """The page. Raises LogError while a log cannot be read."""
        with self._lock:
            version = self.version()
            if version != self._version:
                started = time.monotonic()
                runs = [self._as_it_is(run) for run in self.runs]
                self._html = report.compose(runs, self.title, version=version)[0]
                self._version, self._made = version, time.monotonic()
                self.every = max(self.every, 4 * (self._made - started))  # leave time to train
            return self._html

    def _as_it_is(self, path):
        """The run, read anew where a file of it has changed."""
        now = stamp(path)
        if path not in self._opened or self._opened[path][0] != now:
            self._opened[path] = (now, open_run(path))
        return self._opened[path][1]


def stamp(run):
    """Changes when a file of a run does, or its writer comes or goes."""
    with os.scandir(run) as entries:
        shown = [entry for entry in entries
                 if entry.name in ("log.h5", "status.json") or is_result(pathlib.Path(entry.name))]
        seen = sorted((entry.name, entry.stat().st_mtime_ns, entry.stat().st_size)
                      for entry in shown)
    return [*seen, is_locked(run / "log.h5")]


def digest(seen):
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


class Server(http.server.ThreadingHTTPServer):
    """Serves some pages on 127.0.0.1; `address` has the token without which nothing is answered."""

    def __init__(self, port: int, pages: Pages) -> None:
        self.pages, self.token = pages, secrets.token_urlsafe(24)
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "headlab", ""
    timeout = 60  # seconds for a request to come in

    def do_GET(self):
        path, _, query = self.path.partition("?")
        given = urllib.parse.parse_qs(query).get("token", [""])[-1]
        if not self.is_for_this_machine():
            self.answer(421, "text/plain", "this server answers to 127.0.0.1 and localhost only\n")
        elif not (self.server.is_token(given) or self.server.is_token(self.cookie())):
            self.answer(403, "text/plain", "this page needs the token of its address: open the "
                        "whole address that the command has printed, with ?token=\n")
        elif path == "/version":
            self.told(lambda: ("text/plain", self.server.pages.version()))
        elif path == "/":
            self.told(lambda: ("text/html", self.server.pages.html()))
        else:
            self.answer(404, "text/plain", "only / is here\n")

    def is_for_this_machine(self):
        """Whether the Host is this server's, not a name of the web that was made to lead here."""
        hosts = self.headers.get_all("Host", [])
        port = self.server.server_port
        known = [f"{host}:{port}" for host in HOSTS] + (list(HOSTS) if port == 80 else [])
        return len(hosts) == 1 and hosts[0].strip().lower() in known

    def cookie_name(self):
        return f"headlab-{self.server.server_port}"  # cookies of a host go to all of its ports

    def cookie(self):
        try:
            found = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        except http.cookies.CookieError:
            return ""
        return found[self.cookie_name()].value if self.cookie_name() in found else ""

    def told(self, content):
        """Answers with the content, or with what keeps it from being made."""
        try:
            answer = (200, *content())
        except (LogError, OSError) as error:  # of a log that is being made, or was taken away
            answer = (503, "text/plain", f"{error}\n")
        except Exception as error:
            answer = (500, "text/plain", "the page cannot be made of what these runs hold "
                      f"({type(error).__name__}: {error}); `{program_name()} inspect RUN` says "
                      "whether a log is sound\n")
        self.answer(*answer)

    def answer(self, status, kind, text):
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status == 200:
            self.send_header("Set-Cookie", f"{self.cookie_name()}={self.server.token}; Path=/; "
                             "HttpOnly; SameSite=Strict")
        if status == 503:
            self.send_header("Refresh", "5")
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        for name, value in SAFE_HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_):
        """Nothing: the terminal may show something else, and requests hold the token."""


def server(runs: Sequence[PathLike], port: int = 0, title: str | None = None,
           every: float = EVERY) -> Server:
    """An http.server of the page of some runs, on 127.0.0.1 only; port 0: a free one.

    Its `address` is the page's, with the token that a browser then keeps as a cookie. `/version` is
    the page's version, for which the page asks every few seconds. The page is made at most once in
    `every` seconds. Raises LogError where there is no such run, or no such port.
    """
    pages = Pages(runs, title, every)
    try:
        return Server(port, pages)
    except (OSError, OverflowError) as error:
        raise LogError(f"port {port}: {getattr(error, 'strerror', None) or error}; --port 0 is a "
                       "free one") from None


def serve(runs: Sequence[PathLike], port: int = 0, title: str | None = None) -> None:
    """Serves until interrupted; prints the address first."""
    with server(runs, port, title) as serving:
        print(f"{serving.address}  (Ctrl-C ends)", flush=True)
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
