"""headlab.replace() on tiny models of transformers with random weights."""

import pytest
import torch

import headlab

transformers = pytest.importorskip("transformers")


def gpt2(**more):
    config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=24, n_layer=2, n_head=3, **more)
    return transformers.GPT2LMHeadModel(config).eval()


def llama(**more):
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, **more)
    return transformers.LlamaForCausalLM(config).eval()


def ids():
    return torch.randint(0, 50, (3, 11))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_mha_keeps_the_logits(make, attention):
    model, x = make(attn_implementation=attention), ids()
    padding = torch.ones_like(x)
    padding[1, 7:], padding[2, :4] = 0, 0
    want, padded = model(x).logits, model(x, attention_mask=padding).logits
    done = headlab.replace(model, "mha")
    assert [layer.start for layer in done] == ["the model's"] * 2
    assert torch.allclose(model(x).logits, want, atol=1e-5)
    got = model(x, attention_mask=padding).logits
    assert torch.allclose(got[padding.bool()], padded[padding.bool()], atol=1e-5)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_layer_alone_is_replaced_and_trains(make):
    model, x = make(), ids()
    kind = "dcmha" if make is gpt2 else "moh"
    done, = headlab.replace(model, kind, layers=[1])
    assert done.start == "fresh" and ".1." in done.name
    layers = [module for module in model.modules() if isinstance(module, headlab.Heads)]
    assert [layer._arguments["kind"] for layer in layers] == [kind]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        loss = model(x, labels=x).loss
        (loss + sum(headlab.aux_losses(model).values())).backward()
        optimizer.step()
        optimizer.zero_grad()
        headlab.after_step(model)
        losses.append(loss.item())
    assert losses[-1] < losses[0] - .5
    assert all(p.grad is None for p in model.parameters())


def test_conversions_are_those_of_convert():
    model, x = gpt2(), ids()
    want = model(x).logits
    assert [layer.start for layer in headlab.replace(model, "collaborative")] == ["converted"] * 2
    assert torch.allclose(model(x).logits, want, atol=1e-4)
    model = llama()
    done = headlab.replace(model, "mha", kv_heads=1)
    assert done[0].start == "converted" and done[0].error > 0
    assert model.model.layers[0].self_attn.heads.k.weight.shape == (6, 24)


def test_generation_is_right_or_refused():
    model, x = gpt2(), ids()
    want = model.generate(x, max_new_tokens=6, do_sample=False, pad_token_id=0)
    headlab.replace(model, "mha")
    assert torch.equal(model.generate(x, max_new_tokens=6, do_sample=False, pad_token_id=0), want)
    with pytest.raises(RuntimeError, match="use_cache=False"):
        model.generate(x, max_new_tokens=6, use_cache=True, pad_token_id=0)


def test_what_does_not_fit_is_refused_and_nothing_changes():
    model = llama()
    with pytest.raises(ValueError, match="did you mean 'mha'"):
        headlab.replace(model, "mhaa")
    with pytest.raises(ValueError, match="layers must lie in 0 to 1"):
        headlab.replace(model, "mha", layers=[2])
    with pytest.raises(ValueError, match="linformer"):
        headlab.replace(model, "linformer")
    with pytest.raises(ValueError, match="no self-attention"):
        headlab.replace(torch.nn.Linear(2, 2), "mha")
    scaled = llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(ValueError, match="linear"):
        headlab.replace(scaled, "mha")
    assert not any(isinstance(module, headlab.Heads) for m in (model, scaled) for module in m.modules())
