// The streamed statistics against the materialised formulas, closed forms and the authors' numbers.
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "experiments/analysis/maps/patterns.h"
#include "experiments/models/named_tensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/isa_testing.h"

namespace headlab::test_statistics {
using namespace testing;

namespace {

struct Inputs {
  Tensor q, k, v, weight;
  HeadCall ctx = HeadCall::from_context({});
  HeadProbe probe;
  double scale = 0.7;

  Inputs(int64_t B, int64_t H, int64_t Hkv, int64_t T, int64_t S, int64_t d, int64_t e) {
    q = random({B, H, T, d});
    k = random({B, Hkv, S, d});
    v = random({B, Hkv, S, e});
    weight = random({17, H * e});
    probe.statistics = true;
    probe.matches = true;
    probe.js_stride = 1;
    ctx.positions = at::arange(T);
  }
  void stream() {
    probe.reset();
    enter(probe);
    ctx.observer = &probe;
    attend(q, k, v, ctx, scale);
  }
  void enter(HeadProbe& watching) const {
    std::vector<int64_t> ids(q.size(1));
    for (size_t h = 0; h < ids.size(); ++h) ids[h] = h;
    watching.enter({.heads = q.size(1),
                    .head_ids = ids,
                    .alive = std::vector<bool>(ids.size(), true),
                    .output_weight = weight});
  }
  std::map<std::string, std::vector<double>> streamed() {
    stream();
    return probe.values(0);
  }
  Tensor map() const {
    const int64_t T = q.size(2), S = k.size(2);
    return masked_softmax(scores(q, k, ctx, scale), allowed_keys(ctx.mask, T, S, at::kCPU));
  }
  std::map<std::string, std::vector<double>> materialised() const {
    const int64_t T = q.size(2), S = k.size(2), H = q.size(1);
    MapContext context;
    context.allowed = allowed_keys(ctx.mask, T, S, at::kCPU);
    context.query_length = ctx.mask.query_length;
    context.key_length = ctx.mask.key_length;
    context.causal = ctx.mask.causal;
    context.cross = !ctx.places;
    context.tokens = probe.tokens;
    context.classes = probe.classes;
    auto unobserved = ctx;
    unobserved.observer = nullptr;
    context.scores = scores(q, k, ctx, scale);
    context.value_norm = value_norms(repeat_kv(v, ctx.kv_map, H), weight);
    context.output = attend(q, k, v, unobserved, scale);
    HeadSums sums(H);
    add_patterns(sums, map(), context);
    return head_values(sums);
  }
};

void require_equal(const std::map<std::string, std::vector<double>>& got,
                   const std::map<std::string, std::vector<double>>& want, double tolerance) {
  for (const auto& [name, values] : want)
    for (size_t i = 0; i < values.size(); ++i) {
      INFO(name << "[" << i << "]");
      if (std::isnan(values[i]))
        REQUIRE(std::isnan(got.at(name)[i]));
      else
        REQUIRE(got.at(name)[i] == Approx(values[i]).epsilon(tolerance).margin(tolerance));
    }
}

// One head of T positions that puts almost all its weight where `target(i)` says.
Inputs pointing_head(int64_t T, const std::function<int64_t(int64_t)>& target) {
  Inputs in(1, 1, 1, T, T, 2, 2);
  in.q.zero_();
  in.ctx.bias = at::zeros({1, 1, T, T}, at::kDouble);
  for (int64_t i = 0; i < T; ++i) in.ctx.bias[0][0][i][target(i)] = 1000;
  return in;
}

}  // namespace

TEST_CASE("a uniform causal head has its closed forms", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  Inputs in(1, 1, 1, 64, 64, 4, 4);
  in.q.zero_();
  in.ctx.mask.causal = true;
  auto s = in.streamed();
  REQUIRE(s["entropy"][0] == Approx(3.205753).margin(5e-7));
  REQUIRE(s["entropy_normalized"][0] == Approx(1));
  REQUIRE(s["mean_distance"][0] == Approx(15.75));
  REQUIRE(s["signed_offset"][0] == Approx(-15.75));
  REQUIRE(s["participation_ratio"][0] == Approx(32.5));
  REQUIRE(s["positional_share"][0] == Approx(1. / 64));
  REQUIRE(std::isnan(s["next_token"][0]));
  REQUIRE(s["max_logit"][0] == 0);
  REQUIRE(s["lse"][0] == Approx(s["entropy"][0]));  // row i: ln(i+1)
}

TEST_CASE("heads that point somewhere have their closed forms", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  auto previous =
      pointing_head(16, [](int64_t i) { return std::max<int64_t>(i - 1, 0); }).streamed();
  REQUIRE(previous["prev_token"][0] == Approx(1));
  REQUIRE(previous["entropy"][0] == Approx(0).margin(1e-12));
  REQUIRE(previous["positional_share"][0] == Approx(15. / 16));
  REQUIRE(previous["positional_offset"][0] == -1);
  REQUIRE(previous["mean_distance"][0] == Approx(15. / 16));
  REQUIRE(previous["participation_ratio"][0] == Approx(1));
  REQUIRE(previous["max_logit"][0] == 1000);
  REQUIRE(previous["lse"][0] == 1000);

  auto identity = pointing_head(16, [](int64_t i) { return i; }).streamed();
  REQUIRE(identity["self_token"][0] == Approx(1));
  REQUIRE(identity["mean_distance"][0] == Approx(0).margin(1e-12));
  REQUIRE(identity["positional_share"][0] == 1);

  auto first = pointing_head(16, [](int64_t) { return 0; }).streamed();
  REQUIRE(first["first_token"][0] == Approx(1));
  REQUIRE(first["sink_rate"][0] == 1);
  REQUIRE(first["mean_distance"][0] == Approx(7.5));
  REQUIRE(first["offset_variance"][0] == Approx(0).margin(1e-9));

  const std::vector<int64_t> permutation{3, 0, 7, 6, 1, 5, 2, 4};
  auto permuted = pointing_head(8, [&](int64_t i) { return permutation[i]; }).streamed();
  REQUIRE(permuted["max_weight"][0] == Approx(1));
  REQUIRE(permuted["mean_distance"][0] == Approx((3 + 1 + 5 + 3 + 3 + 0 + 4 + 3) / 8.));
  REQUIRE(permuted["signed_offset"][0] == Approx(0).margin(1e-12));
}

TEST_CASE("an induction head and a duplicate-token head score one", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  auto tokens = at::cat({at::randperm(20), at::arange(0)}).to(at::kLong);
  tokens = at::cat({tokens, tokens}).unsqueeze(0);
  auto induction = pointing_head(40, [](int64_t i) { return i >= 20 ? i - 19 : 0; });
  induction.ctx.mask.causal = true;
  induction.probe.tokens = tokens;
  REQUIRE(induction.streamed()["induction"][0] == Approx(1));
  auto duplicate = pointing_head(40, [](int64_t i) { return i >= 20 ? i - 20 : 0; });
  duplicate.ctx.mask.causal = true;
  duplicate.probe.tokens = tokens;
  REQUIRE(duplicate.streamed()["duplicate_token"][0] == Approx(1));
}

TEST_CASE("streamed statistics equal the materialised ones", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  for (int seed = 0; seed < 40; ++seed) {
    torch::manual_seed(seed);
    const bool cross = seed % 5 == 4;
    const int64_t B = 1 + seed % 3, Hkv = 1 + seed % 2, H = Hkv * (1 + seed % 3);
    const int64_t T = 3 + 37 * seed % 101, S = cross ? T + 4 : T;
    Inputs in(B, H, Hkv, T, S, 1 + seed % 19, 1 + seed % 23);
    in.ctx.places = !cross;
    if (!cross && seed % 2) in.ctx.mask.causal = true;
    if (!cross && seed % 4 == 3) in.ctx.mask.window = 1 + seed % 11;
    if (seed % 3 == 1) in.ctx.mask.key_length = at::randint(1, S + 1, {B}, at::kLong);
    if (seed % 3 == 1)
      in.ctx.mask.query_length =
          cross ? at::randint(1, T + 1, {B}, at::kLong) : in.ctx.mask.key_length;
    if (seed % 4 == 2) in.ctx.mask.allowed = at::rand({B, 1, T, S}) < 0.6;
    if (seed % 7 == 3) in.ctx.mask.allowed = at::rand({1, H, T, S}) < 0.6;
    if (seed % 5 == 2) in.ctx.bias = random({1, H, T, S});
    const Alibi alibi(H, at::kDouble);
    if (!cross && seed % 6 == 5) in.ctx.position_bias = &alibi;
    if (seed % 2) in.probe.tokens = at::randint(0, 5, {B, S}, at::kLong);
    if (seed % 3) in.probe.classes = at::randint(0, 4, {B, S}, at::kByte);
    INFO("seed " << seed);
    require_equal(in.streamed(), in.materialised(), 1e-9);
    // float32 within 1e-5, as training computes them
    for (auto* t : {&in.q, &in.k, &in.v, &in.weight}) *t = t->to(at::kFloat);
    auto got = in.streamed(), want = in.materialised();
    for (const char* counting : {"positional_share", "positional_offset", "argmax_distance"}) {
      got.erase(counting), want.erase(counting);  // ties within rounding may go either way
    }
    require_equal(got, want, 1e-5);
  }
}

TEST_CASE("statistics pool over batches, padding and order", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  Inputs in(4, 2, 2, 9, 9, 5, 5);
  in.ctx.mask.causal = true;
  in.probe.tokens = at::randint(0, 4, {4, 9}, at::kLong);
  const auto whole = in.streamed();
  auto halves = in;
  halves.probe.reset();
  halves.ctx.observer = &halves.probe;
  for (int64_t first : {2, 0}) {
    in.enter(halves.probe);
    halves.probe.tokens = in.probe.tokens.narrow(0, first, 2);
    attend(in.q.narrow(0, first, 2), in.k.narrow(0, first, 2), in.v.narrow(0, first, 2), halves.ctx,
           in.scale);
  }
  require_equal(halves.probe.values(0), whole, 1e-12);
}

TEST_CASE("one thread and two give the same bits", "[statistics]") {
  Inputs in(3, 4, 2, 130, 130, 16, 16);
  for (auto* t : {&in.q, &in.k, &in.v, &in.weight}) *t = t->to(at::kFloat);
  in.ctx.mask.causal = true;
  in.probe.tokens = at::randint(0, 9, {3, 130}, at::kLong);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = in.streamed();
  at::set_num_threads(2);
  const auto two = in.streamed();
  at::set_num_threads(threads);
  for (const auto& [name, values] : one)
    for (size_t i = 0; i < values.size(); ++i) {
      INFO(name);
      REQUIRE(std::bit_cast<uint64_t>(values[i]) == std::bit_cast<uint64_t>(two.at(name)[i]));
    }
}

TEST_CASE("sampled rows estimate the divergence of all rows", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  Inputs in(32, 3, 3, 48, 48, 4, 4);
  in.ctx.mask.causal = true;
  const auto all = in.streamed()["js"];
  in.probe.js_stride = 16;
  std::vector<double> mean(9);
  for (uint64_t step = 0; step < 32; ++step) {
    in.ctx.rng = {.seed = 1, .step = step};
    const auto sampled = in.streamed()["js"];
    for (int i = 0; i < 9; ++i) mean[i] += sampled[i] / 32;
  }
  for (int i = 0; i < 9; ++i) REQUIRE(mean[i] == Approx(all[i]).epsilon(0.05).margin(1e-12));
}

TEST_CASE("pruned heads are NaN and keep their place", "[statistics]") {
  HEADLAB_WITH_EVERY_ISA;
  auto heads = make_layer("mha", small_shape());
  heads->mask_heads({1, 2});
  auto sliced = heads->slice();
  const auto x = random({2, 7, 20});
  std::map<std::string, std::vector<double>> values[2];
  for (int n = 0; n < 2; ++n) {
    HeadProbe probe;
    probe.statistics = true;
    auto ctx = causal();
    ctx.observer = &probe;
    (n ? sliced : heads)->forward(x, ctx);
    values[n] = probe.values(1);
  }
  require_equal(values[1], values[0], 1e-12);
  REQUIRE(std::isnan(values[1]["entropy"][1]));
  REQUIRE(values[1]["entropy"][3] > 0);
}

TEST_CASE("the materialised formulas give the authors' numbers", "[statistics][golden]") {
  const auto folder = std::filesystem::path(build::kSourceDir) / "tests/golden/statistics";
  for (const char* file : {"fixtures_causal", "random_causal", "random_cross", "sentences"}) {
    std::map<std::string, std::string> metadata;
    const auto tensors = read_tensors(folder / (std::string(file) + ".safetensors"), &metadata);
    auto find = [&](const char* name) {
      auto found = tensors.find(name);
      return found == tensors.end() ? Tensor() : found->second;
    };
    const auto attention = tensors.at("in.attention");  // [L,B,H,T,S]
    MapContext context;
    context.causal = metadata["causal"] == "true";
    context.cross = find("in.key_length").defined();
    context.query_length = find("in.length");
    context.key_length = context.cross ? find("in.key_length") : context.query_length;
    context.tokens = find("in.tokens");
    context.classes = find("in.class");
    int judged = 0;
    for (int64_t layer = 0; layer < attention.size(0); ++layer) {
      HeadSums sums(attention.size(2));
      add_patterns(sums, attention[layer], context);
      auto values = head_values(sums);
      for (const auto& [name, value] : values) {
        const auto want = find(("out." + name).c_str());
        if (!want.defined() || name == "js") continue;
        for (int64_t h = 0; h < sums.heads; ++h) {
          const double expected = want[layer][h].item<double>();
          INFO(file << " " << name << " layer " << layer << " head " << h);
          ++judged;
          if (std::isnan(expected))
            REQUIRE(std::isnan(value[h]));
          else
            REQUIRE(value[h] == Approx(expected).epsilon(1e-9).margin(1e-10));
        }
      }
      const auto js = find("out.js");
      const int64_t H = sums.heads;
      for (int64_t h = 0; h < H; ++h)
        for (int64_t g = 0; g < H; ++g)
          REQUIRE(
              values["js"][h * H + g] ==
              Approx(js[layer * H + h][layer * H + g].item<double>()).epsilon(1e-9).margin(1e-10));
    }
    REQUIRE(judged > 0);
  }
}

}  // namespace headlab::test_statistics
