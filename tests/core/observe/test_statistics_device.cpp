// What the CUDA kernels compute, with warps that a CPU runs one after the other, against the CPU's
// own kernels; and on a GPU, where there is one.
#include <torch/cuda.h>

#include <iostream>
#include <limits>

#include "core/attention/call/attention_call.h"
#include "core/heads.h"
#include "core/kernels/stats_slots.h"
#include "core/observe/row_stream.h"
#include "core/torch.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/serial_team.h"

namespace headlab::test_statistics_device {
using namespace testing;

namespace {

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

// Room that nothing has written to.
template <class T>
std::vector<T> poisoned(int64_t n) {
  return std::vector<T>(n, std::numeric_limits<T>::quiet_NaN());
}

template <class T>
Slot serial_slot(const SerialTeam<T>& team, const RowProblem<T>& p, int64_t slot) {
  Slot to;
  auto room = poisoned<T>(stats_room<SerialTeam<T>>(p));
  ColumnTotals totals;
  stats_slot(team, p, slot, {to.sums.data(), to.counts.data(), to.maxima.data()}, to.offsets.data(),
             totals, room.data());
  return to;
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
template <class T>
void compare_with_cpu(const Problem& problem, const SerialTeam<T>& team, double close) {
  const auto want = problem.slots({.start = 0, .stride = 1});
  auto rows = hold_rows<T>(problem.call(), problem.counted, at::kCPU);
  const auto& p = rows.problem;
  for (int64_t slot = 0; slot < row_slots(p); ++slot) {
    INFO("slot " << slot);
    const auto got = serial_slot(team, p, slot);
    require_near(got.counts, want.counts + slot * kRowStatistics, kRowStatistics, 0);
    require_near(got.sums, want.sums + slot * kRowStatistics, kRowStatistics, close);
    require_near(got.maxima, want.maxima + slot * kRowMaxima, kRowMaxima, close);
    for (int64_t r = 0; r < kRowsPerSlot; ++r)
      REQUIRE(got.offsets[r] == want.offsets[slot * kRowsPerSlot + r]);
  }
  std::vector<double> entropy(kMostHeads * kJsRowsPerSlot);
  for (int64_t n = 0; n < p.B * want.groups; ++n) {
    std::vector<double> sums(p.H * p.H), counts(p.H * p.H);
    auto room = poisoned<T>(divergence_room(p));
    divergence_slot(team, p, n / want.groups, n % want.groups * kJsRowsPerSlot, 1, sums.data(),
                    counts.data(), entropy.data(), room.data());
    require_near(counts, want.js_counts + n * p.H * p.H, p.H * p.H, 0);
    require_near(sums, want.js + n * p.H * p.H, p.H * p.H, close);
  }
}

}  // namespace

TEST_CASE("warps compute what the CPU's kernels compute, in any order the same bits",
          "[statistics]") {
  for (int seed = 0; seed < 24; ++seed) {
    INFO("seed " << seed);
    Problem problem(seed);
    const auto rows = hold_rows<double>(problem.call(), problem.counted, at::kCPU);
    const auto first = serial_slot(SerialTeam<double>{4}, rows.problem, 0);
    for (auto order : {WarpOrder::kRising, WarpOrder::kFalling, WarpOrder::kRandom}) {
      const SerialTeam<double> team{4, order};
      compare_with_cpu(problem, team, 1e-10);
      const auto slot = serial_slot(team, rows.problem, 0);
      REQUIRE(slot.sums == first.sums);
      REQUIRE(slot.offsets == first.offsets);
    }
    problem.change(at::kFloat);
    compare_with_cpu(problem, SerialTeam<float>{4, WarpOrder::kRandom}, 1e-5);
  }
}

TEST_CASE("rows with a score that is no number do not count", "[statistics]") {
  Problem problem(0);
  problem.q[0][0][1].fill_(std::numeric_limits<double>::quiet_NaN());
  const auto slots = problem.slots();
  REQUIRE(slots.offsets[0] != kNoRow);
  REQUIRE(slots.offsets[1] == kNoRow);
  REQUIRE(slots.counts[kEntropy] == static_cast<double>(problem.q.size(2) - 1));
  compare_with_cpu(problem, SerialTeam<double>{4}, 1e-10);
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
