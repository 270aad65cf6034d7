// Laws that every registered kind of heads must obey, each as far as its traits promise.
#include <array>
#include <cmath>
#include <set>
#include <thread>

#include "core/attention/attend.h"
#include "experiments/training/update.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/laws_testing.h"

namespace headlab::test_laws {
using namespace testing;

namespace {

Tensor map_of(const Subject& s, const Tensor& x, HeadContext ctx) {
  HeadProbe probe;
  probe.maps = true;
  ctx.observer = &probe;
  s.heads->forward(x, ctx);
  return probe.layer_maps().at(s.shape.layer);
}

// What a layer tells its observer of its maps: weights before heads mix and those that meet the
// values, the values, and what heads make of them.
class MapWatcher : public HeadProbe {
 public:
  MapWatcher() { maps = true; }
  std::vector<ObservedMap> seen;

  void softmax(const AttentionCall& call, const Tensor& out, const Tensor& counted) override {
    HeadProbe::softmax(call, out, counted);
    const auto p = masked_softmax(call.scores(), call.allowed_keys());
    seen.push_back({.p = p, .a = p, .v = call.v, .out = out});
  }
  void weights(const ObservedMap& map, const HeadCall& call) override {
    HeadProbe::weights(map, call);
    seen.push_back(map);
  }
  // Whether the first map's outputs are its weights times the values: kinds may norm them.
  bool is_plain() const {
    const auto& map = seen.at(0);
    const auto sums = at::matmul(map.a, map.v);
    return sums.sizes() == map.out.sizes() && difference(sums, map.out) < 1e-11;
  }
};

// Windows that the law's layers are asked for; 0: none.
std::vector<int64_t> windows(const Subject& s) {
  return s.traits.windows ? std::vector<int64_t>{0, 3} : std::vector<int64_t>{0};
}

}  // namespace

TEST_CASE("every file and folder in variants/ registers the kind of its name", "[laws][variants]") {
  std::vector<std::string> stems(build::kVariantStems.begin(), build::kVariantStems.end());
  std::sort(stems.begin(), stems.end());
  REQUIRE(head_names() == stems);
}

TEST_CASE("y has the shape of x", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    REQUIRE(s.y(x, s.natural()).sizes() == x.sizes());
  });
}

TEST_CASE("rows of the map sum to one", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.rows_sum_to_one || !s.weighs_tokens()) return not_promised();
    const auto map = map_of(s, random({B, T, 20}), s.natural());
    REQUIRE(map.sizes() == at::IntArrayRef({B, 4, T, T}));
    REQUIRE(difference(map.sum(-1), at::ones({B, 4, T}, at::kDouble)) < 1e-12);
  });
}

TEST_CASE("causal hides the future", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.causal) return not_promised();
    const auto x = random({B, T, 20});
    for (int64_t t = 0; t + 1 < T; ++t) {
      auto other = x.clone();
      other.narrow(1, t + 1, T - t - 1).normal_();
      const auto before = s.y(x, causal()), after = s.y(other, causal());
      REQUIRE(difference(before.narrow(1, 0, t + 1), after.narrow(1, 0, t + 1)) < 1e-12);
      REQUIRE(difference(before.select(1, t + 1), after.select(1, t + 1)) > 1e-6);
    }
  });
}

TEST_CASE("a window hides what lies before it", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.causal) return not_promised();
    const int64_t further = s.traits.rows_before;
    const auto x = random({B, T + further, 20});
    if (!s.traits.windows) {
      REQUIRE_THROWS_WITH(s.y(x, causal(3)), Catch::Contains("this kind has no windows"));
      return;
    }
    auto other = x.clone();
    other.narrow(1, 0, 3).normal_();
    // With a window of 3 the last of 7 queries sees keys 4, 5, 6; query 4 still sees key 2.
    const auto before = s.y(x, causal(3)), after = s.y(other, causal(3));
    REQUIRE(difference(before.narrow(1, 5 + further, 2), after.narrow(1, 5 + further, 2)) < 1e-12);
    REQUIRE(difference(before.select(1, 4 + further), after.select(1, 4 + further)) > 1e-6);
    REQUIRE(difference(s.y(x, causal(T + further)), s.y(x, causal())) < 1e-12);
  });
}

