"""headlab.watch: the statistics of heads that a training logs are those of the weights its model attends with."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from heads_by_hand import ByHand, weights_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import headlab

pytest.importorskip("h5py")
transformers = pytest.importorskip("transformers")

T, B = 7, 3  # seven rows: all of them are sampled for js
ROWS = torch.ones(B, T, dtype=torch.bool)
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def no_warnings_of_torch(recwarn):
    torch._dynamo.reset()


def same(got, want, names=None):
    """Each statistic of every head; NaN where there is none."""
    compared = 0
    for name in names or want:
        assert name in got, name
        np.testing.assert_allclose(got[name], want[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        compared += 1
    assert compared >= 6


def tiny(name, attention="sdpa", **more):
    torch.manual_seed(3)
    common = dict(vocab_size=50, attn_implementation=attention)
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=32, attn_pdrop=0, resid_pdrop=0,
                                         embd_pdrop=0, initializer_range=0.5, **common, **more)
        return transformers.GPT2LMHeadModel(config)
    if name == "llama":
        config = transformers.LlamaConfig(hidden_size=32, intermediate_size=40, num_hidden_layers=2,
                                          num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                                          initializer_range=0.5, **common, **more)
        return transformers.LlamaForCausalLM(config)
    if name == "bert":
        config = transformers.BertConfig(hidden_size=24, intermediate_size=32, num_hidden_layers=2,
                                         num_attention_heads=3, max_position_embeddings=32, hidden_dropout_prob=0,
                                         attention_probs_dropout_prob=0, initializer_range=0.5, **common, **more)
        return transformers.BertForMaskedLM(config)
    config = transformers.ViTConfig(hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=3,
                                    image_size=6, patch_size=3, num_channels=1, hidden_dropout_prob=0,
                                    attention_probs_dropout_prob=0, initializer_range=0.5,
                                    attn_implementation=attention, **more)
    return transformers.ViTForImageClassification(config)


def batch_of(name, padding=None):
    if name == "vit":
        return {"pixel_values": torch.randn(B, 1, 6, 6)}
    batch = {"input_ids": torch.randint(0, 50, (B, T))}
    if padding:
        there = ROWS.clone()
        for b, n in enumerate((0, 2, 4)):
            if n:
                there[b, (slice(T - n, T) if padding == "right" else slice(0, n))] = False
        batch["attention_mask"] = there.long()
    return batch


def steps(model, *batches, path, log=None, **options):
    """One update of all batches; the watch that saw them, ended."""
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    model.train()
    with headlab.watch(model, path, statistics="all", **options) as w:
        for batch in batches:
            loss_of(model(**batch) if isinstance(batch, dict) else model(batch)).backward()
        optimizer.step()
        if log:
            w.log(**log)
    return w


def loss_of(out):
    out = getattr(out, "logits", out)
    return (out if isinstance(out, torch.Tensor) else out[0]).square().mean()


def by_maps(model, batches, causal):
    """By output_attentions of the same weights: [{name: values}] by layer."""
    reference = copy.deepcopy(model).eval()
    reference.set_attn_implementation("eager")
    layers = None
    for batch in batches:
        with torch.no_grad():
            maps = reference(**batch, output_attentions=True).attentions
        layers = layers or [ByHand(maps[0].shape[1], causal) for _ in maps]
        n = maps[0].shape[-1]
        rows = batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones(B, n, dtype=torch.bool)
        allowed = rows[:, None, None, :].expand(len(rows), 1, n, n)
        if causal:
            allowed = allowed & torch.ones(n, n, dtype=torch.bool).tril()
        for layer, a in zip(layers, maps):
            layer.add(a, allowed, rows, rows)
    return [layer.values() for layer in layers]


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_the_statistics_are_those_of_the_maps(name, attention, padding, tmp_path):
    if name == "vit" and padding:
        pytest.skip("images have no padding")
    model, batch = tiny(name, attention), batch_of(name, padding)
    w = steps(model, batch, path=tmp_path / "run")
    want = by_maps(model, [batch], causal=name in ("gpt2", "llama"))
    for layer, values in enumerate(want):
        same({name: grid[layer] for name, grid in w.values["self"].items()}, values)
        assert np.isfinite(w.values["self"]["lse"][layer]).all()
        assert np.isfinite(w.values["self"]["value_weighted_norm"][layer]).all()
        assert np.isnan(w.values["self"]["next_token"][layer]).all() == (name in ("gpt2", "llama"))


class Plain(nn.Module):
    """Attention by scaled_dot_product_attention, whose parts a test can ask for."""

    def __init__(self, width=24, heads=3, kv_heads=None, **call):
        super().__init__()
        self.heads, self.kv_heads, self.call = heads, kv_heads or heads, call
        d = width // heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * self.kv_heads * d)
        self.proj = nn.Linear(width, width)

    def parts(self, x, memory=None):
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x if memory is None else memory).unflatten(2, (2 * self.kv_heads, -1)).transpose(1, 2).chunk(2, 1)
        return q, k, v

    def forward(self, x, memory=None):
        out = F.scaled_dot_product_attention(*self.parts(x, memory), enable_gqa=self.kv_heads != self.heads, **self.call)
        return self.proj(out.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, *memory):
        for layer in self.layers:
            x = x + layer(x, *memory)
        return x


def of_parts(layer, x, memory=None, allowed=None, bias=None, causal=False, rows=None, scale=None):
    """By hand, everything of a layer of Plain."""
    with torch.no_grad():
        q, k, v = (t.double() for t in copy.deepcopy(layer).parts(x, memory))
        k, v = (t.repeat_interleave(layer.heads // layer.kv_heads, 1) for t in (k, v))
        z, a = weights_of(q, k, scale or q.shape[-1] ** -0.5, allowed, bias)
        n, m = q.shape[2], k.shape[2]
        allowed = torch.ones(n, m, dtype=torch.bool) if allowed is None else allowed
        queries = torch.ones(len(x), n, dtype=torch.bool) if rows is None else rows
        keys = torch.ones(len(x), m, dtype=torch.bool) if rows is None else rows
        return ByHand(layer.heads, causal, memory is None).add(a, allowed, queries, keys, z, a @ v, v,
                                                               layer.proj.weight.double()).values()


TRIL = torch.ones(T, T, dtype=torch.bool).tril()
BIAS = -0.3 * (torch.arange(T)[:, None] - torch.arange(T)[None, :]).abs() * torch.tensor([1.0, 0.5, 0.25])[:, None, None]


@pytest.mark.parametrize("call, expected", [
    ({}, {}),
    ({"is_causal": True}, {"allowed": TRIL, "causal": True}),
    ({"is_causal": True, "scale": 0.7}, {"allowed": TRIL, "causal": True, "scale": 0.7}),
    ({"attn_mask": TRIL}, {"allowed": TRIL, "causal": True}),
    ({"attn_mask": TRIL & ~TRIL.tril(-3)}, {"allowed": TRIL & ~TRIL.tril(-3), "causal": True}),
    ({"attn_mask": BIAS}, {"bias": BIAS}),
    ({"attn_mask": BIAS.masked_fill(~TRIL, float("-inf"))}, {"allowed": TRIL, "bias": BIAS, "causal": True}),
], ids=["all", "causal", "scale", "bool mask", "window", "bias", "bias and -inf"])
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_any_model_that_calls_scaled_dot_product_attention(call, expected, kv_heads, tmp_path):
    model, x = Stack(Plain(kv_heads=kv_heads, **call), Plain(kv_heads=kv_heads, **call)), torch.randn(B, T, 24)
    w = steps(model, x, path=tmp_path)
    assert w.layers.names("self") == ["layers.0", "layers.1"]
    for n in range(2):
        same({name: grid[n] for name, grid in w.values["self"].items()}, of_parts(model.layers[n], x, **expected))
        with torch.no_grad():
            x = x + model.layers[n](x)


def test_cross_attention_has_no_places(tmp_path):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.cross_attn = Plain()

        def forward(self, x, memory):
            return self.cross_attn(x, memory)

    model, x, memory = Both().train(), torch.randn(B, T, 24), torch.randn(B, 5, 24)
    with headlab.watch(model, tmp_path, statistics="all", step="manual") as w:
        model(x, memory)
        w.step()
    want = of_parts(model.cross_attn, x, memory)
    same({name: grid[0] for name, grid in w.values["cross"].items()}, want)
    assert np.isnan(w.values["cross"]["mean_distance"]).all() and "mean_distance" not in want


def maps_of_heads(attention, x, memory=None, **masks):
    """By torch's own need_weights, with q, k and v for the rest."""
    with torch.no_grad():
        memory = x if memory is None else memory
        a = attention(x, memory, memory, need_weights=True, average_attn_weights=False, **masks)[1]
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        parts = [F.linear(s, w, c).unflatten(2, (attention.num_heads, -1)).transpose(1, 2).double()
                 for s, w, c in zip((x, memory, memory), weight.chunk(3), bias.chunk(3))]
    return a.double(), *parts


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_multihead_attention_with_padding_and_a_mask(kind, need_weights, tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(24, 3, batch_first=True)

        def forward(self, x, **masks):
            return self.attention(x, x, x, need_weights=need_weights, **masks)[0]

    model, x = Model().train(), torch.randn(B, T, 24)
    rows = batch_of("bert", "right")["attention_mask"].bool()
    hidden = [~TRIL, ~rows]
    if kind == "float":
        hidden = [torch.zeros_like(mask, dtype=torch.float).masked_fill(mask, float("-inf")) for mask in hidden]
    masks = {"attn_mask": hidden[0], "key_padding_mask": hidden[1]}
    with headlab.watch(model, tmp_path, statistics="all", step="pass") as w:
        model(x, **masks)
    a, q, k, v = maps_of_heads(model.attention, x, **masks)
    allowed = TRIL & rows[:, None, None, :]
    z = weights_of(q, k, q.shape[-1] ** -0.5)[0]
    want = ByHand(3, causal=True).add(a, allowed, rows, rows, z, a @ v, v, model.attention.out_proj.weight.double())
    same({name: grid[0] for name, grid in w.values["self"].items()}, want.values())


def test_layers_of_torch_transformers_and_their_sites(tmp_path):
    model = nn.Transformer(24, 3, 1, 2, 32, dropout=0.0, batch_first=True).train()
    source, target = torch.randn(B, 5, 24), torch.randn(B, T, 24)
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    with headlab.watch(model, tmp_path, statistics="all", step="manual") as w:
        model(source, target, tgt_mask=causal, tgt_is_causal=True)
        w.step()
    assert {site: w.layers.names(site) for site in w.layers.sites()} == {
        "encoder_self": ["encoder.layers.0.self_attn"],
        "decoder_self": ["decoder.layers.0.self_attn", "decoder.layers.1.self_attn"],
        "cross": ["decoder.layers.0.multihead_attn", "decoder.layers.1.multihead_attn"]}
    a = maps_of_heads(model.encoder.layers[0].self_attn, source)[0]
    every = torch.ones(B, 5, dtype=torch.bool)
    want = ByHand(3, causal=False).add(a, every[:, None, None, :], every, every).values()
    same({name: grid[0] for name, grid in w.values["encoder_self"].items()}, want)
    assert np.isnan(w.values["decoder_self"]["next_token"]).all()
    assert np.isnan(w.values["cross"]["first_token"]).all() and np.isfinite(w.values["cross"]["entropy"]).all()


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_encoder_decoder_models_of_transformers(name, tmp_path):
    if name == "bart":
        config = transformers.BartConfig(vocab_size=50, d_model=24, encoder_layers=1, decoder_layers=1,
                                         encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=32,
                                         decoder_ffn_dim=32, max_position_embeddings=32, dropout=0.0, init_std=0.5)
        model = transformers.BartForConditionalGeneration(config)
    else:
        config = transformers.T5Config(vocab_size=50, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1,
                                       num_heads=3, dropout_rate=0.0, decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration(config)
    source = torch.randint(0, 50, (B, 6))
    keys = torch.ones(B, 6, dtype=torch.bool)
    keys[1, 4:] = False
    rows = ROWS.clone()
    rows[2, 5:] = False
    batch = {"input_ids": source, "attention_mask": keys.long(), "decoder_input_ids": torch.randint(1, 50, (B, T)),
             "decoder_attention_mask": rows.long()}
    w = steps(model, batch, path=tmp_path)
    reference = copy.deepcopy(model).eval()
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        out = reference(**batch, output_attentions=True)
    seen = keys[:, None, None, :]
    causal = TRIL & rows[:, None, None, :]
    for site, maps, allowed, q, k in (("encoder_self", out.encoder_attentions, seen, keys, keys),
                                      ("decoder_self", out.decoder_attentions, causal, rows, rows),
                                      ("cross", out.cross_attentions, seen, rows, keys)):
        want = ByHand(3, site == "decoder_self", site != "cross").add(maps[0], allowed, q, k).values()
        same({name: grid[0] for name, grid in w.values[site].items()}, want, want)


def test_soft_capped_scores(tmp_path):
    config = transformers.Gemma2Config(vocab_size=50, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
                                       num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=3,
                                       attn_logit_softcapping=2.0, query_pre_attn_scalar=1, initializer_range=0.5,
                                       attn_implementation="eager")
    model, batch = transformers.Gemma2ForCausalLM(config), batch_of("gpt2", "right")
    w = steps(model, batch, path=tmp_path)
    with torch.no_grad():
        maps = copy.deepcopy(model).eval()(**batch, output_attentions=True).attentions
    rows = batch["attention_mask"].bool()
    for layer, a in enumerate(maps):
        allowed = TRIL & rows[:, None, None, :]
        if config.layer_types[layer] == "sliding_attention":
            allowed = allowed & ~TRIL.tril(-3)
        want = ByHand(4, causal=True).add(a, allowed, rows, rows).values()
        same({name: grid[layer] for name, grid in w.values["self"].items()}, want)
        assert (w.values["self"]["max_logit"][layer] <= 2).all()


@pytest.mark.parametrize("name, attention", [("gpt2", "sdpa"), ("gpt2", "eager"), ("llama", "sdpa")])
@pytest.mark.parametrize("compiled_before", [True, False])
def test_a_compiled_model_keeps_one_graph(name, attention, compiled_before, tmp_path):
    model, batch = tiny(name, attention), batch_of(name, "right")
    model.train()
    if name == "llama":
        model.config.use_cache = False
    want = steps(model, batch, path=tmp_path / "eager").values["self"]
    compiled = torch.compile(model, backend="inductor")
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    if compiled_before:
        loss_of(compiled(**batch)).backward()
    torch._dynamo.utils.counters.clear()
    with headlab.watch(compiled, tmp_path / "compiled", every=3, statistics="all") as w:
        for step in range(6):
            loss_of(compiled(**batch)).backward()
            optimizer.step()
            if step == 0:
                graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        counted = [int(layer.state[1]) for layer in w.layers.all.values()]
    assert not torch._dynamo.utils.counters["graph_break"]
    assert graphs == torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert counted == [3, 3]  # the first update, the third and the sixth
    same(w.values["self"], want)
    loss_of(compiled(**batch)).backward()
    assert [int(layer.state[1]) for layer in w.layers.all.values()] == [3, 3]


def test_layers_that_are_compiled_one_by_one_share_their_graph(tmp_path):
    model, batch = tiny("gpt2"), {**batch_of("gpt2"), "use_cache": False}  # a cache tells the first layer apart
    want = steps(model, batch, path=tmp_path / "eager").values["self"]
    for block in model.transformer.h:
        block.compile()
    torch._dynamo.utils.counters.clear()
    w = steps(model, batch, path=tmp_path / "compiled")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    same(w.values["self"], want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_under_activation_checkpointing_counts_once(reentrant, tmp_path):
    model, batch = tiny("gpt2"), batch_of("gpt2", "right")
    want = steps(model, batch, path=tmp_path / "whole").values["self"]
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    w = steps(model, batch, path=tmp_path / "checkpointed")
    assert [int(layer.state[1]) for layer in w.layers.all.values()] == [1, 1]
    assert all(np.array_equal(w.values["self"][name], want[name], equal_nan=True) for name in want)


def test_plain_layers_under_activation_checkpointing_count_once(tmp_path):
    class Checkpointed(Stack):
        def forward(self, x):
            for layer in self.layers:
                x = x + checkpoint(layer, x, use_reentrant=False)
            return x

    w = steps(Checkpointed(Plain(), Plain()), torch.randn(B, T, 24), path=tmp_path)
    assert [int(layer.state[1]) for layer in w.layers.all.values()] == [1, 1]


def test_passes_before_one_update_are_pooled(tmp_path):
    model = tiny("gpt2")
    batches = [batch_of("gpt2", "right"), batch_of("gpt2"), {"input_ids": torch.randint(0, 50, (B, 5))}]
    w = steps(model, *batches, path=tmp_path)
    for layer, values in enumerate(by_maps(model, batches, causal=True)):
        same({name: grid[layer] for name, grid in w.values["self"].items()}, values)


def test_training_is_the_same_with_a_watch(tmp_path):
    def trained(path):
        model = tiny("gpt2")
        for block in model.transformer.h:
            block.attn.attn_dropout.p = 0.1
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        torch.manual_seed(11)
        model.train()
        watching = headlab.watch(model, path, every=1, statistics="all") if path else None
        if watching:
            watching.start()
        for _ in range(3):
            loss_of(model(**batch_of("gpt2", "left"))).backward()
            optimizer.step()
            optimizer.zero_grad()
        if watching:
            watching.close()
        return model.state_dict()

    with_watch, without = trained(tmp_path), trained(None)
    assert all(torch.equal(with_watch[name], without[name]) for name in without)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-6), (torch.bfloat16, 0.05)])
