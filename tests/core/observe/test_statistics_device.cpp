// What the CUDA kernels compute, on lanes emulated by the CPU, against the CPU's own kernels; and
// on a GPU, where there is one.
#include <torch/cuda.h>

#include <array>
#include <iostream>
#include <limits>

#include "core/attention/call/attention_call.h"
#include "core/heads.h"
#include "core/kernels/row_stats_lanes.h"
#include "core/observe/row_stream.h"
#include "core/torch.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_statistics_device {
using namespace testing;

namespace {

// Lanes that take turns, joined in the order of a warp's butterfly.
template <int kLanes>
struct SerialLanes {
  template <class T>
  using Total = T;
  bool leader() const { return true; }
  template <class Step>
  void each(int64_t first, int64_t last, Step step) const {
    for (int64_t j = first; j <= last; ++j) step(j);
  }
  template <class R, class Step>
  R reduce(int64_t first, int64_t last, R zero, Step step) const {
    std::array<R, kLanes> lanes;
    lanes.fill(zero);
    for (int64_t j = first; j <= last; ++j) step(lanes[(j - first) % kLanes], j);
    for (int by = kLanes / 2; by > 0; by /= 2)
      for (int lane = 0; lane < by; ++lane) lanes[lane].join(lanes[lane + by]);
    return lanes[0];
  }
};

struct Problem {
  Tensor q, k, v;
  CountedRows counted;
  HeadContext ctx;
  std::shared_ptr<Alibi> alibi;

  // Masks, windows, lengths, grouped heads, biases, tokens and classes come and go with the seed.
  explicit Problem(int seed) {
    torch::manual_seed(seed);
    const bool cross = seed % 5 == 4;
    const int64_t B = 1 + seed % 3, Hkv = 1 + seed % 2, H = Hkv * (1 + seed % 3);
    const int64_t T = 3 + 37 * seed % 151, S = cross ? T + 4 : T + 2 * (seed % 2);
    const int64_t d = 1 + seed % 19, e = 1 + seed % 23;
    q = random({B, T, H, d}).transpose(1, 2);
    k = random({B, S, Hkv, d}).transpose(1, 2);
    v = random({B, S, Hkv, e}).transpose(1, 2);
    counted.out = random({B, H, T, e});
    counted.output_weight = seed % 6 ? random({17, H * e}) : Tensor();
    counted.matches = true;
    counted.has_scores = seed % 10 != 9;
    if (cross) ctx.memory = random({B, S, 3});
    ctx.mask.causal = !cross && seed % 2;
    if (!cross && seed % 4 == 3) ctx.mask.window = 1 + seed % 11;
    if (!cross && seed % 8 == 2) ctx.mask.window = 1 + seed % 7;
    if (seed % 3 == 1) ctx.mask.key_length = at::randint(1, S + 1, {B}, at::kLong);
    if (seed % 3 == 1) ctx.mask.query_length = at::randint(1, T + 1, {B}, at::kLong);
    if (seed % 4 == 2) ctx.mask.allowed = at::rand({B, 1, T, S}) < 0.6;
    if (seed % 7 == 3) ctx.mask.allowed = at::rand({1, H, T, S}) < 0.2;
    if (seed % 5 == 2) ctx.bias = random({1, H, T, S});
    if (!cross && seed % 6 == 5) alibi = std::make_shared<Alibi>(H, at::kDouble);
    ctx.position_bias = alibi.get();
    if (seed % 2) counted.tokens = at::randint(0, 5, {B, S}, at::kLong);
    if (seed % 3) counted.classes = at::randint(0, 4, {B, S}, at::kByte);
  }

  AttentionCall call() const { return {q, k, v, HeadCall::from_context(ctx), 0.7}; }
  RowSlots slots(SampledRows sampled = {}) const { return stream_rows(call(), counted, sampled); }
  void change(const at::TensorOptions& options) {
    for (auto* t : {&q, &k, &v, &counted.out, &counted.output_weight})
      if (t->defined()) *t = t->to(options);
  }
};

struct Slot {
  std::vector<double> sums, counts, maxima;
  std::vector<int32_t> offsets;
  Slot()
      : sums(kRowStatistics),
        counts(kRowStatistics),
        maxima(kRowMaxima, -std::numeric_limits<double>::infinity()),
        offsets(kRowsPerSlot, kNoRow) {}
};

template <class T, class Lanes>
Slot lane_slot(const RowProblem<T>& p, int64_t slot) {
  Slot to;
  std::vector<T> z(p.keys);
  const int64_t blocks = row_slots(p) / (p.B * p.H), begin = slot % blocks * kRowsPerSlot;
  for (int64_t i = begin; i < std::min(begin + kRowsPerSlot, p.queries); ++i)
    to.offsets[i - begin] =
        count_row(Lanes(), scored_row(p, slot / (p.H * blocks), slot / blocks % p.H, i, z.data()),
                  RowTotals{to.sums.data(), to.counts.data(), to.maxima.data()});
  return to;
}

// The divergence of every pair at query row i of example b; NaN where a head does not count it.
template <class T, class Lanes>
std::vector<double> lane_divergence(const RowProblem<T>& p, int64_t b, int64_t i) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> entropy, js(p.H * p.H, nan);
  std::vector<std::vector<T>> weights(p.H, std::vector<T>(p.keys));
  for (int64_t h = 0; h < p.H; ++h)
    entropy.push_back(weigh_keys(Lanes(), scored_row(p, b, h, i, weights[h].data())));
  for (int64_t h = 0; h < p.H; ++h)
    for (int64_t g = 0; g < p.H; ++g)
      if (entropy[h] >= 0 && entropy[g] >= 0)
        js[h * p.H + g] =
            mixture_entropy(Lanes(), weights[h].data(), weights[g].data(), key_span(p, b, i)) -
            (entropy[h] + entropy[g]) / 2;
  return js;
}

