// Statistics of attention maps: identities, invariances, and agreement with what is streamed.
#include <ATen/Parallel.h>

#include <bit>
#include <cmath>

#include "experiments/analysis/maps/map_divergence.h"
#include "experiments/analysis/maps/map_statistics.h"
#include "experiments/analysis/maps/multidimensional_scaling.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_map_statistics {
using namespace testing;

namespace {

using Values = std::map<std::string, std::vector<double>>;

std::vector<std::string> every_name() {
  std::vector<std::string> names;
  for (const auto& s : map_statistic_table()) names.push_back(s.name);
  return names;
}

// Maps of B examples in `layers` layers, with every fact that a statistic reads.
struct Maps {
  std::vector<LayerMap> layers;
  int64_t H;

  Maps(int64_t L, int64_t B, int64_t heads, int64_t T, bool causal) : H(heads) {
    MapContext context;
    context.causal = causal;
    context.tokens = at::randint(0, 9, {B, T}, at::kLong);
    context.classes = at::randint(0, 4, {B, T}, at::kByte);
    context.frequency_rank = at::randint(0, 2000, {B, T}, at::kLong);
    std::vector<int64_t> ids(heads);
    for (int64_t h = 0; h < heads; ++h) ids[h] = h;
    const auto hidden = at::ones({T, T}, at::kBool).triu(1);
    for (int64_t l = 0; l < L; ++l) {
      auto z = random({B, heads, T, T}) * 3;
      if (causal) z = z.masked_fill(hidden, -INFINITY);
      layers.push_back({.a = at::softmax(z, -1), .heads = ids, .context = context});
    }
  }
  Values values(MapStatisticsOptions options = {.names = every_name()}) const {
    MapStatistics statistics(std::ssize(layers), H, options);
    statistics.add(layers);
    return statistics.values();
  }
  // Examples in another order, or some of them.
  Maps picked(const std::vector<int64_t>& examples) const {
    auto some = *this;
    const auto index = at::tensor(examples, at::kLong);
    const auto pick = [&](Tensor& t) {
      if (t.defined()) t = t.index_select(0, index);
    };
    for (auto& map : some.layers) {
      pick(map.a);
      auto& f = map.context;
      for (auto* t : {&f.tokens, &f.classes, &f.frequency_rank, &f.query_length, &f.key_length})
        pick(*t);
    }
    return some;
  }
};

void require_close(const Values& got, const Values& want, double tolerance = 1e-12) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, values] : want) {
    REQUIRE(got.at(name).size() == values.size());
    for (size_t n = 0; n < values.size(); ++n) {
      INFO(name << "[" << n << "]");
      if (std::isnan(values[n]))
        REQUIRE(std::isnan(got.at(name)[n]));
      else
        REQUIRE(got.at(name)[n] == Approx(values[n]).epsilon(tolerance).margin(tolerance));
    }
  }
}

void require_same_bits(const Values& got, const Values& want) {
  for (const auto& [name, values] : want)
    for (size_t n = 0; n < values.size(); ++n) {
      INFO(name << "[" << n << "]");
      REQUIRE(std::bit_cast<uint64_t>(got.at(name)[n]) == std::bit_cast<uint64_t>(values[n]));
    }
}

// One layer whose heads are these maps [T,T].
LayerMap heads_like(const std::vector<Tensor>& maps, bool causal = true) {
  LayerMap map{.a = at::stack(maps).unsqueeze(0).to(at::kDouble)};
  for (size_t h = 0; h < maps.size(); ++h) map.heads.push_back(static_cast<int64_t>(h));
  map.context.causal = causal;
  return map;
}

Values values_of(const LayerMap& map, std::vector<std::string> names = every_name()) {
  MapStatistics statistics(1, std::ssize(map.heads), {.names = std::move(names)});
  statistics.add({map});
  return statistics.values();
}

Tensor uniform_causal(int64_t T) {
  const auto seen = at::ones({T, T}, at::kDouble).tril();
  return seen / seen.sum(-1, true);
}

}  // namespace

