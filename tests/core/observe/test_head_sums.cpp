// How the sums of a layer merge, what kinds may report, and scores behind handed-over weights.
#include <cmath>
#include <set>

#include "core/observe/head_sums.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_head_sums {
using namespace testing;

namespace {

constexpr int64_t B = 4, H = 3, T = 9, d = 5, E = 2;
const std::vector<int64_t> kHeads{0, 1, 2};
const std::vector<bool> kAllAlive(H, true);
const std::vector<Statistic> kOwn{
    {.name = "by_head"},
    {.name = "by_pair", .per = Per::kPair},
    {.name = "by_layer", .per = Per::kLayer},
    {.name = "by_expert", .per = Per::kExpert},
    {.name = "highest", .reduce = Reduce::kMaximum},
};

struct Data {
  Tensor q = random({B, H, T, d}), k = random({B, H, T, d}), v = random({B, H, T, d});
  Tensor own = random({B, H, H}), weight = random({11, H*d});
  Tensor length = at::tensor({int64_t{2}, int64_t{3}, int64_t{9}, int64_t{7}});

  // Examples first .. first + count - 1 in one forward pass.
  void show(HeadProbe& probe, int64_t first, int64_t count) const {
    const auto part = [&](const Tensor& t) { return t.narrow(0, first, count); };
    probe.enter(
        {.heads = H, .head_ids = kHeads, .alive = kAllAlive, .output_weight = weight, .own = kOwn});
    auto ctx = HeadCall::from_context({});
    ctx.observer = &probe;
    ctx.mask.query_length = ctx.mask.key_length = part(length);
    attend(part(q), part(k), part(v), ctx, 0.7);
    const auto pairs = part(own).sum(0);  // [H,H]
    const auto examples = at::scalar_tensor(static_cast<double>(count), at::kDouble);
    probe.report("by_head", pairs.sum(-1), examples.expand({H}));
    probe.report("by_pair", pairs, examples.expand({H, H}));
    probe.report("by_layer", pairs.sum(), examples);
    probe.report("by_expert", pairs.narrow(1, 0, E), examples.expand({H, E}));
    probe.report("highest", part(own).amax(at::IntArrayRef({0, 2})), examples.expand({H}));
  }
  HeadSums sums(int64_t first, int64_t count) const {
    HeadProbe probe;
    probe.statistics = true;
    probe.js_stride = 1;
    show(probe, first, count);
    return probe.sums().at(0);
  }
};

void require_near(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t n = 0; n < got.size(); ++n) REQUIRE(got[n] == Approx(want[n]).margin(1e-12));
}

void require_equal(const HeadSums& got, const HeadSums& want) {
  require_near(got.sums, want.sums);
  REQUIRE(got.counts == want.counts);
  REQUIRE(got.maxima == want.maxima);
  REQUIRE(got.offsets == want.offsets);
  REQUIRE(got.sink_examples == want.sink_examples);
  REQUIRE(got.examples == want.examples);
  require_near(got.js, want.js);
  REQUIRE(got.js_counts == want.js_counts);
  REQUIRE(got.own.size() == want.own.size());
  for (size_t n = 0; n < got.own.size(); ++n) {
    INFO(want.own[n].name);
    REQUIRE(got.own[n].name == want.own[n].name);
    require_near(got.own[n].sums, want.own[n].sums);
    REQUIRE(got.own[n].counts == want.own[n].counts);
  }
  const auto values = head_values(got);
  for (const auto& [name, of_whole] : head_values(want)) {
    INFO(name);
    for (size_t n = 0; n < of_whole.size(); ++n)
      if (std::isnan(of_whole[n]))
        REQUIRE(std::isnan(values.at(name)[n]));
      else
        REQUIRE(values.at(name)[n] == Approx(of_whole[n]).margin(1e-12));
  }
}

HeadProbe entered() {
  HeadProbe probe;
  probe.statistics = true;
  probe.enter({.heads = H, .head_ids = kHeads, .alive = kAllAlive, .own = kOwn});
  return probe;
}

}  // namespace

TEST_CASE("the parts of a batch add up to the whole", "[statistics]") {
  const Data data;
  const auto whole = data.sums(0, B);
  REQUIRE(whole.offsets.reach > data.sums(0, 2).offsets.reach);  // merging has to align them
  for (const bool reversed : {false, true}) {
    auto parts = data.sums(reversed ? 2 : 0, 2);
    add_sums(parts, data.sums(reversed ? 0 : 2, 2));
    require_equal(parts, whole);
    HeadSums empty(H);  // knows nothing of the kind
    add_sums(empty, parts);
    require_equal(empty, whole);
  }
  HeadProbe batches;
  batches.statistics = true;
  batches.js_stride = 1;
  for (int64_t b = 0; b < B; ++b) data.show(batches, b, 1);
  require_equal(batches.sums().at(0), whole);
  HeadSums other(H + 1);
  REQUIRE_THROWS_WITH(add_sums(other, whole), Catch::Contains("sums of 3 heads to those of 4"));
}

