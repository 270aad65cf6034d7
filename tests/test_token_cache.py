"""Tokens of long texts: made once, kept in the cache folder, held in few bytes; whatever happens meanwhile."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest

from conftest import ROOT, program

GOLDEN = ROOT / "tests/golden"
MiB = 1 << 20
BYTES = 20_000_000


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A folder with a text of 20 MB, one of 5 MB, a short one, and a config that reads them."""
    folder = tmp_path_factory.mktemp("tokens")
    lines = (ROOT / "configs/data/tinyshakespeare.txt").read_text(encoding="utf-8").splitlines(True)
    draw, text = random.Random(1), ""
    while len(text) < BYTES:
        draw.shuffle(lines)
        text += "".join(lines)
    for name, length in {"long": BYTES, "five": 5 * MiB, "short": 500_000}.items():
        (folder / f"{name}.txt").write_text(text[:length], encoding="utf-8")
    config = {"name": "kept", "data": {"kind": "text", "path": "long.txt", "tokenizer": str(GOLDEN / "bpe"), "context": 32,
                                       "train_share": .999},
              "model": {"kind": "decoder", "layers": 1, "d_model": 8, "heads": 1},
              "train": {"steps": 2, "batch": 2, "warmup": 1, "eval_every": 2, "eval_batches": 1},
              "log": {"every": 1, "stats_every": 0, "attention": {"every": 0}}}
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def start(bench, cache, *words, command="validate", config="config.yaml", **variables):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    return subprocess.Popen([program(), command, config, *map(str, words)], cwd=bench, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process):
    """What it found, and what it said of tokens."""
    out, said = process.communicate()
    assert process.returncode == 0, said
    return json.loads(out), [line for line in said.splitlines() if "token" in line]


def validated(bench, cache, *settings, **variables):
    return ended(start(bench, cache, "--json", *settings, **variables))


def tokens_of(found):
    """About: what fills no window is left out."""
    return (found["train_examples"] + found["validation_examples"]) * 32


def files(cache):
    return sorted((cache / "headlab/tokens").iterdir())