TEST_CASE("padding changes no row that counts", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto ctx = s.widest();
    ctx.mask.key_length = ctx.mask.query_length = at::tensor({T, int64_t{4}});
    const auto x = random({B, T, 20});
    auto other = x.clone();
    other[1].narrow(0, 4, 3).normal_();
    const auto before = s.y(x, ctx), after = s.y(other, ctx);
    REQUIRE(difference(before[0], after[0]) < 1e-12);
    REQUIRE(difference(before[1].narrow(0, 0, 4), after[1].narrow(0, 0, 4)) < 1e-12);
    const auto alone = s.y(x.narrow(0, 1, 1).narrow(1, 0, 4), s.widest());
    REQUIRE(difference(before[1].narrow(0, 0, 4), alone[0]) < 1e-12);
  });
}

TEST_CASE("a bias moves what heads say, and is refused where a kind has none", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    const Alibi slopes(4, at::kDouble);
    auto biased = s.natural(), by_distance = s.natural();
    biased.bias = random({B, 4, T, T});
    by_distance.position_bias = &slopes;
    for (const auto& ctx : {biased, by_distance})
      if (s.traits.biases)
        REQUIRE(difference(s.y(x, ctx), s.y(x, s.natural())) > 1e-6);
      else
        REQUIRE_THROWS_WITH(s.y(x, ctx), Catch::Contains("this kind has no bias on its scores"));
  });
}

TEST_CASE("a mask hides keys: from single queries where a kind promises it", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto x = random({B, T, 20});
    auto ctx = s.widest();
    ctx.mask.allowed = at::ones({B, 1, 1, T}, at::kBool);
    ctx.mask.allowed.select(3, 0).fill_(false);
    const auto y = s.y(x, ctx);
    x.select(1, 0).normal_();
    const auto behind = 1 + s.traits.rows_before;  // they are made of no row that changed
    const auto rows = [&](const Tensor& of) { return of.narrow(1, behind, T - behind); };
    REQUIRE(difference(rows(s.y(x, ctx)), rows(y)) < 1e-12);
    ctx.mask.allowed = ctx.mask.allowed.repeat({1, 1, T, 1});
    ctx.mask.allowed.select(2, 4).copy_(at::arange(T) == 0);  // this one sees nothing else
    if (s.masks_pairs())
      REQUIRE(difference(s.y(x, ctx).select(1, 4), y.select(1, 4)) > 1e-6);
    else
      REQUIRE_THROWS_WITH(s.y(x, ctx), Catch::Contains("hides keys from all queries alike"));
  });
}

TEST_CASE("weights are over what the kind promises, and outputs are counted even without",
          "[laws]") {
  for_every_kind([](const Subject& s) {
    HeadProbe probe;
    probe.statistics = probe.maps = probe.head_outputs = true;
    auto ctx = s.widest();
    ctx.observer = &probe;
    ctx.mask.query_length = ctx.mask.key_length = at::tensor({T, int64_t{4}});
    s.heads->forward(random({B, T, 20}), ctx);
    const int64_t layer = s.shape.layer;
    REQUIRE(probe.layer_maps().contains(layer) == (s.traits.map != HeadMap::kNone));
    if (s.traits.map != HeadMap::kNone) {
      const auto map = probe.layer_maps().at(layer);
      REQUIRE(map.sizes().slice(0, 3) == at::IntArrayRef({B, 4, T}));
      REQUIRE((map.size(3) == T) == s.weighs_tokens());
    }
    const auto values = probe.values(layer);
    REQUIRE(std::isfinite(values.at("entropy").front()) == (s.traits.map != HeadMap::kNone));
    for (const double norm : values.at("output_norm")) REQUIRE(std::isfinite(norm));
    if (s.traits.map != HeadMap::kNone) return;
    const auto norms = probe.layer_outputs().at(layer).o.norm(2, -1);  // [B,H,T]
    const auto sums = norms[0].sum(-1) + norms[1].narrow(1, 0, 4).sum(-1);
    for (int64_t h = 0; h < 4; ++h)
      REQUIRE(values.at("output_norm")[h] == Approx(sums[h].item<double>() / (T + 4)));
  });
}

