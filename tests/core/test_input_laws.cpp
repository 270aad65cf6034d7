// Laws that every registered kind of heads must obey when a head's q, k and v, or the rest of its
// layer, are made of copies of the input.
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_input_laws {
using namespace testing;

namespace {

constexpr int64_t kHeads = 4;

using Copies = std::map<int64_t, Tensor>;
const std::vector<std::pair<const char*, Copies HeadInputs::*>> kInputs{
    {"q", &HeadInputs::q}, {"k", &HeadInputs::k}, {"v", &HeadInputs::v}};

// Every input of the layer, of `x` and `memory`.
HeadInputs all_inputs(const Tensor& x, const Tensor& memory = {}) {
  HeadInputs inputs{.rest = x, .rest_of_memory = memory};
  for (int64_t h = 0; h < kHeads; ++h) {
    inputs.q[h] = x;
    inputs.k[h] = inputs.v[h] = memory.defined() ? memory : x;
  }
  return inputs;
}

Tensor y_with(AttentionHeads& heads, const Tensor& x, HeadContext ctx, const HeadInputs& inputs) {
  ctx.inputs = &inputs;
  return heads.forward(x, ctx).y;
}

// Options by which a layer reads its input in other places.
std::vector<std::string> options_with_other_readers(const std::string& kind) {
  if (kind == "moh") return {"", ", router: query_norm, straight_through: all"};
  if (kind == "mla") return {"", ", q_rank: 5", ", rope_dim: 0"};
  if (kind == "gla") return {"", ", q_rank: 0", ", rope_dim: 0, groups: 4"};
  if (kind == "gta") return {"", ", rope_dim: 0", ", rope_dim: 6"};
  if (kind == "tpa") return {"", ", q_rank: 0"};
  if (kind == "differential") return {"", ", version: 2"};
  if (kind == "linformer") return {"", ", share_kv: false"};
  if (kind == "forgetting") return {"", ", k_shift: true, v_shift: true, output_gate: sigmoid"};
  if (kind == "gated") return {"", ", gate: sigmoid"};
  if (kind == "collaborative") return {"", ", content_bias: true"};
  if (kind == "switchhead") return {"", ", experts: 1, active: 1"};
  return {""};
}

}  // namespace

TEST_CASE("inputs of a head's own that equal x change nothing", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    const auto inputs = all_inputs(x);
    if (!s.traits.inputs) {
      REQUIRE_THROWS_WITH(y_with(*s.heads, x, s.natural(), inputs),
                          Catch::Contains("cannot read inputs of their own"));
      return;
    }
    REQUIRE(relative_difference(y_with(*s.heads, x, s.natural(), inputs), s.y(x, s.natural())) <
            1e-12);
  });
}

TEST_CASE("a layer all of whose inputs are copies reads nothing else", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.inputs) return not_promised();
    for (const auto& options : options_with_other_readers(s.kind)) {
      INFO(options);
      const auto heads = make_layer(s.kind, s.shape, s.options + options, 3);
      const auto x = random({B, T, 20}), other = random({B, T, 20});
      const auto want = heads->forward(other, s.natural()).y;
      REQUIRE(difference(want, heads->forward(x, s.natural()).y) > 1e-6);
      REQUIRE(relative_difference(y_with(*heads, x, s.natural(), all_inputs(other)), want) < 1e-12);
      if (!s.traits.cross) continue;
      HeadContext ctx, of_other;
      ctx.memory = random({B, 5, 20}), of_other.memory = random({B, 5, 20});
      REQUIRE(relative_difference(y_with(*heads, x, ctx, all_inputs(other, of_other.memory)),
                                  heads->forward(other, of_other).y) < 1e-12);
    }
  });
}

TEST_CASE("an input of one head is that head's alone, and its copy has a gradient", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.inputs) return not_promised();
    for (const int64_t kv_heads : {4, 2}) {
      if (kv_heads < kHeads && !s.traits.grouped) continue;
      const auto heads = s.make(small_shape(kHeads, kv_heads));
      const auto x = random({B, T, 20});
      for (const auto& [name, input] : kInputs) {
        INFO(name << ", " << kv_heads << " key/value heads");
        HeadInputs inputs;
        auto& copy = (inputs.*input)[2] = random({B, T, 20}).requires_grad_();
        const auto y = y_with(*heads, x, s.natural(), inputs);
        REQUIRE(difference(y, heads->forward(x, s.natural()).y) > 1e-6);
        (y * random({B, T, 20})).sum().backward();
        REQUIRE(copy.grad().abs().sum().item<double>() > 1e-6);
        if (!s.traits.independent) continue;
        auto without = s.natural();
        without.gates = at::tensor({1., 1., 0., 1.}, at::kDouble).view({1, kHeads, 1});
        REQUIRE(relative_difference(y_with(*heads, x, without, inputs),
                                    heads->forward(x, without).y) < 1e-12);
      }
    }
  });
}

TEST_CASE("inputs are of original heads in a sliced layer, too", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.inputs) return not_promised();
    const auto x = random({B, T, 20});
    s.heads->mask_heads({1});
    const auto sliced = s.heads->slice();
    for (const auto& [name, input] : kInputs) {
      INFO(name);
      HeadInputs inputs;
      (inputs.*input)[2] = random({B, T, 20}), (inputs.*input)[1] = random({B, T, 20});
      REQUIRE(relative_difference(y_with(*sliced, x, s.natural(), inputs),
                                  y_with(*s.heads, x, s.natural(), inputs)) < 1e-12);
    }
  });
}

TEST_CASE("inputs that do not fit are refused by size", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.inputs) return not_promised();
    const auto x = random({B, T, 20});
    const auto refused = [&](const HeadInputs& inputs, HeadContext ctx, const char* what) {
      REQUIRE_THROWS_WITH(y_with(*s.heads, x, std::move(ctx), inputs), Catch::Contains(what));
    };
    refused({.q = {{1, random({B, T + 1, 20})}}}, s.natural(), "the copy of an input must be");
    refused({.k = {{4, x}}}, s.natural(), "head 4 does not exist");
    refused({.rest = random({B, T, 19})}, s.natural(), "the copy of an input must be");
    if (!s.traits.decodes) return;
    LayerCache cache;
    auto ctx = s.natural();
    ctx.cache = &cache;
    refused({.q = {{1, x}}}, ctx, "a cache do not go together");
  });
}

}  // namespace headlab::test_input_laws
