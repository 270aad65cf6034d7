// Laws of calls that every registered kind of heads must obey: outputs that the caller replaces,
// positions of each example, paths asked for by name, the fields of a context where no head is
// left, and dropout without a seed.
#include <ATen/record_function.h>

#include <functional>
#include <set>

#include "core/errors.h"
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_call_laws {
using namespace testing;

namespace {

// Options by which a layer puts its outputs together in other ways.
std::vector<std::string> options_of(const std::string& kind) {
  if (kind == "moh") return {"", ", compute: sparse", ", compute: dense"};
  if (kind == "gated") return {"", ", inner: {kind: moh, compute: sparse}"};
  return {""};
}

}  // namespace

TEST_CASE("what is given in the place of the heads' outputs is what the layer goes on with",
          "[laws]") {
  for (const auto& kind : head_names())
    for (const auto& options : options_of(kind)) {
      INFO(kind << options);
      const Subject s(kind, options_in_laws(kind) + options);
      const auto x = random({B, T, 20});
      const auto gates = at::tensor({1., 0., 1., 0.5}, at::kDouble).view({1, 4, 1});
      auto gated = s.natural(), replaced = s.natural(), kept = s.natural();
      gated.gates = gates;
      int64_t calls = 0;
      replaced.outputs = [&](const Tensor& o) {
        ++calls;
        REQUIRE(o.sizes() == at::IntArrayRef({B, 4, T, s.heads->value_width()}));
        return o * gates.unsqueeze(3);
      };
      kept.outputs = [](const Tensor& o) { return o; };
      REQUIRE(relative_difference(s.y(x, replaced), s.y(x, gated)) < 1e-12);
      REQUIRE(calls == 1);
      REQUIRE(relative_difference(s.y(x, kept), s.y(x, s.natural())) < 1e-12);
    }
}

TEST_CASE("each example may have positions of its own", "[laws]") {
  const Rotary rotary;
  for_every_kind([&](const Subject& s) {
    const auto x = random({B, T, 20});
    const auto from_0 = at::arange(T, at::kLong);
    const auto rows = at::stack({from_0, from_0 * 2 + 3});  // [B,T]
    auto ctx = s.natural();
    if (s.traits.rotary) ctx.rotary = &rotary;
    ctx.positions = rows;
    const auto together = s.y(x, ctx);
    for (int64_t b = 0; b < B; ++b) {
      ctx.positions = rows[b];
      const auto alone = s.y(x.narrow(0, b, 1), ctx);
      REQUIRE(relative_difference(together.narrow(0, b, 1), alone) < 1e-10);
    }
    ctx.positions = from_0.narrow(0, 0, T - 1);
    REQUIRE_THROWS_WITH(s.y(x, ctx), Catch::Contains("positions must be"));
  });
}

namespace {

thread_local std::set<std::string> ops;

std::unique_ptr<at::ObserverContext> note_op(const at::RecordFunction& function) {
  ops.insert(function.name());
  return nullptr;
}

std::set<std::string> ops_of(const std::function<void()>& work) {
  ops.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(note_op).scopes({at::RecordScope::FUNCTION}));
  struct Removal {
    at::CallbackHandle handle;
    ~Removal() { at::removeCallback(handle); }
  } removal{handle};
  work();
  return ops;
}

}  // namespace

TEST_CASE("a path that is asked for by name is taken or refused", "[laws][variants]") {
  const bool was_one = at::get_num_threads() == 1;
  if (!was_one) at::set_num_threads(1);  // ops are noted on this thread
  for_every_kind([](const Subject& s) {
    for (const double dropout : {0.0, 0.3})
      for (const auto backend : {Backend::kSdpa, Backend::kFlash, Backend::kRows}) {
        INFO("dropout " << dropout << ", backend " << static_cast<int>(backend));
        auto shape = s.shape;
        shape.dropout = dropout;
        const auto heads = s.make(shape);
        heads->train();
        auto ctx = s.natural();
        ctx.backend = backend;
        const auto x = random({B, T, 20});
        try {
          const auto seen = ops_of([&] { heads->forward(x, ctx); });
          const bool sdpa = seen.contains("aten::scaled_dot_product_attention"),
                     flash = seen.contains("aten::_scaled_dot_product_flash_attention_for_cpu") &&
                             !sdpa;
          if (backend == Backend::kRows)
            CHECK((!sdpa && !seen.contains("aten::_scaled_dot_product_flash_attention_for_cpu")));
          else
            CHECK((backend == Backend::kSdpa ? sdpa : flash));
        } catch (const BackendError&) {
          SUCCEED("refused");
        }
      }
  });
}