TEST_CASE("a row without any allowed key is the output bias and passes no gradient", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto ctx = s.widest();
    ctx.mask.allowed = at::ones({B, 1, T, T}, at::kBool);
    ctx.mask.allowed[0][0][2].fill_(false);
    if (!s.masks_pairs()) return not_promised();
    for (auto backend : {Backend::kEager, Backend::kAuto}) {
      ctx.backend = backend;
      auto x = random({B, T, 20}).requires_grad_();
      const auto y = s.y(x, ctx);
      auto bias = at::zeros({20}, at::kDouble);
      for (const auto& p : s.heads->named_parameters())
        if (p.key().ends_with("o.bias")) bias = p.value();
      REQUIRE(difference(y[0][2], bias) < 1e-12);
      y[0][2].sum().backward();
      REQUIRE(x.grad().abs().sum().item<double>() == 0);
    }
  });
}

TEST_CASE("evaluation is deterministic, dropout a function of the counter", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto shape = s.shape;
    shape.dropout = 0.3;
    auto heads = s.make(shape);
    const auto x = random({B, T, 20});
    REQUIRE(difference(heads->forward(x, s.natural()).y, heads->forward(x, s.natural()).y) == 0);
    heads->train();
    auto at_step = [&](uint64_t step) {
      auto ctx = s.natural();
      ctx.rng = {.seed = 5, .step = step};
      return heads->forward(x, ctx).y;
    };
    REQUIRE(difference(at_step(1), at_step(1)) == 0);
    if (s.traits.map != HeadMap::kNone)
      REQUIRE(difference(at_step(1), at_step(2)) > 1e-6);  // else what is dropped?
  });
}

// Tiles of keys that a query chooses are counted apart from those of the dense map.
TEST_CASE("every path drops the same weights", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (s.kind == "chosen_blocks") {
      SUCCEED("its blocks are counted apart");
      return;
    }
    auto shape = s.shape;
    shape.dropout = 0.3;
    const auto heads = s.make(shape);
    heads->train();
    const auto x = random({B, T, 20});
    const auto by = [&](Backend backend) {
      auto ctx = s.natural();
      ctx.rng = {.seed = 5, .step = 1};
      ctx.backend = backend;
      return gradients(*heads, x, ctx);
    };
    const auto want = by(Backend::kEager), got = by(Backend::kAuto);
    REQUIRE(relative_difference(got.y, want.y) < 1e-11);
    for (const auto& [name, gradient] : want.of) {
      INFO("gradient of " << name);
      REQUIRE(relative_difference(got.of.at(name), gradient) < 1e-9);
    }
  });
}

TEST_CASE("threads that run one layer at once do not disturb each other", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    s.heads->mask_heads({1});
    struct Seen {
      Tensor y;
      std::map<std::string, std::vector<double>> values;
    };
    const auto pass = [&](Seen& seen) {
      at::NoGradGuard no_grad;
      HeadProbe probe;
      probe.statistics = true;
      auto ctx = s.natural();
      ctx.observer = &probe;
      seen.y = s.heads->forward(x, ctx).y;
      seen.values = probe.values(s.shape.layer);
    };
    std::array<Seen, 4> all;
    std::vector<std::thread> threads;
    for (auto& seen : all) threads.emplace_back([&] { pass(seen); });
    for (auto& thread : threads) thread.join();
    Seen alone;
    pass(alone);
    for (const auto& seen : all) {
      REQUIRE(difference(seen.y, alone.y) == 0);
      REQUIRE(seen.values.size() == alone.values.size());
    }
  });
}