TEST_CASE("what a kind reports has its value in the original heads", "[statistics]") {
  HeadProbe probe;
  probe.statistics = true;
  probe.enter({.heads = H, .head_ids = {0, 2}, .alive = {true, false, true}, .own = kOwn});
  const auto one = at::ones({2}, at::kDouble);
  probe.report("by_head", one * 3, one * 2);
  probe.report("highest", at::tensor({-5., 4.}), one);
  probe.report("highest", at::tensor({-7., 9.}), at::tensor({1., 0.}));  // the last counts nothing
  probe.report("by_pair", at::arange(4, at::kDouble).view({2, 2}), at::ones({2, 2}));
  const auto values = probe.values(0);
  REQUIRE(values.at("by_head")[0] == 1.5);
  REQUIRE(std::isnan(values.at("by_head")[1]));
  REQUIRE(values.at("highest")[0] == -5);
  REQUIRE(values.at("highest")[2] == 4);
  REQUIRE(values.at("by_pair")[2] == 1);
  REQUIRE(values.at("by_pair")[6] == 2);
  REQUIRE(std::isnan(values.at("by_pair")[4]));
  REQUIRE(std::isnan(values.at("by_layer")[0]));  // declared, not reported
}

TEST_CASE("a statistic that is not declared or has other sizes is refused by name",
          "[statistics]") {
  auto probe = entered();
  const auto ones = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kDouble); };
  const auto refuses = [&](const char* name, const Tensor& sums, const Tensor& counts,
                           const std::string& message) {
    INFO(name);
    REQUIRE_THROWS_AS(probe.report(name, sums, counts), c10::Error);
    REQUIRE_THROWS_WITH(probe.report(name, sums, counts), Catch::Contains(message));
  };
  refuses("by_hed", ones({H}), ones({H}),
          "statistic 'by_hed' is none that layer 0 declares in own_statistics(): by_head, by_pair");
  refuses("by_head", ones({H + 1}), ones({H + 1}),
          "statistic 'by_head': sums are [4] and counts [4], expected [H] = [3] both");
  refuses("by_head", ones({H}), ones({}), "sums are [3] and counts []");
  refuses("by_layer", ones({1}), ones({1}), "expected scalars both");
  refuses("by_pair", ones({H, 2}), ones({H, 2}), "expected [H,H] = [3,3] both");
  refuses("by_expert", ones({2, E}), ones({2, E}), "expected [H,E] = [3,E] both");
  probe.report("by_expert", ones({H, E}), ones({H, E}));
  refuses("by_expert", ones({H, 5}), ones({H, 5}), "'by_expert': 5 experts after 2");
  probe.statistics = false;
  probe.report("by_hed", ones({H}), ones({H}));  // nobody looks
}

TEST_CASE("scores behind handed-over weights give max_logit and lse", "[statistics]") {
  for (int seed = 0; seed < 8; ++seed) {
    INFO("seed " << seed);
    torch::manual_seed(seed);
    const Data data;
    auto ctx = HeadCall::from_context({});
    ctx.positions = at::arange(T);
    ctx.mask.causal = seed % 2;
    if (seed % 3 == 1) ctx.mask.window = 3;
    if (seed % 3 == 2) ctx.mask.query_length = ctx.mask.key_length = data.length;
    if (seed % 4 == 3) ctx.mask.allowed = at::rand({B, H, T, T}) < 0.3;  // rows without any
    if (seed >= 4) ctx.bias = random({1, H, T, T});
    auto streamed = entered(), handed = entered(), silent = entered(), sparse = entered();
    ctx.observer = &streamed;
    const auto out = attend(data.q, data.k, data.v, ctx, 0.7);
    ctx.observer = nullptr;
    const auto z = scores(data.q, data.k, ctx, 0.7);
    const auto p = masked_softmax(z, allowed_keys(ctx.mask, T, T, at::kCPU));
    const auto map = [&](const Tensor& of_scores, bool softmax) {
      return ObservedMap{
          .p = p, .a = p, .scores = of_scores, .softmax = softmax, .v = data.v, .out = out};
    };
    handed.weights(map(z, true), ctx);
    silent.weights(map({}, true), ctx);
    sparse.weights(map(z, false), ctx);
    const auto want = streamed.values(0), got = handed.values(0);
    for (int64_t h = 0; h < H; ++h) {
      for (const char* name : {"max_logit", "lse"}) {
        INFO(name << " " << h);
        REQUIRE(std::isfinite(want.at(name)[h]));
        REQUIRE(got.at(name)[h] == Approx(want.at(name)[h]).epsilon(1e-12));
        REQUIRE(std::isnan(silent.values(0).at(name)[h]));
      }
      REQUIRE(sparse.values(0).at("max_logit")[h] == got.at("max_logit")[h]);
      REQUIRE(std::isnan(sparse.values(0).at("lse")[h]));
      REQUIRE(got.at("entropy")[h] == Approx(want.at("entropy")[h]));
    }
    REQUIRE_THROWS_WITH(handed.weights(map(z.narrow(1, 0, 2), true), ctx),
                        Catch::Contains("scores [4, 2, 9, 9] of weights [4, 3, 9, 9]"));
  }
}