def test_other_types_of_numbers(dtype, bound, tmp_path):
    model, batch = tiny("gpt2"), batch_of("gpt2", "left")
    want = steps(model, batch, path=tmp_path / "single").values["self"]
    if dtype == torch.float64:
        got = steps(model.double(), batch, path=tmp_path / "other").values["self"]
    else:
        with torch.autocast("cpu", dtype):
            got = steps(model, batch, path=tmp_path / "other").values["self"]
    for name in ("entropy_normalized", "max_weight", "first_token", "prev_token"):
        np.testing.assert_allclose(got[name], want[name], atol=bound)
    assert got["positional_share"].shape == (2, 3)


def test_what_passes_count(tmp_path):
    model, batch = tiny("bert"), batch_of("bert")
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for evaluation in (False, True):
        with headlab.watch(model, tmp_path / str(evaluation), evaluation=evaluation) as w:
            model.train()
            model(**batch)
            model.eval()
            model(**batch)
            counted = [int(layer.state[1]) for layer in w.layers.all.values()]
            optimizer.step()
        assert counted == [1 + evaluation] * 2


def test_a_tuple_of_optimizers_makes_one_update(tmp_path):
    model, batch = tiny("gpt2"), batch_of("gpt2")
    parameters = list(model.parameters())
    first, second = (torch.optim.SGD(some, 0.0) for some in (parameters[:3], parameters[3:]))
    other = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.0)
    model.train()
    with headlab.watch(model, tmp_path, every=2) as w:
        for _ in range(4):
            loss_of(model(**batch)).backward()
            for optimizer in (other, first, second):
                optimizer.step()
    assert w.updates == 4


