"""All notebooks of scripts/notebooks run on small trainings and show what they say.

Their outputs are compared with what h5py reads from the same files.
"""

import base64
import functools
import gzip
import html
import json
import re
import statistics
import subprocess

import numpy as np
import pytest

from conftest import ROOT, program
from test_notebooks import (
    NAMES, NOTEBOOKS, OF_PROGRAM, check_heads_over_training, check_pictures, check_warns_of_nothing, make_small,
    one, outputs_of, printed, run_of, value)

MAPS = ROOT / "tests/golden/maps/minilm.safetensors"
TREEBANK = """1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tdog\tdog\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsleeps\tsleep\tVERB\t_\t_\t0\troot\t_\t_

"""


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """What the notebooks look at, made small."""
    out = tmp_path_factory.mktemp("notebooks")
    treebank = tmp_path_factory.mktemp("treebank") / "two.conllu"
    treebank.write_text(TREEBANK * 2)
    done = make_small(out, "--treebank", str(treebank))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def executed(runs):
    """name -> the notebook with its outputs over `runs`, executed once."""
    import make

    @functools.cache
    def execute(name):
        if name == make.PRETRAINED and not (runs / "pretrained/minilm_cut").exists():
            pytest.skip("no published models here; scripts/data smollm2 and scripts/data minilm put them there")
        return make.execute(NOTEBOOKS[NAMES.index(name)], runs)

    return execute


@pytest.mark.parametrize("name", OF_PROGRAM)
def test_a_notebook_runs_draws_and_warns_of_nothing(name, executed):
    check_warns_of_nothing(executed(name))
    check_pictures(executed(name))


def test_heads_over_training_shows_what_the_log_holds(runs, executed):
    check_heads_over_training(executed(NAMES[0]), runs)


def test_attention_maps_show_the_probes_and_whose_weight_is_where(runs, executed):
    text = printed(executed(NAMES[1]))
    log = run_of(runs, "char_mha") / "log.h5"
    vocabulary = [token.decode() for token in value(log, "vocab/text")]
    tokens = value(log, "attention/self/key_token")
    shown = str.maketrans({" ": "␣", "\n": "⏎"})
    for probe, row in enumerate(tokens):
        assert f"\n{probe} {''.join(vocabulary[t] for t in row).translate(shown)}\n" in text
    maps = value(log, "attention/self/weights", -1) / 65534  # stored as whole numbers
    lines = re.findall(r"^(\S+)  layer (\d), head (\d): (\S+), all heads: (\S+)$", text, re.M)
    assert len(lines) == 5
    for token, layer, head, of_head, of_all in lines:
        there = np.array([vocabulary[t].translate(shown) == token for t in tokens.flat])
        there = there.reshape(tokens.shape)[:, None, None, None]  # probe, layer, head, query, key
        weight = (maps * there).sum(-1).mean((0, 3))
        assert float(of_head) == pytest.approx(weight[int(layer), int(head)], abs=0.006)
        assert float(of_all) == pytest.approx(weight.mean(), abs=0.006)


def test_bertviz_pages_are_whole_and_hold_the_tokens(runs, executed):
    pages = [html.unescape(page) for page in sum(outputs_of(executed(NAMES[1]), "text/html"), [])]
    log = run_of(runs, "char_mha") / "log.h5"
    vocabulary = [token.decode() for token in value(log, "vocab/text")]
    layers, heads = value(log, "attention/self/weights").shape[2:4]
    first = value(log, "attention/self/key_token", 0)
    assert len(pages) == 2
    for page, positions in zip(pages, (20, 12)):
        (packed,) = re.findall(r'const packed = "([^"]+)"', page)
        script = gzip.decompress(base64.b64decode(packed)).decode()
        for text in (page, script):
            assert re.findall(r"""(?:src|href)=\\?["']?(?:https?:)?//""", text) == []
        start = script.index('{"attention": [')
        (part,) = json.JSONDecoder().raw_decode(script[start:])[0]["attention"]
        assert np.shape(part["attn"]) == (layers, heads, positions, positions)
        shown = [token.replace("␣", " ").replace("⏎", "\n") for token in part["left_text"]]
        assert shown == [vocabulary[token] for token in first[:positions]]


