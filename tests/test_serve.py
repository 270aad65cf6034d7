"""headlab_log.serve: a page that follows the run it shows."""

import http.client
import re
import shutil
import threading
import urllib.parse

import h5py
import pytest

from report_testing import SHOWN, text

from headlab_log import serve
from headlab_log.files import LogError


@pytest.fixture
def served():
    """A function that serves runs until the test ends, and returns the address."""
    running = []

    def start(*runs, every=0.5):
        serving = serve.server(runs, every=every)
        running.append(serving)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        return serving.address

    yield start
    for serving in running:
        serving.shutdown()
        serving.server_close()


def test_a_page_is_served_to_its_token_alone_and_follows_its_runs(chromium, served, small_run, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(small_run, path)
    with h5py.File(path / "log.h5", "r+") as file:
        file["scalars/step"][-1] = 19
    address = served(path)
    base, token = address.split("?token=")
    chromium.open(base)
    assert "needs the token of its address" in text(chromium, "body")
    chromium.open(f"{base}version?token={token}")
    version = text(chromium, "body")
    assert re.fullmatch("[0-9a-f]{16}", version)
    chromium.open(base + "etc/passwd")
    assert "only / is here" in text(chromium, "body")
    chromium.open(base + "#layer=1&stat=self_token")  # the browser keeps the token
    assert f'"version":"{version}"' in chromium.run("return document.documentElement.innerHTML")
    assert token not in chromium.run("return document.cookie")

    step = "return document.querySelector('#runs td[data-label=step]')?.textContent === arguments[0]"
    chromium.wait(step, "19 of 20")
    shutil.copy(small_run / "log.h5", tmp_path / "log.h5")
    (tmp_path / "log.h5").replace(path / "log.h5")  # which goes on
    chromium.wait(step, "20")
    shown = chromium.wait(SHOWN).split()
    assert shown[-2] == "1"  # the layer asked for; the head is the one least like the others
    assert chromium.run("return location.hash") == "#layer=1&stat=self_token"
    chromium.open("about:blank")


@pytest.fixture(scope="module")
def asked(small_run):
    """A function that asks a server of the small run: (status, headers, text)."""
    serving = serve.server([small_run])
    base, _, token = serving.address.partition("?token=")
    port = urllib.parse.urlsplit(base).port
    threading.Thread(target=serving.serve_forever, daemon=True).start()

    def ask(path, host="127.0.0.1:{}", cookie=None, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.putrequest(method, path.format(token=token), skip_host=True)
        for name in [host] if isinstance(host, str) else host:
            connection.putheader("Host", name.format(port))
        if cookie:
            connection.putheader("Cookie", cookie.format(port=port, token=token))
        connection.endheaders()
        answer = connection.getresponse()
        said = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, said

    yield ask
    serving.shutdown()
    serving.server_close()


@pytest.mark.parametrize("host, status", [
    ("127.0.0.1:{}", 200), ("localhost:{}", 200), ("LOCALHOST:{}", 200), ("[::1]:{}", 200),
    ("evil.example:{}", 421), ("localhost.evil.example:{}", 421), ("127.0.0.1.evil.example:{}", 421),
    ("127.0.0.1", 421), ("127.0.0.1:1", 421), ("evil.example", 421), ("", 421), ([], 421),
    (["127.0.0.1:{}", "evil.example"], 421), ("0.0.0.0:{}", 421)])
def test_only_names_of_this_machine_are_answered(asked, host, status):
    for path in ("/?token={token}", "/version?token={token}"):
        got, _, said = asked(path, host)
        assert got == status and (status == 200 or "127.0.0.1 and localhost only" in said)


@pytest.mark.parametrize("path, cookie, status", [
    ("/", None, 403), ("/version", None, 403), ("/?token=", None, 403), ("/?token=x", None, 403),
    ("/?token={token}x", None, 403), ("/?token=%C3%A9", None, 403), ("/etc/passwd", None, 403),
    ("/?other={token}", None, 403), ("/", "headlab-{port}=x", 403), ("/", "headlab-1={token}", 403),
    ("/", "=;;=\x01", 403), ("/", "headlab-{port}={token}", 200), ("/?token={token}", None, 200),
    ("/version", "a=b; headlab-{port}={token}", 200), ("/../../etc/passwd?token={token}", None, 404),
    ("/%2e%2e/log.h5?token={token}", None, 404), ("/log.h5?token={token}", None, 404),
    ("//127.0.0.1/?token={token}", None, 404)])
def test_a_token_is_asked_for_before_anything_is_said(asked, path, cookie, status):
    got, headers, said = asked(path, cookie=cookie)
    assert got == status
    if status == 403:
        assert "open the whole address that the command has printed" in said
        assert "Set-Cookie" not in headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store" and "Python" not in headers["Server"]
    if status == 200:
        assert re.fullmatch(r"headlab-\d+=[\w-]{32}; Path=/; HttpOnly; SameSite=Strict",
                            headers["Set-Cookie"])


def test_other_methods_are_refused_with_the_same_headers(asked):
    for method in ("POST", "PUT", "HEAD", "OPTIONS"):
        status, headers, _ = asked("/?token={token}", method=method)
        assert status == 501 and headers["X-Content-Type-Options"] == "nosniff"


def test_servers_have_tokens_of_their_own_and_the_command_prints_them(small_run, capsys, monkeypatch):
    monkeypatch.setattr(serve.Server, "serve_forever", lambda self: None)
    serve.serve([small_run])
    serve.serve([small_run])
    tokens = re.findall(r"^http://127\.0\.0\.1:\d+/\?token=([\w-]{32})  \(Ctrl-C ends\)$",
                        capsys.readouterr().out, re.M)
    assert len(set(tokens)) == 2


def test_a_page_that_cannot_be_made_is_told_in_words(served, small_run, tmp_path, monkeypatch):
    path = tmp_path / "run"
    shutil.copytree(small_run, path)

    def got():
        address = urllib.parse.urlsplit(served(path))
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
        connection.request("GET", f"/?{address.query}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    with h5py.File(path / "log.h5", "r+") as file:
        del file["scalars/train_loss"].attrs["DIMENSION_LIST"]
    status, said = got()
    assert status == 503 and "log.h5: /scalars/train_loss: is damaged" in said
    monkeypatch.setattr(serve.report, "compose", lambda *_, **__: {}["no such"])
    status, said = got()
    assert status == 500 and "cannot be made of what these runs hold (KeyError" in said


def test_of_several_runs_only_the_changed_ones_are_read_anew(small_run, tmp_path, monkeypatch):
    for name in ("a", "b"):
        shutil.copytree(small_run, tmp_path / name)
    pages = serve.Pages([tmp_path / "a", tmp_path / "b"], every=0)
    read = []
    opened = serve.open_run
    monkeypatch.setattr(serve, "open_run", lambda path: read.append(path.name) or opened(path))
    monkeypatch.setattr(serve.report, "compose", lambda *_, version: (f"page {version}", []))
    first = pages.html()
    assert read == ["a", "b"] and pages.html() is first
    status = tmp_path / "b/status.json"
    status.write_text(status.read_text() + "\n")
    pages.every = 0
    assert pages.html() != first and read == ["a", "b", "b"]


def test_a_server_says_what_is_wrong_before_it_serves(small_run, served):
    with pytest.raises(LogError, match="there is no such run"):
        serve.server(["nowhere"])
    port = int(re.search(r":(\d+)/", served(small_run))[1])
    with pytest.raises(LogError, match="--port"):
        serve.server([small_run], port)