def test_watched_models_are_copied_and_pickled_without_their_watch(tmp_path):
    model, batch = tiny("gpt2"), batch_of("gpt2")
    model.train()
    with headlab.watch(model, tmp_path) as w:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(**batch)
        assert [int(layer.state[1]) for layer in w.layers.all.values()] == [0, 0]
        model(**batch)
        assert [int(layer.state[1]) for layer in w.layers.all.values()] == [1, 1]
        torch.optim.SGD(model.parameters(), 0.0).step()


class OwnAttention(nn.Module):
    """Code of its own: none of the seams sees it."""

    def __init__(self):
        super().__init__()
        self.inner = Plain()

    def forward(self, x):
        q, k, v = self.inner.parts(x)
        self.said = {"q": q, "k": k, "v": v, "causal": True}
        z = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~TRIL, float("-inf"))
        self.said["out"] = z.softmax(-1) @ v
        return self.inner.proj(self.said["out"].transpose(1, 2).flatten(2))


def test_attention_of_its_own_is_refused_by_name_and_told_by_qkv(tmp_path):
    model, x = Stack(Plain(), OwnAttention()), torch.randn(B, T, 24)
    with pytest.raises(RuntimeError, match=r"the attention of layers\.1 was not seen.*qkv="):
        steps(model, x, path=tmp_path / "refused")

    def qkv(module, args, kwargs, output):
        if isinstance(module, OwnAttention):
            return {**module.said, "output_weight": module.inner.proj.weight}
        return None

    with torch.no_grad():
        before = x + model.layers[0](x)
    w = steps(model, x, path=tmp_path / "told", qkv=qkv)
    assert w.layers.names("self") == ["layers.1"]
    want = of_parts(model.layers[1].inner, before, allowed=TRIL, causal=True)
    same({name: grid[0] for name, grid in w.values["self"].items()}, want)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x):
        return self.linear(x)