def test_pruning_shows_every_order_and_every_head(runs, executed):
    text = printed(executed(NAMES[2]))
    run = run_of(runs, "char_mha")
    deltas = value(run / "ablation.h5", "ablation/self/loss_delta", 0)
    table = text[: text.index("rank correlation")].splitlines()[2:]
    costs = [float(line.split()[-2]) for line in table if line]
    assert costs == pytest.approx(sorted(deltas.flat), abs=6e-5)

    folder = runs / "pruned/char_mha"
    for order, names in {"ablation": ["ablation"],
                         "importance ranked anew": ["importance_ranked_anew"],
                         "random": ["random_0", "random_1", "random_2"]}.items():
        loss = [value(folder / name / "pruning.h5", "pruning/loss") for name in names]
        rise = statistics.fmean(curve[len(curve) // 2] - curve[0] for curve in loss)
        (shown,) = one(rf"^{order} +half the heads cost (\S+) nat", text)
        assert float(shown) == pytest.approx(rise, abs=6e-4)

    went = re.findall(r"^(\d:\d) +(\d+\.\d{3}) ", text, re.M)
    everyone = sorted(f"{layer}:{head}" for layer in range(2) for head in range(4))
    assert sorted(head for head, _ in went[:8]) == sorted(head for head, _ in went[8:]) == everyone
    losses = value(folder / "ablation/pruning.h5", "pruning/loss")
    assert [float(loss) for _, loss in went[:8]] == pytest.approx(list(losses[1:]), abs=6e-4)


def test_comparing_variants_shows_means_over_seeds_and_what_each_kind_has(runs, executed):
    text = printed(executed(NAMES[3]))
    for kind in ("mha", "moh", "dcmha", "collaborative", "mohsa"):
        logs = [run_of(runs, f"char_{kind}", seed) / "log.h5" for seed in (1337, 1338)]
        losses = [float(value(log, "eval/val_loss", -1)) for log in logs]
        mean, deviation, count = one(rf"^{kind} +(\S+) ± (\S+) nat, (\d) seeds", text)
        assert int(count) == 2
        assert float(mean) == pytest.approx(statistics.fmean(losses), abs=6e-4)
        assert float(deviation) == pytest.approx(statistics.stdev(losses), abs=6e-4)
    log = run_of(runs, "char_moh") / "log.h5"
    load = value(log, "heads/self/load_entropy", -1)
    shown = re.findall(r"^([01]) +(\S+) +\S+ +\S+$", text, re.M)[:2]
    assert [float(entropy) for _, entropy in shown] == pytest.approx(list(load), abs=6e-4)
    assert "same text: True" in text
    assert re.findall(r"^layer (\d): (\d) features of either neighbour", text, re.M) == [
        ("0", "1"), ("1", "2")]


def test_composed_and_plain_maps_differ_by_the_last_mixing_alone(runs):
    """What the notebook lays side by side: of one text, softmax and what was made of it."""
    run = run_of(runs, "char_dcmha")
    plain = value(run / "analysis.h5", "analysis/self/attention", 0)
    composed = value(run / "log.h5", "attention/self/weights", -1, 0)
    assert plain.sum(-1) == pytest.approx(1, abs=1e-5)
    assert np.abs(composed.sum(-1) - 1).max() > 1e-4
    assert np.corrcoef(plain.ravel(), composed.ravel())[0, 1] > 0.9  # hardly trained


def test_maps_from_elsewhere_shows_the_sentences_and_counts_the_roles(executed):
    text = printed(executed(NAMES[4]))
    said = subprocess.run([program(), "analyze", str(MAPS), "--json"], capture_output=True,
                          text=True, check=True)
    roles = json.loads(said.stdout)["roles"]
    held = {name: int(np.sum(heads)) for name, heads in roles.items() if np.sum(heads)}
    assert held["cls"] > 5 and held["previous"] == 1
    shown = re.findall(r"^(\w+) +(\d+) heads: ", text, re.M)
    assert {name: int(count) for name, count in shown} == held
    assert "\n[CLS] the quick brown fox jumps over the lazy dog . [SEP]\n" in text
    assert text.count("[CLS]") == 8 + 1  # sentences, and a share


def test_hosts_shows_what_each_site_does_and_which_heads_align(runs, executed):
    import make
    text = printed(executed(NAMES[5]))
    path = run_of(runs, "multi30k_mha") / "analysis.h5"
    for site in ("encoder_self", "decoder_self", "cross"):
        importance = value(path, f"analysis/{site}/importance_global", ...)
        found = one(rf"^{site} +sum of squares ([\d.]+), most ([\d.]+)$", text)
        assert found == (f"{(importance**2).sum():.2f}", f"{importance.max():.2f}")
    assert one(r"^(\d+) pairs of lines, (\d+) pairs of words$", text) == ("125", "36")
    words = {**make.SMALL_WORDS, ".": "."}
    known = re.findall(rf"^({'|'.join(make.SMALL_WORDS)}|\.) +(\S+) 0\.\d\d, ", text, re.M)
    assert known and all(words[word] == other for word, other in known)

    # The target is the source backwards but for the full stop, so that what aligns is known.
    source = value(path, "analysis/cross/token", ...)[:, None, None, :4]
    weights = value(path, "analysis/cross/attention", ...)[..., :4]
    looked = np.take_along_axis(source, np.nan_to_num(weights, nan=-1).argmax(-1), -1)
    share = {"read": looked[..., 1:5] == source[..., [2, 1, 0, 3]],
             "written": looked[..., :4] == source[..., [2, 1, 0, 3]]}
    for name, right in share.items():
        assert one(rf"word that is {name}: at best ([\d.]+) by", text)[0] == (
            f"{right.mean((0, 3)).max():.2f}")
    in_place = (source == source[..., [2, 1, 0, 3]]).mean()
    assert one(r"^in place: ([\d.]+), of (\d+) words in (\d+) pairs", text) == (
        f"{in_place:.2f}", "64", "16")

    path = run_of(runs, "mnist_vit_mha") / "analysis.h5"
    distances = value(path, "analysis/self/grid_distance", ...).mean(1)
    said = one(r"^distance layer by layer: ([\d. ]+) pixels; with even weights", text)[0]
    assert said == " ".join(f"{distance:.1f}" for distance in distances)


def test_pretrained_shows_the_heads_that_copy_and_those_that_parse(runs, executed):
    text = printed(executed(NAMES[6]))
    folder = runs / "pretrained"
    score = value(folder / "smollm2/analysis.h5", "analysis/self/induction_repeated", ...)
    best = np.dstack(np.unravel_index((-score).argsort(axis=None)[:8], score.shape))[0].tolist()
    assert re.findall(r"^(\d+):(\d+)  (\d\.\d\d)$", text, re.M) == [
        (str(layer), str(head), f"{score[layer, head]:.2f}") for layer, head in best]
    assert best[0] == [18, 6]
    said = (folder / "twice.txt").read_text()
    assert said in text and said[:len(said) // 2] == said[len(said) // 2 + 1:]
    whole, without = value(folder / "smollm2_induction/pruning.h5", "pruning/loss", ...)[[0, -1]]
    other = value(folder / "smollm2_random_0/pruning.h5", "pruning/loss", -1)
    assert re.findall(r" ([\d.]+)(?: nat a token| \(|$)", text[text.index("whole "):], re.M)[:3] == [
        f"{whole:.2f}", f"{without:.2f}", f"{other:.2f}"]

    path = folder / "minilm/analysis.h5"
    names = [name.decode() for name in value(path, "analysis/self/relation", ...)]
    accuracy = value(path, "analysis/self/accuracy", ...)[..., names.index("nsubj")]
    words, layer, head, found = one(r"^nsubj +(\d+) words  head (\d+):(\d+) +([\d.]+) %", text)
    assert words == "2" and found == f"{100 * accuracy.max():.1f}"
    assert accuracy[:, int(layer), int(head)].max() == accuracy.max()
    kept, parameters = (value(folder / "minilm_cut/pruning.h5", f"pruning/{name}", ...)
                        for name in ("kept", "parameters"))
    assert (f"{kept[0]:.0f} heads -> {kept[-1]:.0f}, {parameters[0]:,.0f} parameters -> "
            f"{parameters[-1]:,.0f}\n"
            in text)