TEST_CASE("heads with closed forms have them", "[maps]") {
  const int64_t T = 12;
  auto shifted = at::eye(T, at::kDouble).roll(1, 0);  // row i attends to i - 1
  shifted[0].zero_();
  shifted[0][0] = 1;
  const auto s = values_of(heads_like({uniform_causal(T), shifted, at::eye(T)}));
  const auto n = at::arange(1, T + 1, at::kDouble);
  CHECK(s.at("gini")[0] == Approx(0).margin(1e-12));
  CHECK(s.at("gini")[2] == Approx((1 - n.reciprocal()).mean().item<double>()));
  CHECK(s.at("top_k_mass")[0] == Approx((5 / n.clamp_min(5)).mean().item<double>()));
  CHECK(s.at("top_k_mass")[1] == Approx(1));
  CHECK(s.at("sparsity_h2o")[0] == 0);
  CHECK(s.at("sparsity_h2o")[2] == Approx((1 - n.reciprocal()).mean().item<double>()));
  CHECK(s.at("effective_rank")[2] == Approx(T));
  CHECK(s.at("stable_rank")[2] == Approx(T));
  CHECK(s.at("attention_overlap")[2 * 3 + 2] == Approx(1));
  CHECK(s.at("attention_overlap")[0 * 3 + 2] == Approx(n.reciprocal().mean().item<double>()));
  CHECK(s.at("attention_overlap")[1 * 3 + 2] == Approx(1. / T));  // row 0 alone
  CHECK(s.at("js")[1 * 3 + 2] == Approx(std::log(2.0) * (T - 1) / T));
  for (const char* of_facts : {"sep_from_sep", "rare_token", "grid_distance"})
    CHECK(std::isnan(s.at(of_facts)[0]));
}

TEST_CASE("a map of equal rows has rank one", "[maps]") {
  const auto row = at::softmax(random({1, 9}), -1);
  const auto s = values_of(heads_like({row.expand({9, 9})}, /*causal=*/false));
  CHECK(s.at("effective_rank")[0] == Approx(1).epsilon(1e-6));
  CHECK(s.at("stable_rank")[0] == Approx(1));
}

TEST_CASE("separators, rare tokens and patches by hand", "[maps]") {
  auto map =
      heads_like({at::tensor({1., 0., 0., 0., .25, .75, 0., 0., .5, .25, .25, 0., .1, .2, .3, .4})
                      .view({4, 4})},
                 /*causal=*/false);
  map.context.classes = at::tensor({0, 2, 0, 2}, at::kByte).unsqueeze(0);
  map.context.frequency_rank = at::tensor({700, 900, 700, 3}, at::kLong).unsqueeze(0);
  map.context.grid = ImageGrid{.rows = 1, .columns = 3, .cls_tokens = 1, .patch = 16};
  const auto s = values_of(map);
  CHECK(s.at("sep_from_sep")[0] == Approx((.75 + .2 + .4) / 2));
  CHECK(s.at("sep_from_rest")[0] == Approx((0 + .25) / 2));
  // The two rarest are tokens 1 and 0, the earlier of equals; separators are no candidates.
  CHECK(s.at("rare_token")[0] == Approx(3. / 4));
  CHECK(s.at("grid_distance")[0] == Approx(16 * (0 + .25 + (.2 * 2 + .3)) / 3));
  map.context.frequency_rank = at::tensor({7, 499, 7, 3}, at::kLong).unsqueeze(0);
  CHECK(std::isnan(values_of(map, {"rare_token"}).at("rare_token")[0]));
}

TEST_CASE("bounds hold on random maps", "[maps]") {
  for (int seed = 0; seed < 8; ++seed) {
    torch::manual_seed(seed);
    INFO("seed " << seed);
    const Maps maps(2, 3, 3, 5 + seed, seed % 2);
    const auto s = maps.values();
    for (int n = 0; n < 6; ++n) {
      for (const char* share : {"gini", "top_k_mass", "sparsity_h2o"}) {
        REQUIRE(s.at(share)[n] >= -1e-12);
        REQUIRE(s.at(share)[n] <= 1 + 1e-12);
      }
      REQUIRE(s.at("stable_rank")[n] >= 1);
      REQUIRE(s.at("effective_rank")[n] >= s.at("stable_rank")[n] - 1e-9);
      REQUIRE(s.at("js")[n * 6 + n] == 0);
      for (int m = 0; m < 6; ++m) {
        REQUIRE(s.at("js")[n * 6 + m] == s.at("js")[m * 6 + n]);
        REQUIRE(s.at("js")[n * 6 + m] >= 0);
        REQUIRE(s.at("js")[n * 6 + m] <= std::log(2.0) + 1e-12);
      }
    }
  }
}