def test_what_is_refused(tmp_path):
    model = tiny("gpt2")
    for wrong, error, said in (
            ({"statistics": "entropi"}, ValueError, "did you mean entropy"),
            ({"statistics": ["induction"]}, ValueError, "needs the tokens"),
            ({"statistics": []}, ValueError, "at least one"),
            ({"every": 0}, ValueError, "every must be at least 1"),
            ({"step": "epoch"}, ValueError, "optimizer, pass or manual")):
        with pytest.raises(error, match=said):
            headlab.watch(model, tmp_path, **wrong)
    with pytest.raises(TypeError, match="torch.nn.Module"):
        headlab.watch(model.forward, tmp_path)
    with pytest.raises(ValueError, match=r"named log\.h5"), headlab.watch(model, tmp_path / "mine.h5"):
        pass
    with pytest.raises(RuntimeError, match="no attention of Bare was seen"):
        steps(Bare(), torch.randn(B, T, 24), path=tmp_path / "bare")
    with pytest.raises(RuntimeError, match="reorder_and_upcast_attn"):
        steps(tiny("gpt2", "eager", reorder_and_upcast_attn=True), batch_of("gpt2"), path=tmp_path / "upcast")
    with headlab.watch(model, tmp_path / "once"), pytest.raises(RuntimeError, match="watched already"), \
            headlab.watch(model, tmp_path / "twice"):
        pass
    with pytest.raises(RuntimeError, match="training mode"):
        with headlab.watch(model.eval(), tmp_path / "eval"):
            model(**batch_of("gpt2"))
            torch.optim.SGD(model.parameters(), 0.0).step()
    sinks = transformers.GptOssConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_local_experts=2,
                                      num_experts_per_tok=1, attn_implementation="eager")
    with pytest.raises(RuntimeError, match="learned sink"):
        steps(transformers.GptOssForCausalLM(sinks), batch_of("gpt2"), path=tmp_path / "sinks")


