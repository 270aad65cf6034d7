"""headlab.Heads: laws that hold for every kind, and the numbers of the authors' own code."""

import copy
import io
import pickle
import threading
import warnings

import pytest
import torch
from package_testing import ROOT, golden_cases, metadata, settings_of
from safetensors.torch import load_file
from torch import nn
from torch.utils.checkpoint import checkpoint

import headlab

D, H, T, B = 16, 4, 6, 2
KINDS = headlab.kinds()
# What a kind needs beside its defaults to fit so small a layer.
# tpa begins with an output of 0 as its authors have it.
SMALL = {"bigbird": {"block": 2}, "linformer": {"projected": 4}, "tpa": {"init_weights": "host"}}


def made(kind, dtype=torch.float32, **more):
    options = {"context": T, **SMALL.get(kind, {}), **more}
    return headlab.Heads(kind, D, H, dtype=dtype, **options)


def inputs(dtype=torch.float32):
    return torch.randn(B, T, D, dtype=dtype)


def pass_of(heads, x, seed=3, **more):
    torch.manual_seed(seed)
    return heads(x, **more)


def whole_loss(heads, x):
    return heads(x).square().sum() + sum(headlab.aux_losses(heads).values())


@pytest.mark.parametrize("name", golden_cases())
def test_the_numbers_of_the_authors_code(name):
    path = golden_cases()[name]
    case, tensors = metadata(path), load_file(path)
    if not {"in.x", "out.y"} <= set(tensors) or any(
            key.endswith("first_v") or key.startswith("in.generator") for key in tensors):
        pytest.skip("reads what an earlier layer offered: a model's, not a layer's")
    arguments = settings_of(case)
    if arguments["kind"] not in KINDS:
        pytest.skip(f"{arguments['kind']} is not among the kinds here")
    x = tensors["in.x"].requires_grad_()
    memory = tensors.get("in.memory")
    if memory is not None:
        memory.requires_grad_()
    try:
        heads = headlab.Heads(dtype=x.dtype, context=(x if memory is None else memory).shape[1], **arguments)
    except ValueError as refused:
        assert ROOT / "tests/golden" not in path.parents, refused
        pytest.skip(f"of a version with more options: {refused}")
    heads.load_state_dict({name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")},
                          strict=False)
    heads.train(case.get("mode") == "train")
    mask = tensors.get("in.mask")
    out = heads.output(x, memory, attn_mask=None if mask is None else mask.bool(), bias=tensors.get("in.bias"),
                       gates=tensors.get("in.gates"), noise=tensors.get("in.u"),
                       positions=tensors.get("in.positions"), maps="out.attention" in tensors)
    got = {"out.y": out.y, "out.gates": out.gates, "out.attention": out.attention,
           "out.aux_loss": sum(out.aux.values(), torch.zeros((), dtype=x.dtype))}
    if "cot.y" in tensors:
        ((out.y * tensors["cot.y"]).sum() + sum(out.aux.values())).backward()
        got |= {"grad.x": x.grad, "grad.memory": None if memory is None else memory.grad}
        got |= {f"grad.w.{name}": torch.zeros_like(p) if p.grad is None else p.grad
                for name, p in heads.named_parameters()}
    compared = 0
    for key, want in tensors.items():
        if key in got and got[key] is not None:
            bound = float(case["atol"]) + float(case["rtol"]) * want.abs().max().item()
            assert (got[key].detach() - want).abs().nan_to_num().max().item() <= bound, key
            compared += 1
    assert compared >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind):
    heads = made(kind, torch.float64).eval()
    x = inputs(torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: pass_of(heads, x), (x,), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_are_one_on_both_sides(kind):
    heads = made(kind)
    for (name, tensor), (same, own) in zip(heads._core.parameters(), heads.named_parameters()):
        assert name == same and own is tensor and isinstance(own, nn.Parameter)
    x = inputs()
    before = pass_of(heads, x).detach()
    optimizer = torch.optim.AdamW(heads.parameters(), lr=.1)
    whole_loss(heads, x).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in heads.parameters())
    optimizer.step()
    headlab.after_step(heads)
    assert not torch.equal(before, pass_of(heads, x))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_brings_the_same_layer(kind, assign):
    heads, other, x = made(kind).eval(), made(kind).eval(), inputs()
    other.load_state_dict(heads.state_dict(), assign=assign)
    assert torch.equal(pass_of(heads, x), pass_of(other, x))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_equal_and_their_own(kind):
    heads, x = made(kind, dropout=.1).eval(), inputs()
    heads.mask_heads([1])
    next(heads.parameters()).requires_grad_(False)
    file = io.BytesIO()
    torch.save(heads, file)
    file.seek(0)
    state = torch.get_rng_state()
    copies = [copy.deepcopy(heads), pickle.loads(pickle.dumps(heads)), torch.load(file, weights_only=False)]
    assert torch.equal(state, torch.get_rng_state()), "a copy has drawn numbers"
    want = pass_of(heads, x)
    for other in copies:
        assert torch.equal(want, pass_of(other, x)) and other.alive_heads == heads.alive_heads == [0, 2, 3]
        assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in heads.parameters()]
    with torch.no_grad():
        for p in copies[0].parameters():
            p.add_(1)
    assert torch.equal(want, pass_of(heads, x))
    smaller = heads.slice()
    assert torch.allclose(want, pass_of(smaller, x), atol=1e-5)
    assert torch.equal(pass_of(smaller, x), pass_of(copy.deepcopy(smaller), x)) and smaller.alive_heads == [0, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_types_move_on_both_sides(kind):
    heads, x = made(kind).eval(), inputs()
    kept = list(heads.parameters())
    want = pass_of(heads, x)
    heads.to(torch.float64)
    assert all(a is b for a, b in zip(kept, heads.parameters()))
    for name, buffer in heads._core.buffers():
        holder, leaf = heads._holder(name)
        assert holder._buffers[leaf] is buffer
    got = pass_of(heads, x.double())
    assert got.dtype == torch.float64 and torch.allclose(got.float(), want, atol=1e-4)
    heads.to(torch.bfloat16)
    half = pass_of(heads, x.bfloat16())
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_rounds_and_no_more(kind):
    heads, x = made(kind).eval(), inputs()
    want = pass_of(heads, x)
    with torch.autocast("cpu", torch.bfloat16):
        got = pass_of(heads, x)
    assert got.dtype == torch.bfloat16
    wrong = (got.float() - want).abs().amax(-1) > 3e-2 * want.abs().max() + 1e-3  # [B,T]
    # Half types may choose other heads or experts where two are nearly alike.
    assert wrong.float().mean() <= (.3 if kind in ("moh", "switchhead") else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_train_and_eval_reach_the_layer(kind):
    heads, x = made(kind, dropout=.5), inputs()
    parent = nn.Sequential(heads)
    assert not torch.equal(pass_of(parent, x, seed=1), pass_of(parent, x, seed=2))
    assert torch.equal(pass_of(parent, x, seed=1), pass_of(parent, x, seed=1))
    parent.eval()
    assert torch.equal(pass_of(parent, x, seed=1), pass_of(parent, x, seed=2))


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_replays_the_draws(kind):
    x = inputs()

    def gradients(run):
        heads = made(kind, dropout=.3)
        torch.manual_seed(11)
        here = x.clone().requires_grad_()
        run(heads, here).square().sum().backward()
        return [here.grad, *(p.grad for p in heads.parameters() if p.grad is not None)]

    torch.manual_seed(5)
    plain = gradients(lambda heads, x: heads(x))
    torch.manual_seed(5)
    replayed = gradients(lambda heads, x: checkpoint(heads, x, use_reentrant=False))
    assert len(plain) == len(replayed) and all(torch.equal(a, b) for a, b in zip(plain, replayed))


class Around(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.before, self.heads, self.after = nn.Linear(D, D), heads, nn.Linear(D, D)

    def forward(self, x):
        return self.after(self.heads(self.before(x)))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_equals_eager_with_one_break_a_layer(kind):
    heads, x = made(kind).eval(), inputs()
    model = Around(heads).eval()
    torch._dynamo.reset()
    want = pass_of(model, x)
    explained = torch._dynamo.explain(model)(x)
    assert explained.graph_break_count == 1, explained.break_reasons
    torch._dynamo.reset()
    got = pass_of(torch.compile(model, backend="aot_eager"), x)
    assert torch.allclose(want, got, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_grad_and_inference_mode(kind):
    heads, x = made(kind).eval(), inputs()
    want = pass_of(heads, x)
    with torch.no_grad():
        assert torch.equal(want, pass_of(heads, x))
    with torch.inference_mode():
        assert torch.equal(want, pass_of(heads, x))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_layer(kind):
    heads = made(kind).eval()
    batches = [inputs() for _ in range(8)]
    want = [heads(x).detach() for x in batches]
    got = [None] * 8

    def work(i):
        for _ in range(5):
            got[i] = heads(batches[i]).detach()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(want, got):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_come_with_the_pass(kind):
    heads, x = made(kind).eval(), inputs()
    y, values = heads(x, statistics=True)
    assert torch.allclose(y, heads(x), atol=1e-5)
    assert values and all(value.dtype == torch.float64 for value in values.values())
    assert values["output_norm"].shape == (H,)


def test_statistics_are_those_of_the_map():
    heads, x = made("mha").eval(), inputs()
    out = heads.output(x, statistics=True, maps=True)
    p = out.attention
    assert p.shape == (B, H, T, T) and torch.allclose(p.sum(-1), torch.ones(B, H, T))
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean((0, 2))
    assert torch.allclose(out.statistics["entropy"], entropy.double(), atol=1e-5)


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_hidden_and_not_counted(left):
    heads = made("mha", causal=True).eval()
    x, short = inputs(), 4
    there = torch.ones(B, T, dtype=torch.bool)
    there[1] = torch.arange(T) >= T - short if left else torch.arange(T) < short
    out = heads.output(x, key_padding_mask=~there, statistics=True, maps=True)
    assert torch.allclose(out.y[1, there[1]], heads(x[1:, there[1]])[0], atol=1e-5)
    p = out.attention
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).transpose(1, 2)[there]
    assert torch.allclose(out.statistics["entropy"], entropy.mean(0).double(), atol=1e-5)


def test_masks_as_torch_and_transformers_hand_them():
    heads, x = made("mha", causal=False).eval(), inputs()
    allowed = torch.rand(B, 1, T, T) < .6
    allowed[..., 0] = True
    added = torch.zeros(B, 1, T, T).masked_fill(~allowed, float("-inf"))
    assert torch.allclose(heads(x, attn_mask=allowed), heads(x, attn_mask=added), atol=1e-6)
    causal = made("mha", causal=True).eval()
    causal.load_state_dict(heads.state_dict())
    triangle = torch.ones(T, T, dtype=torch.bool).tril()
    assert torch.allclose(heads(x, attn_mask=triangle), causal(x), atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if headlab.describe(kind).promises["rotary"]])
def test_positions_of_each_example(kind):
    heads = made(kind, rope=True).eval()
    x = inputs()
    rows = torch.stack([torch.arange(T), torch.arange(T) * 2 + 3])
    got = pass_of(heads, x, positions=rows)
    for b in range(B):
        assert torch.allclose(got[b], pass_of(heads, x[b:b + 1], positions=rows[b])[0], atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if headlab.describe(kind).promises["decodes"]])
def test_a_cache_gives_the_whole_pass(kind):
    heads, x = made(kind).eval(), inputs()
    whole, cache = heads(x), headlab.Cache()
    parts = torch.cat([heads(x[:, :3], cache=cache), *(heads(x[:, t:t + 1], cache=cache) for t in range(3, T))], 1)
    assert torch.allclose(whole, parts, atol=1e-5) and cache.length == T


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_takes_the_place_of_outputs(kind):
    heads, x = made(kind).eval(), inputs()
    gates = torch.ones(H)
    gates[2] = 0
    want = pass_of(heads, x, gates=gates.view(1, H, 1))
    seen = []

    def silence(outputs):
        seen.append(outputs.shape)
        return outputs * gates.view(1, H, 1, 1)

    heads.output_hook = silence
    assert torch.allclose(pass_of(heads, x), want, atol=1e-5)
    assert seen == [(B, H, T, heads._core.value_width)]


def test_what_a_hook_raises_is_raised():
    heads = made("mha")
    heads.output_hook = lambda outputs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        heads(inputs())


def test_distributed_data_parallel_is_one_process(tmp_path):
    import torch.multiprocessing as mp

    mp.spawn(halves, args=(str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    got = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    torch.manual_seed(1)
    heads, x = made("dcmha"), torch.randn(4, T, D)
    heads(x).square().mean().backward()
    for mine, want in zip(got[0], [p.grad for p in heads.parameters()]):
        assert torch.allclose(mine, want, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(*got))


def halves(rank, store, folder):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(1)
    heads, x = made("dcmha"), torch.randn(4, T, D)
    model = nn.parallel.DistributedDataParallel(heads, find_unused_parameters=True)
    model(x[2 * rank:2 * rank + 2]).square().mean().backward()
    torch.save([p.grad for p in heads.parameters()], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_bad_input_is_one_exception_with_the_name():
    with pytest.raises(ValueError, match="mhaa.*did you mean 'mha'"):
        headlab.Heads("mhaa", D, H)
    with pytest.raises(ValueError, match="rnak.*did you mean 'rank'"):
        headlab.Heads("dcmha", D, H, rnak=2)
    with pytest.raises(ValueError, match="linformer.*causal"):
        headlab.Heads("linformer", D, H, causal=True, context=T)
    with pytest.raises(ValueError, match="multiple of heads"):
        headlab.Heads("mha", 10, 4)
    with pytest.raises(ValueError, match="numbers, words"):
        headlab.Heads("mha", D, H, scale=object())
    heads, x = made("mha"), inputs()
    with pytest.raises(RuntimeError, match=r"x must be \[B, T, 16\]"):
        heads(torch.randn(2, 3, 5))
    with pytest.raises(RuntimeError, match="float64.*float32"):
        heads(x.double())
    with pytest.raises(RuntimeError, match=r"memory must be"):
        heads(x, torch.randn(3, 4, D))
    with pytest.raises(RuntimeError, match="positions must be"):
        heads(x, positions=torch.arange(3))
    with pytest.raises(RuntimeError, match="key_padding_mask"):
        heads(x, key_padding_mask=torch.zeros(B, T + 1, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="meta"):
        heads.to("meta")
    for module in (heads, nn.Sequential(heads)):
        with pytest.raises(RuntimeError, match="to_empty"):
            module.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match="q.weight.*shape|size mismatch for weight"):
        heads.load_state_dict(headlab.Heads("mha", D, 8, head_dim=4).state_dict() |
                              {"q.weight": torch.randn(3, 3)})
    with pytest.raises(ValueError, match="backend"):
        heads(x, backend="fast")


def test_a_device_without_kernels_is_said_once():
    from headlab import mirror
    mirror._said.clear()
    with pytest.warns(UserWarning, match="built without kernels for xpu: on xpu:1 its layers compute by torch's operations"):
        mirror.say_where(torch.device("xpu:1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mirror.say_where(torch.device("xpu:0"))
        mirror.say_where(torch.device("cpu"))
    assert headlab._C.has_cuda is False
    with pytest.warns(UserWarning, match="cuda"):
        mirror.say_where(torch.device("cuda"))
    mirror._said.clear()


def test_tensors_that_are_replaced_are_named():
    heads, x = made("mha"), inputs()
    with pytest.raises(RuntimeError, match="q.weight"):
        torch.func.functional_call(heads, {"q.weight": torch.zeros(D, D)}, (x,))
    heads(x)
    nn.utils.parametrize.register_parametrization(heads.q, "weight", nn.Identity())
    with pytest.raises(RuntimeError, match="q.weight"):
        heads(x)


def test_transforms_and_export_are_refused():
    heads, x = made("mha"), inputs()
    with pytest.raises(RuntimeError, match="torch.func"):
        torch.func.vmap(heads)(x.unsqueeze(0))
    with pytest.raises(Exception, match="exported|export"):
        torch.export.export(heads, (x,))


def test_kinds_are_described():
    assert "dcmha" in headlab.kinds() and headlab.kinds() == sorted(headlab.kinds())
    kind = headlab.describe("dcmha")
    assert {"rank", "init_weights"} <= {option.name for option in kind.options}
    assert "rank: integer" in str(kind) and "takes: causal" in str(kind)


def test_names_of_statistics_are_those_of_the_log():
    always = {name for name, _, _, _, always, _, needs in headlab._C.statistic_table() if always and not needs}
    assert always and always <= set(made("moh")(inputs(), statistics=True)[1])