def stamp(path):
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def wait_until(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(.002)


def half_written(cache):
    """Files under another name that have something in them."""
    return [path for path in cache.glob("headlab/tokens/.tmp-*") if path.stat().st_size > 0]


def test_the_second_command_takes_what_the_first_has_made(bench, cache):
    first, said = validated(bench, cache)
    told = [re.search(r"long.txt: 19.07 MiB of text become about ([\d,]+) tokens in about \d+s with 1 thread: "
                      rf"[\d.]+ MiB in {cache}/headlab/tokens, for later commands$", line) for line in said]
    assert len(told) == 1 and told[0], said
    kept, = files(cache)
    before = stamp(kept)
    second, said = validated(bench, cache, OMP_NUM_THREADS="2")
    assert said == [] and second == first
    assert files(cache) == [kept] and stamp(kept) == before
    tokens = (before[2] - 152) // 2  # ids of two bytes, then the trailer
    assert abs(tokens - tokens_of(first)) < 100
    assert tokens == pytest.approx(int(told[0][1].replace(",", "")), rel=.05)


def test_every_command_on_a_text_takes_the_same_tokens(bench, cache, tmp_path):
    found, said = ended(start(bench, cache, "data.path=five.txt", "--out", tmp_path / "runs", "--json", command="run"))
    assert "for later commands" in "".join(said)
    before = [(path, stamp(path)) for path in files(cache)]
    assert len(before) == 1
    for command, *words in (["eval"], ["ablate", "--batches", 1], ["ablate", "--batches", 1, "--data", "five.txt"]):
        said = ended(start(bench, cache, "--json", *words, command=command, config=found["run"]))[1]
        assert "of text become" not in "".join(said)
    assert [(path, stamp(path)) for path in files(cache)] == before


def test_another_text_and_another_tokenizer_have_files_of_their_own(bench, cache):
    five = validated(bench, cache, "data.path=five.txt")
    words = validated(bench, cache, "data.path=five.txt", f"data.tokenizer={GOLDEN / 'wordpiece'}")
    assert len(files(cache)) == 2 and five[0]["train_examples"] != words[0]["train_examples"]
    masked = validated(bench, cache, "data.path=five.txt", f"data.tokenizer={GOLDEN / 'wordpiece'}",
                       "data.objective=masked", "model.kind=encoder")
    assert len(files(cache)) == 2 and masked[1] == []
    text = (bench / "five.txt").read_text(encoding="utf-8")
    (bench / "other.txt").write_text(text[:-1] + "x", encoding="utf-8")
    validated(bench, cache, "data.path=other.txt")
    (bench / "copy.txt").write_text(text, encoding="utf-8")
    validated(bench, cache, "data.path=copy.txt")  # a text is its bytes, not its place
    assert len(files(cache)) == 3


def test_a_short_text_leaves_nothing(bench, cache):
    assert validated(bench, cache, "data.path=short.txt")[1] == []
    assert not cache.exists()


def test_the_folder_is_that_of_xdg(bench, tmp_path):
    validated(bench, tmp_path, "data.path=five.txt", XDG_CACHE_HOME=None, HOME=str(tmp_path / "home"))
    assert len(files(tmp_path / "home/.cache")) == 1
    assert (tmp_path / "home/.cache/headlab").stat().st_mode & 0o777 == 0o700
    validated(bench, "relative", "data.path=five.txt", HOME=str(tmp_path / "home"))  # is passed over
    assert not (bench / "relative").exists()
    assert len(files(tmp_path / "home/.cache")) == 1


def test_who_comes_second_waits_for_the_first(bench, cache):
    first = start(bench, cache, "--json")
    wait_until(lambda: half_written(cache), first)
    second = start(bench, cache, "--json")
    found, said = ended(first)
    other, waited = ended(second)
    assert other == found and len(said) == 1 and len(waited) == 1
    assert f"waits for process {first.pid} on" in waited[0]
    assert len(files(cache)) == 1


def test_a_killed_command_leaves_nothing_that_is_taken_for_whole(bench, cache):
    process = start(bench, cache)
    wait_until(lambda: half_written(cache), process)
    process.kill()
    process.communicate()
    assert not [path for path in files(cache) if path.suffix == ".ids"]
    (left,) = half_written(cache)
    found, said = validated(bench, cache)
    assert len(said) == 1
    assert {path.suffix for path in files(cache) if path != left} == {".ids"}
    assert validated(bench, cache) == (found, [])
    os.utime(left, (1, 1))  # nobody writes to it any more
    validated(bench, cache, "data.path=five.txt")
    assert not left.exists()


@pytest.mark.parametrize("command, code", [("validate", -signal.SIGINT), ("run", 130)])
def test_an_interrupted_command_leaves_nothing(bench, cache, tmp_path, command, code):
    out = ["--out", tmp_path / "runs"] if command == "run" else []
    process = start(bench, cache, *out, command=command)
    wait_until(lambda: half_written(cache), process)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == code, said
    assert [path.suffix for path in files(cache)] in ([], [".lock"])
    assert not (tmp_path / "runs").exists()


def reason_of(said):
    (line,) = [line for line in said if "of text become" in line][-1:]
    return re.search(r"MiB in memory, by every command anew, for they cannot be kept: (.*)", line)[1]


def test_without_a_cache_tokens_are_made_in_memory(bench, cache, tmp_path):
    with_cache = validated(bench, cache, "data.path=five.txt")[0]
    (tmp_path / "file").write_text("")
    reasons = {}
    for why, variables in {"file": {"XDG_CACHE_HOME": str(tmp_path / "file")},
                           "none": {"XDG_CACHE_HOME": None, "HOME": None},
                           "read-only": {"XDG_CACHE_HOME": "/proc/self"}}.items():
        found, said = validated(bench, cache, "data.path=five.txt", **variables)
        assert found == with_cache and len(said) == 1
        reasons[why] = reason_of(said)
    assert reasons == {"file": f"{tmp_path}/file: cannot be made: File exists",
                       "none": "neither XDG_CACHE_HOME nor HOME names a folder",
                       "read-only": "/proc/self/headlab: cannot be made: No such file or directory"}


def test_a_disk_that_is_full_half_way_is_told(bench, cache):
    """A limit on the size of files fails where a full disk does."""
    words = ["bash", "-c", 'ulimit -f 2000; exec "$@"', "bash", program(), "validate", "config.yaml", "--json"]
    done = subprocess.run(words, cwd=bench, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert reason_of(done.stderr.splitlines()).endswith("cannot be written: File too large")
    assert files(cache) == []
    assert json.loads(done.stdout) == validated(bench, cache)[0]


def test_a_broken_file_is_made_anew(bench, cache):
    found = validated(bench, cache, "data.path=five.txt")[0]
    kept, = files(cache)
    whole = kept.read_bytes()
    for broken in whole[:-1], whole[:1000] + b"\0\0" + whole[1002:], whole[-152:]:
        kept.write_bytes(broken)
        again, said = validated(bench, cache, "data.path=five.txt")
        assert again == found and len(said) == 1
        assert kept.read_bytes() == whole


def held(process):
    """The most that a command holds of its own, what is mapped left aside, and the tokens of its text."""
    most, status = 0, pathlib.Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text())
        most = max(most, int(found[1]) * 1024 if found else 0)
        time.sleep(.002)
    return most, tokens_of(ended(process)[0])


OWN = 10 * MiB  # what encoding takes, whatever the text's length


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
def test_a_token_takes_two_bytes_of_memory_or_none(bench, cache, tmp_path, tokenizer):
    def most(text, **variables):
        return held(start(bench, cache, "--json", f"data.path={text}.txt", f"data.tokenizer={GOLDEN / tokenizer}",
                          **variables))

    short = most("short")[0]
    first, tokens = most("long")
    assert first - short < OWN
    assert most("long")[0] - short < OWN / 2
    (tmp_path / "file").write_text("")
    assert tokens < most("long", XDG_CACHE_HOME=str(tmp_path / "file"))[0] - short < 2 * tokens + OWN


@pytest.mark.parametrize("kind, most", [("char", 1), ("bytes", 0), ("words", 2)])
def test_other_texts_take_no_more(bench, cache, kind, most):
    text = (bench / "config.yaml").read_text(encoding="utf-8")
    config = bench / f"{kind}.yaml"
    config.write_text(re.sub(r'"tokenizer": "[^"]*", ', "", text).replace('"text"', f'"{kind}"'), encoding="utf-8")
    short = held(start(bench, cache, "--json", "data.path=short.txt", config=config))[0]
    long, tokens = held(start(bench, cache, "--json", config=config))
    assert long - short < most * tokens + OWN


def test_what_is_wrong_with_a_long_text_is_told_with_its_place(bench, cache):
    text = (bench / "five.txt").read_bytes()
    (bench / "wrong.txt").write_bytes(text + b"\n\xff")
    process = start(bench, cache, "data.path=wrong.txt")
    said = process.communicate()[1]
    assert process.returncode == 3
    assert f"wrong.txt: byte {len(text) + 1} (0xFF) is not UTF-8" in said
    assert files(cache) == []