def everything(model):
    """What a watch changes while it lasts."""
    from torch.optim.optimizer import _global_optimizer_post_hooks
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface
    from transformers.models.bert import modeling_bert

    modules = list(model.modules())
    return (modeling_bert.eager_attention_forward, dict(AttentionInterface._global_mapping), dict(AttentionMaskInterface._global_mapping),
            [sorted(vars(module)) for module in modules],
            [[len(module._forward_hooks), len(module._forward_pre_hooks)] for module in modules],
            len(_global_optimizer_post_hooks), torch.backends.mha.get_fastpath_enabled(),
            torch.overrides._len_torch_function_stack())


@pytest.mark.parametrize("kind", ["sdpa", "eager", "plain"])
def test_everything_is_put_back(kind, tmp_path):
    model = Stack(Plain()) if kind == "plain" else tiny("bert", kind)
    batch = torch.randn(B, T, 24) if kind == "plain" else batch_of("bert")
    before = everything(model)
    steps(model, batch, path=tmp_path / "whole")
    assert everything(model) == before
    with pytest.raises(ZeroDivisionError):
        with headlab.watch(model, tmp_path / "broken"):
            raise ZeroDivisionError
    assert everything(model) == before
    with pytest.raises(Exception, match="."), headlab.watch(model, tmp_path / "inside"):
        model.train()
        model(None)  # fails within the pass
    assert everything(model) == before
    first, second = headlab.watch(model, tmp_path / "1"), headlab.watch(copy.deepcopy(model), tmp_path / "2")
    first.start()
    second.start()
    first.close()
    second.close()
    assert everything(model) == before