TEST_CASE("every parameter gets a finite gradient", "[laws]") {
  for_every_kind([](const Subject& s) {
    s.heads->train();
    auto out = s.heads->forward(random({B, T, 20}), s.natural());
    auto loss = (out.y * random({B, T, 20})).sum();
    for (const auto& aux : out.aux) loss = loss + aux.value;
    loss.backward();
    for (const auto& p : s.heads->named_parameters()) {
      INFO(p.key());
      REQUIRE(p.value().grad().defined());
      REQUIRE(p.value().grad().isfinite().all().item<bool>());
    }
  });
}

TEST_CASE("gradients agree with central differences", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto x = random({B, T, 20}).requires_grad_();
    const auto cotangent = random({B, T, 20});
    auto loss = [&] {
      auto out = s.heads->forward(x, s.natural());
      auto sum = (out.y * cotangent).sum();
      for (const auto& aux : out.aux) sum = sum + aux.value;
      return sum;
    };
    loss().backward();
    auto subjects = s.heads->named_parameters();
    subjects.insert("x", x);
    at::NoGradGuard no_grad;
    for (const auto& p : subjects) {
      INFO(p.key());
      const auto direction = random(p.value().sizes());
      const double slope = (p.value().grad() * direction).sum().item<double>(), step = 3e-6;
      p.value().add_(direction, step);
      const double above = loss().item<double>();
      p.value().add_(direction, -2 * step);
      const double below = loss().item<double>();
      p.value().add_(direction, step);
      REQUIRE((above - below) / (2 * step) == Approx(slope).epsilon(1e-6).margin(1e-7));
    }
  });
}

TEST_CASE("a batch of two is two batches of one", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({2, T, 20});
    const auto y = s.y(x, s.natural());
    REQUIRE(relative_difference(y.narrow(0, 0, 1), s.y(x.narrow(0, 0, 1), s.natural())) < 1e-12);
    REQUIRE(relative_difference(y.narrow(0, 1, 1), s.y(x.narrow(0, 1, 1), s.natural())) < 1e-12);
  });
}

TEST_CASE("decoding with the cache equals the parallel pass", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.traits.decodes) return not_promised();
    at::NoGradGuard no_grad;
    const auto x = random({B, 40, 20});
    const Rotary rotary;
    for (const int64_t window : windows(s)) {
      auto ctx = causal(window);
      if (s.traits.rotary) ctx.rotary = &rotary;
      const auto whole = s.y(x, ctx);
      LayerCache cache;
      ctx.cache = &cache;
      int64_t at = 0;
      for (int64_t chunk : std::array<int64_t, 6>{5, 1, 1, 9, 1, 23}) {
        const auto y = s.y(x.narrow(1, at, chunk), ctx);
        INFO("window " << window << ", places " << at << " to " << at + chunk - 1);
        REQUIRE(relative_difference(y, whole.narrow(1, at, chunk)) < 1e-12);
        at += chunk;
      }
      REQUIRE(cache.length() == 40);
    }
  });
}

TEST_CASE("cross-attention reads a memory of another length", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    HeadContext ctx;
    ctx.memory = random({B, 5, 20});
    if (!s.traits.cross) {
      REQUIRE_THROWS_WITH(s.y(x, ctx), Catch::Contains("no cross-attention"));
      return;
    }
    const auto y = s.y(x, ctx);
    REQUIRE(y.sizes() == x.sizes());
    ctx.mask.key_length = at::tensor({int64_t{5}, int64_t{3}});
    const auto padded = s.y(x, ctx);
    auto other = ctx;
    other.memory = ctx.memory.clone();
    other.memory[1].narrow(0, 3, 2).normal_();
    REQUIRE(relative_difference(padded, s.y(x, other)) < 1e-12);
    other.memory[1][0].normal_();
    REQUIRE(difference(padded[1], s.y(x, other)[1]) > 1e-6);
    if (s.traits.decodes) {  // keys and values of the memory are computed once
      LayerCache cache;
      other = ctx;
      other.cache = &cache;
      REQUIRE(relative_difference(s.y(x.narrow(1, 0, 3), other), padded.narrow(1, 0, 3)) < 1e-12);
      REQUIRE(relative_difference(s.y(x.narrow(1, 3, 4), other), padded.narrow(1, 3, 4)) < 1e-12);
    }
    ctx.mask.causal = true;
    REQUIRE_THROWS_WITH(s.y(x, ctx), Catch::Contains("together with a memory"));
  });
}