TEST_CASE("rows that do not sum to 1 are observed by their shares, empty ones not",
          "[statistics]") {
  const Data data;
  const auto share = at::softmax(random({B, H, T, T}), -1);
  auto size = at::rand({B, H, T, 1}, at::kDouble) + 0.1;
  size[0][0][2] = 0;
  auto shares = entered(), sizes = entered(), counted = entered();
  const auto ctx = HeadCall::from_context({});
  const auto out = random({B, H, T, d});
  auto rows = at::ones({B, H, T}, at::kBool);
  rows[0][0][2] = false;
  counted.weights({.p = share, .a = share, .v = data.v, .out = out, .counted = rows}, ctx);
  const auto a = share * size;
  sizes.weights({.p = a, .a = a, .rows_sum_to_one = false, .v = data.v, .out = out}, ctx);
  const auto want = counted.values(0), got = sizes.values(0);
  for (const char* name : {"entropy", "max_weight", "mean_distance", "output_norm"})
    for (int64_t h = 0; h < H; ++h) REQUIRE(got.at(name)[h] == Approx(want.at(name)[h]));
  REQUIRE(sizes.sums().at(0).counts == counted.sums().at(0).counts);
}

TEST_CASE("a probe keeps sites, layers and maps of a layer apart", "[statistics]") {
  HeadProbe probe;
  probe.statistics = probe.maps = true;
  const Data data;
  const auto ctx = HeadCall::from_context({});
  const auto out = random({B, H, T, d});
  int sharpness = 1;
  for (const char* site : {"encoder_self", "cross"})
    for (int64_t map : {0, 1}) {
      probe.enter({.site = site, .layer = 3, .heads = H, .head_ids = kHeads, .alive = kAllAlive});
      const auto p = at::softmax(random({B, H, T, T}) * sharpness++, -1);
      probe.weights({.p = p, .a = p, .v = data.v, .out = out, .map = map}, ctx);
      REQUIRE(at::equal(probe.layer_maps().at({site, 3, map}), p));
    }
  std::set<double> entropies;
  for (const char* site : {"encoder_self", "cross"})
    for (int64_t map : {0, 1}) entropies.insert(probe.values({site, 3, map}).at("entropy")[0]);
  REQUIRE(entropies.size() == 4);
  REQUIRE(probe.sums().size() == 4);
}

TEST_CASE("without a row that counts max_logit and lse are no numbers", "[statistics]") {
  const Data data;
  auto probe = entered();
  auto ctx = HeadCall::from_context({});
  ctx.observer = &probe;
  ctx.mask.allowed = at::ones({1, H, 1, 1}, at::kBool);
  ctx.mask.allowed[0][1] = false;
  attend(data.q, data.k, data.v, ctx, 0.7);
  const auto values = probe.values(0);
  for (const char* name : {"max_logit", "lse"}) {
    REQUIRE(std::isfinite(values.at(name)[0]));
    REQUIRE(std::isnan(values.at(name)[1]));
  }
}

TEST_CASE("offsets widen on both sides and keep what they hold", "[statistics]") {
  OffsetRows rows(2);
  rows.add(0, -1);
  rows.add(1, 4, 3);
  rows.add(0, -1);
  REQUIRE(rows.reach == 4);
  REQUIRE(rows.at(0, -1) == 2);
  REQUIRE(rows.at(1, 4) == 3);
  REQUIRE(rows.at(1, -1) == 0);
  REQUIRE(rows.at(0, 99) == 0);
  OffsetRows more(2);
  more.add(0, -1, 5);
  more.add(rows);
  REQUIRE(more.at(0, -1) == 7);
  REQUIRE(more.reach == 4);
}

}  // namespace headlab::test_head_sums