template <class Got, class Want>
void require_near(const Got& got, const Want& want, int64_t n, double tolerance) {
  for (int64_t i = 0; i < n; ++i) {
    INFO("number " << i);
    if (std::isinf(want[i]))
      REQUIRE(got[i] == want[i]);
    else
      REQUIRE(got[i] == Approx(want[i]).epsilon(tolerance).margin(tolerance));
  }
}

// `close` of one row or value; a slot sums kRowsPerSlot rows.
template <class T, class Lanes>
void compare_with_cpu(const Problem& problem, double close) {
  const auto want = problem.slots({.start = 0, .stride = 1});
  auto rows = hold_rows<T>(problem.call(), problem.counted, at::kCPU);
  const auto& p = rows.problem;
  for (int64_t slot = 0; slot < row_slots(p); ++slot) {
    INFO("slot " << slot);
    const auto got = lane_slot<T, Lanes>(p, slot);
    require_near(got.counts, want.counts + slot * kRowStatistics, kRowStatistics, 0);
    require_near(got.sums, want.sums + slot * kRowStatistics, kRowStatistics, close);
    require_near(got.maxima, want.maxima + slot * kRowMaxima, kRowMaxima, close);
    for (int64_t r = 0; r < kRowsPerSlot; ++r)
      REQUIRE(got.offsets[r] == want.offsets[slot * kRowsPerSlot + r]);
  }
  for (int64_t b = 0; b < p.B; ++b) {
    const int64_t length = p.query_length ? p.query_length[b] : p.queries;
    for (int64_t group = 0; group < want.groups; ++group) {
      std::vector<double> sums(p.H * p.H), counts(p.H * p.H);
      const int64_t first = group * kJsRowsPerSlot;
      for (int64_t i = first; i < std::min(first + kJsRowsPerSlot, length); ++i) {
        const auto js = lane_divergence<T, Lanes>(p, b, i);
        for (size_t n = 0; n < js.size(); ++n)
          if (!std::isnan(js[n])) sums[n] += js[n], counts[n] += 1;
      }
      const int64_t at = (b * want.groups + group) * p.H * p.H;
      require_near(counts, want.js_counts + at, p.H * p.H, 0);
      require_near(sums, want.js + at, p.H * p.H, close);
    }
  }
}

}  // namespace

TEST_CASE("lanes that share a row compute what the CPU's kernels compute", "[statistics]") {
  for (int seed = 0; seed < 24; ++seed) {
    INFO("seed " << seed);
    Problem problem(seed);
    compare_with_cpu<double, SerialLanes<1>>(problem, 1e-10);
    compare_with_cpu<double, SerialLanes<32>>(problem, 1e-10);
    problem.change(at::kFloat);
    compare_with_cpu<float, SerialLanes<32>>(problem, 1e-5);
  }
}

TEST_CASE("rows with a score that is no number do not count", "[statistics]") {
  Problem problem(0);
  problem.q[0][0][1].fill_(std::numeric_limits<double>::quiet_NaN());
  const auto slots = problem.slots();
  REQUIRE(slots.offsets[0] != kNoRow);
  REQUIRE(slots.offsets[1] == kNoRow);
  REQUIRE(slots.counts[kEntropy] == static_cast<double>(problem.q.size(2) - 1));
  compare_with_cpu<double, SerialLanes<32>>(problem, 1e-10);
}

TEST_CASE("nothing is said of scores that stand for weights", "[statistics]") {
  Problem problem(0);
  problem.counted.has_scores = false;
  auto slots = problem.slots();
  REQUIRE(slots.counts[kLse] == 0);
  REQUIRE(slots.maxima[kMaxLogit] == -std::numeric_limits<double>::infinity());
  problem.counted.has_scores = true;
  slots = problem.slots();
  REQUIRE(slots.counts[kLse] == slots.counts[kEntropy]);
  REQUIRE(std::isfinite(slots.maxima[kMaxLogit]));
}

TEST_CASE("a GPU counts what the CPU counts", "[statistics]") {
  if (!torch::cuda::is_available()) {
    testing::skip("no GPU here, or none built for");
    return;
  }
  for (int seed = 0; seed < 48; ++seed) {
    INFO("seed " << seed);
    Problem problem(seed);
    const auto want = problem.slots({.start = 1, .stride = 3});
    problem.change(at::kCUDA);
    const auto got = problem.slots({.start = 1, .stride = 3});
    const auto again = problem.slots({.start = 1, .stride = 3});
    REQUIRE(at::equal(got.memory.view(at::kLong), again.memory.view(at::kLong)));
    const int64_t slots = want.count();
    for (auto part : {&RowSlots::sums, &RowSlots::counts})
      require_near(got.*part, want.*part, slots * kRowStatistics, 1e-10);
    require_near(got.maxima, want.maxima, slots * kRowMaxima, 1e-10);
    for (auto part : {&RowSlots::js, &RowSlots::js_counts})
      require_near(got.*part, want.*part, want.B * want.groups * want.H * want.H, 1e-10);
    for (int64_t r = 0; r < slots * kRowsPerSlot; ++r) REQUIRE(got.offsets[r] == want.offsets[r]);
  }
}

}  // namespace headlab::test_statistics_device