TEST_CASE("the eager path and torch's fused path agree", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    auto ctx = s.natural();
    if (s.traits.biases) ctx.bias = random({B, 1, T, T});
    if (s.masks_pairs()) ctx.mask.allowed = at::rand({B, 4, T, T}) < 0.7;
    ctx.backend = Backend::kEager;
    const auto eager = s.y(x, ctx);
    ctx.backend = Backend::kAuto;
    REQUIRE(relative_difference(eager, s.y(x, ctx)) < 1e-12);
  });
}

// With the sums that autocast makes in bfloat16, as a GPU trains by default.
TEST_CASE("half precision is close to float32, on every path", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto shape = s.shape;
    for (const double dropout : {0.0, 0.3}) {
      shape.dropout = dropout;
      const auto heads = s.make(shape);
      heads->to(at::kFloat);
      heads->train();
      for (const auto backend : {Backend::kAuto, Backend::kEager}) {
        INFO("dropout " << dropout << ", backend " << static_cast<int>(backend));
        auto ctx = s.widest();
        ctx.backend = backend;
        ctx.rng.seed = 1;  // both passes drop the same
        ctx.mask.key_length = at::tensor({T, int64_t{4}});
        const auto x = random({B, T, 20}).to(at::kFloat).requires_grad_();
        const auto want = s.weighs_tokens() ? heads->forward(x, ctx).y : Tensor();
        const auto y = [&] {
          Autocast half(at::kCPU, /*bf16=*/true);
          return heads->forward(x, ctx).y;
        }();
        if (want.defined())
          REQUIRE((y.to(at::kFloat) - want).norm().item<double>() <
                  0.2 * want.norm().item<double>());
        y.sum().backward();
        REQUIRE(x.grad().isfinite().all().item<bool>());
      }
    }
  });
}

TEST_CASE("a probe changes no output", "[laws]") {
  for_every_kind([](const Subject& s) {
    const auto x = random({B, T, 20});
    auto ctx = s.natural();
    const auto plain = s.y(x, ctx);
    HeadProbe probe;
    probe.statistics = probe.maps = true;
    ctx.observer = &probe;
    REQUIRE(difference(plain, s.y(x, ctx)) == 0);
  });
}

TEST_CASE("a kind reports the statistics and losses that it declares", "[laws]") {
  for_every_kind([](const Subject& s) {
    HeadProbe probe;
    probe.statistics = true;
    probe.classes = at::arange(B * T, at::kByte).remainder(4).view({B, T});
    auto ctx = s.natural();
    ctx.observer = &probe;
    s.heads->train();
    auto before = s.shape;  // some statistics compare a layer with the one before
    before.layer -= 1;
    s.make(before)->forward(random({B, T, 20}), ctx);
    const auto out = s.heads->forward(random({B, T, 20}), ctx);
    std::set<std::string> declared, reported, losses;
    for (const auto& own : s.heads->statistics()) {
      declared.insert(own.name);
      INFO(own.name);
      const auto values = probe.values(s.shape.layer).at(own.name);
      REQUIRE(std::ssize(values) == value_count(own.per, 4, own.experts));
      // Causal heads have no next token, in no map.
      const std::string name = own.name;
      const auto is_known = [](const std::vector<double>& of) {
        return std::any_of(of.begin(), of.end(), [](double v) { return std::isfinite(v); });
      };
      const bool none = name == name_of_map("next_token", 1);
      REQUIRE(is_known(values) == !none);
    }
    for (const auto& [name, values] : probe.values(s.shape.layer)) reported.insert(name);
    for (const auto& of_all : statistic_table()) reported.erase(of_all.name);
    REQUIRE(reported == declared);
    for (const auto& aux : out.aux) losses.insert(aux.name);
    const auto names = s.heads->aux_names();
    REQUIRE(losses == std::set<std::string>(names.begin(), names.end()));
  });
}