TEST_CASE("a layer without heads takes every field of a context", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20}), memory = random({B, 5, 20});
    const Rotary rotary;
    const Alibi alibi(4, at::kDouble);
    const int64_t e = s.heads->value_width();
    using Change = std::function<void(HeadContext&)>;
    std::vector<std::pair<const char*, Change>> fields{
        {"gates of a head",
         [&](HeadContext& c) {
           c.gates = random({B, 4, T});
         }},
        {"gates of all",
         [&](HeadContext& c) {
           c.gates = random({1, 1, 1});
         }},
        {"gates of an element",
         [&](HeadContext& c) {
           c.gates = random({1, 4, 1, e});
         }},
        {"offset",
         [&](HeadContext& c) {
           c.offset = random({1, 4, 1, e});
         }},
        {"offset of all",
         [&](HeadContext& c) {
           c.offset = random({B, 1, T, e});
         }},
        {"uniform",
         [&](HeadContext& c) {
           c.uniform = at::tensor({1, 0, 1, 0}).to(at::kBool);
         }},
        {"noise", [&](HeadContext& c) { c.noise = at::rand({4}, at::kDouble); }},
        {"lengths",
         [&](HeadContext& c) {
           c.mask.key_length = c.mask.query_length = at::tensor({T, int64_t{4}});
         }},
        {"training", [&](HeadContext&) { s.heads->train(); }}};
    if (s.traits.biases) {
      fields.push_back({"bias", [&](HeadContext& c) { c.bias = random({B, 4, T, T}); }});
      fields.push_back({"position bias", [&](HeadContext& c) { c.position_bias = &alibi; }});
    }
    if (s.traits.windows) fields.push_back({"window", [&](HeadContext& c) { c.mask.window = 3; }});
    if (s.masks_pairs())
      fields.push_back({"allowed", [&](HeadContext& c) {
                          c.mask.allowed = at::rand({B, 4, T, T}) < 0.7;
                        }});
    if (s.traits.rotary) fields.push_back({"rotary", [&](HeadContext& c) { c.rotary = &rotary; }});
    if (s.traits.cross)
      fields.push_back({"memory", [&](HeadContext& c) {
                          c.memory = memory;
                          c.mask.causal = false;
                        }});
    LayerCache cache;
    if (s.traits.decodes) fields.push_back({"cache", [&](HeadContext& c) { c.cache = &cache; }});
    HeadProbe probe;
    probe.statistics = probe.maps = true;
    fields.push_back({"observer", [&](HeadContext& c) { c.observer = &probe; }});
    for (const auto& [name, change] : fields) {
      INFO(name);
      auto ctx = s.natural();
      change(ctx);
      auto heads = s.make(s.shape);
      if (s.heads->is_training()) heads->train();
      s.heads->eval();
      const auto plain = [&] {
        heads->mask_heads({0, 1, 2, 3});
        return heads->slice();
      }();
      auto y = Tensor();
      REQUIRE_NOTHROW(y = plain->forward(x, ctx).y);
      CHECK(y.sizes() == x.sizes());
      CHECK(difference(y, y[0][0].expand_as(y)) < 1e-12);  // the output bias
      for (auto backend : {Backend::kSdpa, Backend::kFlash, Backend::kRows, Backend::kEager}) {
        ctx.backend = backend;
        if (ctx.cache) cache.clear();
        try {
          plain->forward(x, ctx);
        } catch (const BackendError&) {
          CHECK(backend != Backend::kEager);
        }
      }
      cache.clear();
    }
  });
}

TEST_CASE("a context without a seed drops anew in every pass, as torch's generator says",
          "[laws]") {
  for_every_kind([](const Subject& s) {
    auto shape = s.shape;
    shape.dropout = 0.3;
    const auto heads = s.make(shape);
    heads->train();
    const auto x = random({B, T, 20});
    const auto y = [&] { return heads->forward(x, s.natural()).y; };
    const auto at_step = [&](uint64_t step) {
      auto ctx = s.natural();
      ctx.rng = {.seed = 1, .step = step};
      return heads->forward(x, ctx).y;
    };
    if (difference(at_step(1), at_step(2)) == 0) return not_promised();  // it drops nothing
    torch::manual_seed(5);
    const auto first = y(), second = y();
    CHECK(difference(first, second) > 1e-6);
    torch::manual_seed(5);
    CHECK(difference(first, y()) == 0);
    CHECK(difference(second, y()) == 0);
    heads->eval();
    CHECK(difference(y(), y()) == 0);
  });
}

}  // namespace headlab::test_call_laws
