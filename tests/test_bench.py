"""`headlab bench` with Python: layers in Python's torch that take turns with ours, and the roofline. No test
asserts a time.
"""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import ROOT, headlab, log_command, program
from transformers_testing import bench_python

SHAPE = ("--shape", "2x12x16x2", "--seconds", 0.001, "--rounds", 2, "--threads", 1)
PEERS = ROOT / "scripts/bench/peers.py"
FAKE = """#!{python}
import json, sys
for line in sys.stdin:
    question = json.loads(line)
    answer = {{"begin": {{"torch": "9.9", "peers": {{"mha": ["sdpa", "flex"], "talking": ["eager"]}}}},
              "turn": {{"seconds": 0.25}}}}.get(question["do"], {{}})
    if question["do"] == "layer":
        with open({seen!r}, "a") as file:
            file.write(line)
    if question["do"] == "try" and question["layer"] == 1 and question["pass"] == "both":
        answer = {{"reason": "cannot"}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def fake(tmp_path):
    """A Python whose peers take a quarter of a second, and the file with what it was asked for."""
    path, seen = tmp_path / "python", tmp_path / "seen"
    path.write_text(FAKE.format(python=sys.executable, seen=str(seen)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path, seen


def test_peers_stand_in_the_table_with_their_ratios(fake):
    path, seen = fake
    found = json.loads(headlab("bench", "talking", *SHAPE, "--peers", "--python", path, "--json"))
    assert found["machine"]["python_torch"] == "9.9"
    rows = {(row["source"], row["kind"], row["path"]): row for row in found["shapes"][0]["rows"]}
    assert list(rows) == [("headlab", "talking", "auto"), ("python", "mha", "sdpa"), ("python", "mha", "flex"),
                          ("python", "talking", "eager")]
    sdpa, flex = rows["python", "mha", "sdpa"], rows["python", "mha", "flex"]
    assert sdpa["forward"]["ms"]["rounds"] == [250, 250]
    for ratio, ours in zip(sdpa["both"]["ratio"]["rounds"], sdpa["both"]["beside_ms"]["rounds"]):
        assert ratio == pytest.approx(250 / ours)
    assert flex["both"] == {"reason": "cannot"} and "ms" in flex["forward"]
    assert sdpa["both"]["flops"] == 3 * sdpa["forward"]["flops"] > 0 and sdpa["both"]["moved_bytes"] is None
    asked = [json.loads(line) for line in seen.read_text().splitlines()]
    assert [(one["kind"], one["peer"], one["heads"], one["causal"]) for one in asked] == [
        ("mha", "sdpa", 2, True), ("mha", "flex", 2, True), ("talking", "eager", 2, True)]
    assert not os.path.exists(asked[0]["file"])  # it goes with the program


def test_the_text_says_how_fast_a_kind_is_beside_each_of_its_peers(fake):
    text = headlab("bench", "mha", *SHAPE, "--peers", "--python", fake[0])
    assert "\nmha / Python's mha, sdpa: forward 0.0" in text and "\nPython's mha" in text
    assert "n/a: Python's mha, flex (both): cannot\n" in text
    decoding = headlab("bench", "mha", *SHAPE, "--decode", "--peers", "--python", fake[0])
    assert "(decode): measured of this program's layers alone" in decoding


def ask(questions, command):
    """The answers of scripts/bench/peers.py."""
    done = subprocess.run([*command, PEERS], input="".join(json.dumps(one) + "\n" for one in questions),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_python_without_torch_says_so():
    (answer,) = ask([{"do": "begin", "threads": 1}], [sys.executable])
    assert answer["reason"].startswith("has no torch")


def soft(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entmax(scores):
    """alpha 1.5: max(s / 2 - t, 0)^2 with sums of 1, t by bisection."""
    s = scores / 2
    low, high = s.max(-1, keepdims=True) - 1, s.max(-1, keepdims=True)
    for _ in range(60):
        middle = (low + high) / 2
        above = (np.maximum(s - middle, 0) ** 2).sum(-1, keepdims=True) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.maximum(s - low, 0) ** 2


def by_hand(kind, t, heads, causal):
    """y of a layer by the formulas, in float64."""
    q, k, v = (np.stack(np.split(t["x"] @ t[f"{name}.weight"].T, heads, -1), 1) for name in "qkv")  # [B,H,T,d]
    z = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    hidden = np.triu(np.ones(z.shape[-2:], bool), 1) if causal else np.zeros(z.shape[-2:], bool)
    if kind == "talking":
        z = np.einsum("bhts,hg->bgts", z, t["pre"])
    if kind == "sigmoid":
        a = np.where(hidden, 0, 1 / (1 + np.exp(-z) * z.shape[-1]))
    else:
        a = (entmax if kind == "entmax" else soft)(np.where(hidden, -1e9, z))
    if kind == "talking":
        a = np.einsum("bhts,hg->bgts", a, t["post"])
    return np.concatenate((a @ v).swapaxes(0, 1), -1) @ t["o.weight"].T


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """{kind: file} of layers with weights so large that maps are far from flat."""
    folder, files = tmp_path_factory.mktemp("layers"), {}
    for kind in "mha", "sigmoid", "entmax", "talking":
        draw = np.random.default_rng(1).normal
        t = {"x": draw(size=(2, 7, 12))} | {f"{name}.weight": draw(size=(12, 12)) for name in "qkvo"}
        t |= {name: draw(size=(3, 3)) for name in ("pre", "post")}
        t["y"] = by_hand(kind, t, 3, causal=True)
        files[kind] = folder / f"{kind}.safetensors"
        save_file({name: np.ascontiguousarray(value, dtype=np.float32) for name, value in t.items()}, files[kind])
    return files


def layer(number, kind, peer, file, **other):
    return {"do": "layer", "layer": number, "kind": kind, "peer": peer, "file": str(file), "heads": 3, "causal": True,
            "bf16": False, "device": "cpu"} | other


def test_python_computes_what_the_formulas_say_and_is_timed(layers):
    asked = [(kind, peer) for kind in layers for peer in (["eager", "sdpa"] if kind == "mha" else ["eager"])]
    questions = [{"do": "begin", "threads": 1}]
    for number, (kind, peer) in enumerate(asked):
        questions.append(layer(number, kind, peer, layers[kind]))
        questions += [{"do": do, "layer": number, "pass": name} | ({"seconds": 0} if do == "turn" else {})
                      for do in ("try", "turn") for name in ("forward", "both")]
        questions.append({"do": "drop", "layer": number})
    begun, *answers = ask(questions, bench_python())
    assert begun["peers"] == {"mha": ["eager", "sdpa", "compile", "flex"], "sigmoid": ["eager", "compile"],
                              "entmax": ["eager", "compile"], "talking": ["eager", "compile"]}
    for number, (kind, peer) in enumerate(asked):
        made, *tried, forward, both, dropped = answers[6 * number:6 * number + 6]
        assert (made, tried, dropped) == ({}, [{}, {}], {}), (kind, peer)
        assert forward["seconds"] > 0 and both["seconds"] > 0


def test_python_refuses_to_be_timed_with_other_numbers_and_flex_to_train_on_a_cpu(layers):
    ways = layer(0, "mha", "eager", layers["mha"], causal=False), layer(1, "mha", "flex", layers["mha"])
    _, _, _, other, flex = ask([{"do": "begin", "threads": 1}, *ways, {"do": "try", "layer": 0, "pass": "forward"},
                                {"do": "try", "layer": 1, "pass": "both"}], bench_python())
    assert other["reason"].startswith("Python computes other numbers: they differ by ")
    assert flex == {"reason": "FlexAttention cannot train on a CPU"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    path.write_text(headlab("bench", "mha", "linformer", *SHAPE, "--json"))
    return path


def test_the_roofline_has_a_point_for_each_pass_that_was_measured(measured):
    from headlab_log.roofline import read_roofline
    found, said = read_roofline(measured), json.loads(measured.read_text())
    assert (found.flops, found.bytes) == (said["peak"]["flops"], said["peak"]["bytes"])
    assert [(point.label, point.shape, point.both) for point in found.points] == [
        ("mha, auto", "2x12x16x2", False), ("mha, auto", "2x12x16x2", True)]
    figure = said["shapes"][0]["rows"][0]["both"]
    assert found.points[1].intensity == pytest.approx(figure["flops"] / figure["moved_bytes"])
    assert found.points[1].speed == pytest.approx(figure["flops"] / figure["ms"]["least"] * 1e3)


@pytest.mark.parametrize("name, begins", [("roof.png", b"\x89PNG"), ("roof.svg", b"<?xml")])
def test_the_roofline_is_drawn_and_the_same_figures_are_the_same_file(measured, tmp_path, name, begins):
    written = []
    for _ in range(2):
        done = log_command("roofline", measured, "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(tmp_path / name)
        written.append((tmp_path / name).read_bytes())
    assert written[0].startswith(begins) and written[0] == written[1]


def test_a_roofline_of_many_layers_gives_each_a_colour_of_its_own():
    from matplotlib import pyplot as plt

    from headlab_log import plots
    from headlab_log.roofline import Point, Roofline
    points = [Point(f"kind {n}", f"1x{n % 3 + 1}x8x1", n % 2 == 0, 1 + n, 1e9 * (n + 1)) for n in range(12)]
    figure = plots.roofline(Roofline(5e10, 1e10, points))
    drawn = figure.axes[0].lines
    assert len(drawn) == 13  # and the roof
    assert max(drawn[0].get_ydata()) == 50
    assert len({str(line.get_color()) for line in drawn[1:]}) == 12
    plt.close(figure)


@pytest.mark.parametrize("content, said", [
    ("no json", "is no file of "), ("[]", "is no file of "), ('{"shapes": [{}], "peak": {}}', "is no file of "),
    ('{"peak": {"flops": 1, "bytes": 1}, "shapes": []}', "no pass in it has both a time and a count of FLOPs")])
def test_what_is_no_measurement_is_not_drawn(tmp_path, content, said):
    (tmp_path / "bench.json").write_text(content)
    done = log_command("roofline", tmp_path / "bench.json", "-o", tmp_path / "roof.svg")
    assert done.returncode == 4 and said in done.stderr and not (tmp_path / "roof.svg").exists()
    assert log_command("roofline", tmp_path / "none.json", "-o", tmp_path / "roof.svg").returncode == 4
    assert log_command("roofline", tmp_path / "bench.json", "-o", tmp_path / "roof.pdf").returncode == 2


def test_bench_draws_its_roofline_beside_what_it_prints(tmp_path):
    done = subprocess.run([program(), "bench", "mha", *map(str, SHAPE), "--plot", tmp_path / "roof.svg"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nmha ") == 1 and (tmp_path / "roof.svg").read_text().startswith("<?xml")