// Mode uniform of ablate. A kind whose weights are not over tokens has no keys to weigh alike, and
// says so by its trait.
TEST_CASE("heads that are made uniform weigh the keys that they may see by 1 / n", "[laws]") {
  for_every_kind([](const Subject& s) {
    if (!s.weighs_tokens()) return not_promised();
    auto ctx = s.natural();
    if (s.traits.biases) ctx.bias = random({B, 1, T, T});
    if (s.masks_pairs()) ctx.mask.allowed = at::rand({B, 1, T, T}) < 0.8;
    const auto x = random({B, T, 20});
    const auto pass = [&](const Tensor& uniform, Backend backend) {
      auto own = ctx;
      own.uniform = uniform, own.backend = backend;
      MapWatcher watcher;
      own.observer = &watcher;
      const auto y = s.y(x, own);
      return std::pair(y, watcher);
    };
    const auto alike = [](const Tensor& keys) {
      const auto weights = keys.to(at::kDouble);
      return weights / weights.sum(-1, true).clamp_min(1);
    };
    const auto of_mask = alike(allowed_keys(ctx.mask, T, T, at::kCPU).expand({B, 1, T, T}));
    const auto second = at::arange(4) == 2, all = at::ones({4}, at::kBool);
    for (const auto backend : {Backend::kAuto, Backend::kEager}) {
      const auto [y, plain] = pass({}, backend);
      REQUIRE_FALSE(plain.seen.empty());
      for (const auto& uniform : {second, all}) {
        const auto [other_y, other] = pass(uniform, backend);
        for (size_t m = 0; m < other.seen.size(); ++m)
          for (int64_t h = 0; h < 4; ++h) {
            INFO("map " << m << ", head " << h);
            const auto p = other.seen[m].p.select(1, h), was = plain.seen.at(m).p.select(1, h);
            // Without masks of pairs a kind may choose by content which keys a query sees.
            if (uniform[h].item<bool>())
              REQUIRE(difference(p, s.masks_pairs() ? of_mask.select(1, 0) : alike(was > 0)) <
                      1e-12);
            else if (s.traits.independent)
              REQUIRE(difference(p, was) < 1e-12);
          }
        REQUIRE(other.is_plain() == plain.is_plain());  // its outputs follow the weights
        REQUIRE(difference(y, other_y) > 1e-6);
      }
    }
  });
}

TEST_CASE("wrong shapes are refused by size", "[laws]") {
  for_every_kind([](const Subject& s) {
    auto ctx = s.widest();
    REQUIRE_THROWS_WITH(s.y(random({B, T, 19}), ctx), Catch::Contains("x must be [B, T, 20]"));
    if (s.traits.biases) {
      ctx.bias = random({B, 3, T, T});
      REQUIRE_THROWS_WITH(s.y(random({B, T, 20}), ctx), Catch::Contains("does not broadcast"));
    }
    ctx = s.widest();
    ctx.gates = random({B, 4, T + 1});
    REQUIRE_THROWS_WITH(s.y(random({B, T, 20}), ctx), Catch::Contains("gates"));
    ctx = s.widest();
    ctx.mask.window = -1;
    REQUIRE_THROWS_WITH(s.y(random({B, T, 20}), ctx), Catch::Contains("window must be at least 0"));
  });
}

}  // namespace headlab::test_laws
