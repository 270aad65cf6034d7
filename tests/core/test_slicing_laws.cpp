// Laws that every registered kind of heads must obey when heads are gated, masked and sliced away.
#include "core/restore_heads.h"
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_slicing_laws {
using namespace testing;

TEST_CASE("a gate of zero is a masked head where heads are independent", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.independent) return not_promised();
    const auto x = random({B, T, 20});
    auto ctx = s.natural();
    ctx.gates = at::tensor({1., 0., 1., 0.}, at::kDouble).view({1, 4, 1});
    const auto gated = s.y(x, ctx);
    s.heads->mask_heads({1, 3});
    REQUIRE(difference(gated, s.y(x, s.natural())) < 1e-12);
  });
}

TEST_CASE("the mask of heads is idempotent, restorable and saved", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    const auto whole = s.y(x, s.natural());
    s.heads->mask_heads({2});
    const auto masked = s.y(x, s.natural());
    REQUIRE(difference(whole, masked) > 1e-6);
    s.heads->mask_heads({2});
    REQUIRE(difference(masked, s.y(x, s.natural())) == 0);
    REQUIRE(s.heads->alive() == std::vector<bool>{true, true, false, true});
    const auto buffers = s.heads->named_buffers();
    REQUIRE(buffers.find("alive") != nullptr);
    REQUIRE(buffers.find("alive")->scalar_type() == at::kByte);
    s.heads->mask_heads({});
    REQUIRE(difference(whole, s.y(x, s.natural())) == 0);
    REQUIRE_THROWS_WITH(s.heads->mask_heads({4}), Catch::Contains("head 4 does not exist"));
  });
}

TEST_CASE("sliced equals masked, in original head indices", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    auto ctx = s.natural();
    if (s.traits.independent) ctx.gates = random({B, 4, T});
    if (s.traits.biases) ctx.bias = random({1, 4, T, T});
    if (s.masks_pairs()) ctx.mask.allowed = at::rand({B, 4, T, T}) < 0.8;
    for (const auto& gone : std::vector<std::vector<int64_t>>{{1}, {0, 3}, {0, 1, 2}}) {
      s.heads->mask_heads(gone);
      auto sliced = s.heads->slice();
      INFO("removed heads " << at::IntArrayRef(gone));
      const auto small = sliced->forward(x, ctx), whole = s.heads->forward(x, ctx);
      REQUIRE(relative_difference(small.y, whole.y) < 1e-12);
      REQUIRE(small.gates.defined() == whole.gates.defined());
      if (small.gates.defined()) REQUIRE(difference(small.gates, whole.gates) < 1e-12);
      REQUIRE(small.aux.size() == whole.aux.size());
      for (size_t n = 0; n < small.aux.size(); ++n)
        REQUIRE(difference(small.aux[n].value, whole.aux[n].value) < 1e-12);
      int64_t before = 0, after = 0;
      for (const auto& p : s.heads->parameters()) before += p.numel();
      for (const auto& p : sliced->parameters()) after += p.numel();
      REQUIRE(after < before);
      REQUIRE(sliced->heads() == 4);
      REQUIRE(sliced->alive() == s.heads->alive());
      if (gone != std::vector<int64_t>{1}) continue;
      // Slicing what is sliced goes on counting in original indices.
      sliced->mask_heads({3});
      s.heads->mask_heads({1, 3});
      REQUIRE(relative_difference(sliced->slice()->forward(x, ctx).y, s.y(x, ctx)) < 1e-12);
    }
  });
}

TEST_CASE("a sliced layer comes back from what it saves", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    s.heads->mask_heads({0, 2});
    const auto sliced = s.heads->slice();
    sliced->mask_heads({3});
    // As a loader does it: build the whole layer, slice it to the heads that were saved, copy.
    const auto fresh = make_layer(s.kind, s.shape, s.options, /*seed=*/1);
    fresh->mask_heads({0, 2});
    const auto loaded = fresh->slice();
    REQUIRE(difference(loaded->forward(x, s.natural()).y, sliced->forward(x, s.natural()).y) >
            1e-6);
    at::NoGradGuard no_grad;
    auto copy = [](auto to, auto from) {
      REQUIRE(to.keys() == from.keys());
      for (auto& item : to) item.value().copy_(from[item.key()]);
    };
    copy(loaded->named_parameters(), sliced->named_parameters());
    copy(loaded->named_buffers(), sliced->named_buffers());
    REQUIRE(difference(loaded->forward(x, s.natural()).y, sliced->forward(x, s.natural()).y) == 0);
    REQUIRE(loaded->alive() == sliced->alive());
  });
}

TEST_CASE("a layer is built again from what it was made of and what it saved", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    s.heads->mask_heads({0, 2});
    auto sliced = s.heads->slice();
    sliced->mask_heads({3});
    for (const auto& layer : {s.heads, sliced, sliced->slice()}) {
      NamedTensors saved;
      for (const auto& [name, tensor] : module_tensors(*layer)) saved["at." + name] = tensor;
      REQUIRE(layer->made_of());
      REQUIRE(layer->made_of()->kind() == s.kind);
      const auto again = restore_heads(*layer->made_of(), layer->whole_shape(), saved, "at.");
      again->eval();
      REQUIRE(difference(again->forward(x, s.natural()).y, layer->forward(x, s.natural()).y) == 0);
      REQUIRE(again->alive() == layer->alive());
      REQUIRE(again->head_ids() == layer->head_ids());
      saved["at.surplus"] = at::ones({1});
      REQUIRE_THROWS_WITH(restore_heads(*layer->made_of(), layer->whole_shape(), saved, "at."),
                          Catch::Contains("at.surplus"));
    }
  });
}

TEST_CASE("a slice trains what the whole layer trains", "[laws]") {
  for_every_kind([](const Subject& s) {
    s.heads->mask_heads({1});
    for (const auto& p : s.heads->named_parameters()) {
      p.value().set_requires_grad(false);
      const auto sliced = s.heads->slice()->named_parameters();
      p.value().set_requires_grad(true);
      for (const auto& q : sliced) {
        INFO(p.key() << ": " << q.key());
        REQUIRE(q.value().requires_grad() == (q.key() != p.key()));
      }
    }
  });
}

TEST_CASE("a layer may lose all its heads", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    s.heads->mask_heads({0, 1, 2, 3});
    const auto masked = s.y(x, s.natural());
    REQUIRE(difference(s.heads->slice()->forward(x, s.natural()).y, masked) < 1e-12);
    REQUIRE(difference(masked, masked[0][0].expand_as(masked)) < 1e-12);
  });
}

}  // namespace headlab::test_slicing_laws
