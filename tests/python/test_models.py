"""headlab.load(): the models of runs give the program's own numbers."""

import copy
import json
import pickle
import shutil

import pytest
import torch
from package_testing import run_of, run_program
from safetensors.torch import load_file, save_file
from torch import nn

import headlab

CAUSAL = [kind for kind in headlab.kinds() if headlab.describe(kind).promises["causal"]]
OPTIONS = {"bigbird": {"block": 4}}


def inputs_of(host, shape):
    ids = torch.randint(1, shape["vocabulary"] or 2, (3, 9))
    if host == "vit":
        return {"pixels": torch.rand(3, shape["channels"], shape["height"], shape["width"])}
    if host == "seq2seq":
        return {"source_ids": torch.randint(4, shape["source_vocabulary"], (3, 5)), "decoder_ids": ids[:, :4].contiguous()}
    return {"ids": ids}


def both(host, run, tmp_path):
    """Logits of headlab.load() and those of `headlab forward`."""
    model = headlab.load(run)
    inputs = inputs_of(host, json.loads((run / "data.json").read_text())["shape"])
    save_file({f"in.{name}": tensor for name, tensor in inputs.items()}, tmp_path / "in.safetensors")
    run_program("forward", run, tmp_path / "in.safetensors", "--out", tmp_path / "out.safetensors", "--threads", 1)
    return model, inputs, model(**inputs).detach(), load_file(tmp_path / "out.safetensors")["out.logits"]


@pytest.mark.parametrize("host", ["encoder", "vit", "seq2seq"])
def test_logits_of_every_host_are_the_programs(host, tmp_path):
    _, _, got, want = both(host, run_of(host), tmp_path)
    assert torch.equal(got, want)


@pytest.mark.parametrize("kind", CAUSAL)
def test_logits_of_every_kind_are_the_programs(kind, tmp_path):
    _, _, got, want = both("decoder", run_of("decoder", kind, **OPTIONS.get(kind, {})), tmp_path)
    assert torch.equal(got, want)


def test_a_hook_that_silences_a_head_is_its_ablation(tmp_path):
    run = run_of("labelled")
    model = headlab.load(run)
    ablated = json.loads(run_program("ablate", run, "--batches", 0, "--json", "--out",
                                     tmp_path / "ablation.h5"))
    data = load_file(run.parents[2] / "validation.safetensors")

    def loss():
        with torch.no_grad():
            return nn.functional.cross_entropy(model(data["ids"]), data["targets"]).item()

    assert loss() == pytest.approx(ablated["loss"], abs=1e-6)

    change, (layer, head) = max((abs(change), divmod(n, 4)) for n, change in enumerate(ablated["loss_delta"]))
    change = ablated["loss_delta"][4 * layer + head]
    assert ablated["removed"][4 * layer + head] == f"{layer}:{head}"
    there = torch.ones(1, 4, 1, 1)
    there[:, head] = 0
    model.heads[layer].output_hook = lambda outputs: outputs * there
    assert abs(change) > 1e-4 and loss() == pytest.approx(ablated["loss"] + change, abs=1e-6)
    model.heads[layer].output_hook = None
    model.heads("self")[layer].mask([head])
    assert loss() == pytest.approx(ablated["loss"] + change, abs=1e-6)


def test_a_run_goes_on_in_python():
    model, ids = headlab.load(run_of("decoder", "moh")), torch.randint(1, 20, (4, 16))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = last = None
    for _ in range(20):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        last = loss.item()
        first = first or last
        (loss + sum(model.aux.values())).backward()
        optimizer.step()
        optimizer.zero_grad()
        headlab.after_step(model)
    assert last < first - .5 and "balance" in model.aux


def test_text_is_continued_with_a_cache():
    model = headlab.load(run_of("decoder"))
    ids = torch.randint(1, 20, (2, 3))
    written = model.generate(ids, 30, temperature=0)
    assert written.shape == (2, 33) and torch.equal(written[:, :3], ids)
    slow = ids
    for _ in range(model.context - 3):
        slow = torch.cat([slow, model(slow)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(written[:, :model.context], slow)
    assert model.generate(ids, 5, top_k=1).equal(written[:, :8])
    with pytest.raises(RuntimeError, match="does not write text"):
        headlab.load(run_of("vit")).generate(ids, 1)


@pytest.mark.parametrize("host, name", [("decoder", "GPT2LMHeadModel"), ("encoder", "BertForMaskedLM"),
                                        ("vit", "ViTForImageClassification"), ("seq2seq", "MarianMTModel")])
def test_a_run_becomes_a_model_of_transformers(host, name):
    pytest.importorskip("transformers")
    model = headlab.load(run_of(host))
    with torch.no_grad():
        for p in model.parameters():  # weights of now, not those of the run
            p.mul_(1.5)
    other = model.to_hugging_face()
    assert type(other).__name__ == name and not other.training
    ids = torch.randint(1, 9, (2, 9))
    own, theirs = {"vit": ({"pixels": torch.rand(2, 1, 8, 8)}, ["pixel_values"]),
                   "seq2seq": ({"source_ids": ids, "decoder_ids": ids}, ["input_ids", "decoder_input_ids"])}.get(
                       host, ({"ids": ids}, ["input_ids"]))
    torch.testing.assert_close(other(**dict(zip(theirs, own.values()))).logits, model(**own), rtol=1e-5, atol=1e-5)


def test_what_transformers_has_no_place_for_is_named():
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="moh"):
        headlab.load(run_of("decoder", "moh")).to_hugging_face()


def test_sites_statistics_and_maps():
    model = headlab.load(run_of("seq2seq"))
    shape = {"vocabulary": 20, "source_vocabulary": 20}
    out = model.output(**inputs_of("seq2seq", shape), statistics=True, maps=True, hidden=True)
    assert set(model.heads.sites) == {"encoder_self", "decoder_self", "cross"}
    assert out["attention"]["cross", 1].shape == (3, 4, 4, 5)
    assert out["statistics"]["cross", 0]["entropy"].shape == (4,)
    with pytest.raises(ValueError, match="which site"):
        model.heads[0]
    with pytest.raises(ValueError, match="no site 'corss'"):
        model.heads("corss")
    assert model.heads("cross")[1].kind == "mha" and len(model.heads("cross")) == 2


def test_copies_and_pruned_runs(tmp_path):
    run = run_of("decoder")
    run_program("prune", run, "--heads", "0:1", "1:3", "--out", tmp_path / "pruned")
    for path in (run, tmp_path / "pruned"):
        model, ids = headlab.load(path), torch.randint(1, 20, (2, 7))
        want = model(ids)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(want, other(ids)) and not other.training
    pruned = headlab.load(tmp_path / "pruned").heads[0]
    assert [head for head in pruned.head_ids if pruned.alive[head]] == [0, 2, 3]


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run here"):
        headlab.load(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(run_of("decoder"), run, symlinks=True)
    model = headlab.load(run)
    with pytest.raises(RuntimeError, match="in.ids"):
        model(pixels=torch.rand(1, 1, 8, 8))
    with pytest.raises(RuntimeError, match="context is 16"):
        model(torch.ones(1, 17, dtype=torch.long))
    with pytest.raises(RuntimeError, match="must lie in 0"):
        model(torch.full((1, 3), 999))
    (run / "data.json").unlink()
    with pytest.raises(RuntimeError, match="data.json is missing"):
        headlab.load(run)