TEST_CASE("order, batches and padding change nothing", "[maps]") {
  for (const bool causal : {false, true}) {
    Maps maps(2, 5, 3, 11, causal);
    const auto length = at::tensor({11, 4, 7, 1, 9}, at::kLong);
    for (auto& map : maps.layers) map.context.query_length = map.context.key_length = length;
    if (!causal)  // rows sum to 1 over the keys within the length
      for (auto& map : maps.layers) {
        const auto real = (at::arange(11) < length.unsqueeze(1)).view({5, 1, 1, 11});
        map.a = map.a * real / (map.a * real).sum(-1, true);
      }
    const auto whole = maps.values();
    require_close(maps.picked({3, 1, 4, 0, 2}).values(), whole);
    MapStatistics parts(2, 3, {.names = every_name()});
    parts.add(maps.picked({0, 1}).layers);
    parts.add(maps.picked({2, 3, 4}).layers);
    require_same_bits(parts.values(), whole);

    auto padded = maps;  // by rows and columns that are anything
    for (auto& map : padded.layers) {
      const auto more = at::full({5, 3, 14, 14}, NAN, at::kDouble);
      more.narrow(2, 0, 11).narrow(3, 0, 11).copy_(map.a);
      map.a = more;
      for (auto* t : {&map.context.tokens, &map.context.classes, &map.context.frequency_rank})
        *t = at::constant_pad_nd(*t, {0, 3}, 2);
    }
    require_same_bits(padded.values(), whole);
    const auto rolled = rollout(maps.layers), more = rollout(padded.layers);
    CHECK(more.narrow(2, 0, 11).narrow(3, 0, 11).equal(rolled));
    CHECK(more.narrow(2, 11, 3).count_nonzero().item<int64_t>() == 0);
    CHECK(more.narrow(3, 11, 3).count_nonzero().item<int64_t>() == 0);
  }
}

TEST_CASE("maps on one thread and on two give the same bits", "[maps]") {
  const int threads = at::get_num_threads();
  for (const int64_t B : {1, 3}) {
    Maps maps(2, B, 4, 150, true);
    for (auto& map : maps.layers) map.a = map.a.to(at::kFloat);
    at::set_num_threads(1);
    const auto one = maps.values();
    const auto rolled = rollout(maps.layers);
    at::set_num_threads(2);
    const auto two = maps.values();
    CHECK(rollout(maps.layers).equal(rolled));
    at::set_num_threads(threads);
    require_same_bits(two, one);
  }
}

TEST_CASE("heads without maps are NaN and change no other head", "[maps]") {
  Maps maps(3, 2, 3, 8, true);
  const auto whole = maps.values();
  maps.layers[1] = {};                                  // no token map
  maps.layers[2].a = maps.layers[2].a.narrow(1, 1, 2);  // sliced: heads 1 and 2 stay
  maps.layers[2].heads = {1, 2};
  const auto some = maps.values();
  const std::vector<bool> there{true, true, true, false, false, false, false, true, true};
  for (const auto& s : map_statistic_table())
    for (size_t n = 0; n < some.at(s.name).size(); ++n) {
      INFO(s.name << "[" << n << "]");
      bool exists = true;
      if (s.dims == MapDims::kHead) exists = there[n];
      if (s.dims == MapDims::kHeadsOfLayer) exists = there[n / 3] && there[n / 9 * 3 + n % 3];
      if (s.dims == MapDims::kAllHeads) exists = there[n / 9] && there[n % 9];
      if (!exists)
        REQUIRE(std::isnan(some.at(s.name)[n]));
      else if (!std::isnan(whole.at(s.name)[n]))
        REQUIRE(some.at(s.name)[n] == whole.at(s.name)[n]);
    }
  const auto rolled = rollout(maps.layers);
  CHECK(rolled[0].isfinite().all().item<bool>());
  CHECK(rolled[1].isnan().all().item<bool>());
}

TEST_CASE("rows that a head does not serve count neither alone nor in pairs", "[maps]") {
  Maps maps(1, 2, 2, 6, true);
  auto allowed = at::ones({2, 2, 6, 6}, at::kBool);
  allowed.select(1, 0).narrow(1, 0, 3) = false;  // head 0 serves rows 3.. only
  maps.layers[0].context.allowed = allowed;
  auto late = maps;  // the same rows alone, for both heads
  late.layers[0].context.allowed = allowed.clone();
  late.layers[0].context.allowed.narrow(2, 0, 3) = false;
  const auto s = maps.values(), want = late.values();
  for (const char* name : {"gini", "top_k_mass", "sparsity_h2o"})
    CHECK(s.at(name)[0] == want.at(name)[0]);
  CHECK(s.at("js")[1] == Approx(want.at("js")[1]).epsilon(1e-14));
  CHECK(s.at("attention_overlap")[1] == Approx(want.at("attention_overlap")[1]).epsilon(1e-14));
  CHECK(s.at("attention_overlap")[3] != want.at("attention_overlap")[3]);
}

TEST_CASE("every n-th row estimates the divergence of all rows", "[maps]") {
  const Maps maps(1, 64, 3, 40, true);
  const auto all = maps.values({.names = {"js"}}).at("js");
  const auto some = maps.values({.names = {"js"}, .js_stride = 8}).at("js");
  for (int n = 0; n < 9; ++n) CHECK(some[n] == Approx(all[n]).epsilon(0.1).margin(1e-12));
  CHECK(some[1] != all[1]);
}

TEST_CASE("what a layer says of its map is what its statistics are of", "[maps][probe]") {
  for (const auto& kind : head_names()) {
    INFO(kind);
    auto heads = make_layer(kind, small_shape());
    const auto& traits = heads->traits();
    if (traits.map != HeadMap::kTokens) continue;
    HeadProbe probe;
    probe.statistics = probe.patterns = true;
    probe.js_stride = 1;
    auto ctx = traits.causal ? causal(traits.windows ? 5 : 0) : HeadContext();
    ctx.mask.query_length = ctx.mask.key_length = at::tensor({7, 4}, at::kLong);
    ctx.observer = &probe;
    heads->forward(random({2, 7, 20}), ctx);
    const auto& [p, mask] = probe.layer_patterns().at(1);
    MapContext context;
    context.allowed = allowed_keys(mask, 7, 7, at::kCPU);
    context.query_length = mask.query_length, context.key_length = mask.key_length;
    context.causal = mask.causal;
    HeadSums sums(4);
    add_patterns(sums, p, context);
    auto streamed = probe.values(1), want = head_values(sums);
    for (auto* values : {&streamed, &want})
      std::erase_if(*values, [](const auto& of) {
        return of.first != "entropy" && of.first != "entropy_normalized" &&
               of.first != "prev_token" && of.first != "first_token" &&
               of.first != "participation_ratio" && of.first != "js";
      });
    require_close(streamed, want, 1e-9);
  }
}

TEST_CASE("points of scaled distances lie as far apart as they should", "[maps]") {
  const auto points = random({7, 2});
  const auto d = (points.unsqueeze(1) - points).norm(2, -1);
  const auto scaled = scale_points(d, 2);
  CHECK(difference((scaled.points.unsqueeze(1) - scaled.points).norm(2, -1), d) < 1e-12);
  CHECK(scaled.share == Approx(1));
  CHECK(scaled.points.mean(0).abs().max().item<double>() < 1e-12);
  for (int64_t c = 0; c < 2; ++c) {
    const auto axis = scaled.points.select(1, c);
    CHECK(axis[axis.abs().argmax()].item<double>() > 0);
  }
  CHECK(scaled.eigenvalues[0] >= scaled.eigenvalues[1]);

  auto gaps = at::full({8, 8}, NAN, at::kDouble);  // item 3 does not exist
  const auto there = at::tensor({0, 1, 2, 4, 5, 6, 7}, at::kLong);
  gaps.index_put_({there.unsqueeze(1), there}, d);
  const auto some = scale_points(gaps, 2).points;
  CHECK(some[3].isnan().all().item<bool>());
  CHECK(difference(some.index_select(0, there), scaled.points) == 0);
  gaps.index_put_({at::tensor(5), at::tensor(0)}, NAN);  // two that never met: the later goes
  gaps.index_put_({at::tensor(0), at::tensor(5)}, NAN);
  const auto fewer = scale_points(gaps, 2).points;
  CHECK(fewer[5].isnan().all().item<bool>());
  CHECK(fewer[0].isfinite().all().item<bool>());
  CHECK(scale_points(at::zeros({3, 3}), 2).points.abs().max().item<double>() == 0);
}

}  // namespace headlab::test_map_statistics
