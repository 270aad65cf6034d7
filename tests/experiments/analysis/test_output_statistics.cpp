// Statistics of what heads say: against their formulas written down directly, pooling, padding,
// routed rows, and as results of a model.
#include "experiments/analysis/output_analysis.h"
#include "experiments/analysis/output_statistics.h"
#include "tests/layers_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_output_statistics {
using namespace testing;

namespace {

constexpr int64_t B = 3, H = 3, G = 2, T = 7, e = 4, f = 5, D = 9;

LayerOutputs random_layer(int64_t heads, int64_t width) {
  return {random({B, heads, T, width}), random({D, heads * width}), random({B, T, D}), {}};
}

Tensor lengths() { return at::tensor({T, int64_t{2}, int64_t{5}}); }

// CKA of two heads' rows [R,e], [R,f] as its definition says it.
double cka(const Tensor& x, const Tensor& y) {
  const auto a = x - x.mean(0), b = y - y.mean(0);
  const auto norm = [](const Tensor& m) { return m.norm().item<double>(); };
  return std::pow(norm(at::matmul(b.t(), a)), 2) /
         (norm(at::matmul(a.t(), a)) * norm(at::matmul(b.t(), b)));
}

// The valid rows of a head [R,e], of those that `counted` [B,T] says.
Tensor rows_of(const Tensor& o, int64_t head, const Tensor& counted) {
  return o.select(1, head).masked_select(counted.unsqueeze(2)).view({-1, o.size(3)});
}

void require_near(const Tensor& got, const Tensor& want, double bound = 1e-12) {
  INFO(got << " against " << want);
  REQUIRE(difference(got, want) < bound);
}

const LabelledArray& array(const LabelledGroup& group, const std::string& name) {
  for (const auto& a : group.arrays)
    if (a.about.name == name) return a;
  FAIL("no array is called " << name);
  throw std::logic_error(name);
}

}  // namespace

TEST_CASE("outputs: norms, cosines and likeness are their formulas over the rows that count",
          "[outputs]") {
  const auto valid = within_length(lengths(), T, at::kCPU);
  std::vector<LayerOutputs> layers{random_layer(H, e), random_layer(G, f)};
  layers[0].o = layers[0].o + 1e4;                            // far from centred
  layers[1].counted = at::rand({B, G, T}) > 0.4;              // routed
  layers[1].counted.select(1, 0).copy_(valid.logical_not());  // a head that no row counts for
  OutputSums sums;
  sums.add(layers, lengths());
  std::vector<Tensor> heads, counted;
  for (const auto& layer : layers)
    for (int64_t h = 0; h < layer.o.size(1); ++h) {
      counted.push_back(layer.counted.defined() ? valid & layer.counted.select(1, h) : valid);
      heads.push_back(layer.o.select(1, h));
    }
  const auto likeness = sums.cka();
  REQUIRE(likeness.sizes() == at::IntArrayRef({H + G, H + G}));
  for (int64_t i = 0; i < H + G; ++i)
    for (int64_t j = 0; j < H + G; ++j) {
      const auto both = counted[i] & counted[j];
      const auto rows = [&](int64_t n) {
        return heads[n].masked_select(both.unsqueeze(2)).view({-1, heads[n].size(2)});
      };
      INFO(i << " " << j);
      if (i == H || j == H)
        REQUIRE(std::isnan(likeness[i][j].item<double>()));
      else
        REQUIRE(likeness[i][j].item<double>() == Approx(cka(rows(i), rows(j))).epsilon(1e-7));
    }
  for (size_t l = 0; l < layers.size(); ++l)
    for (int64_t h = 0; h < layers[l].o.size(1); ++h) {
      const int64_t width = layers[l].o.size(3), n = static_cast<int64_t>(l) * H + h;
      const auto x = rows_of(layers[l].o, h, counted[n]);
      const auto w = layers[l].weight.narrow(1, h * width, width);
      const auto norm = sums.output_norm(l)[h].item<double>();
      if (n == H) {
        REQUIRE(std::isnan(norm));
        continue;
      }
      REQUIRE(norm == Approx(x.norm(2, -1).mean().item<double>()));
      REQUIRE(sums.contribution_norm(l)[h].item<double>() ==
              Approx(at::matmul(x, w.t()).norm(2, -1).mean().item<double>()));
      REQUIRE(sums.output_cosine(l)[h][h].item<double>() == Approx(1));
    }
  const auto a = rows_of(layers[0].o, 0, valid), b = rows_of(layers[0].o, 2, valid);
  REQUIRE(sums.output_cosine(0)[0][2].item<double>() ==
          Approx(at::cosine_similarity(a, b, -1).mean().item<double>()));
  REQUIRE(std::isnan(sums.output_cosine(1)[0][1].item<double>()));
}

TEST_CASE("outputs: batches pool, padding and threads change nothing", "[outputs]") {
  std::vector<LayerOutputs> layers{random_layer(H, e), random_layer(G, f)};
  layers[1].counted = at::rand({B, G, T}) > 0.3;
  OutputSums whole;
  whole.add(layers, lengths());
  OutputSums parts;
  for (int64_t b = 0; b < B; ++b) {
    std::vector<LayerOutputs> part;
    const int64_t n = lengths()[b].item<int64_t>();
    for (const auto& l : layers) {
      const auto cut = [&](const Tensor& t, int64_t dim) {
        return t.defined() ? t.narrow(0, b, 1).narrow(dim, 0, n) : t;
      };
      part.push_back({cut(l.o, 2), l.weight, cut(l.hidden, 1), cut(l.counted, 2)});
    }
    parts.add(part, {});
  }
  for (int64_t l : {0, 1}) {
    require_near(parts.output_norm(l), whole.output_norm(l));
    require_near(parts.contribution_norm(l), whole.contribution_norm(l));
    require_near(parts.output_cosine(l), whole.output_cosine(l));
    REQUIRE(parts.residual_ratio(l) == Approx(whole.residual_ratio(l)).epsilon(1e-13));
  }
  require_near(parts.cka(), whole.cka());

  const int threads = at::get_num_threads();
  const std::vector<LayerOutputs> large{
      {random({3, 1, 5000, 16}), random({D, 16}), random({3, 5000, D}), {}}};
  std::vector<Tensor> results;
  for (int n : {1, 3}) {
    at::set_num_threads(n);
    OutputSums sums;
    sums.add(large, {});
    results.push_back(at::cat({sums.output_norm(0), sums.contribution_norm(0), sums.cka()[0],
                               at::tensor({sums.residual_ratio(0)}, at::kDouble)}));
  }
  at::set_num_threads(threads);
  REQUIRE(at::equal(results[0], results[1]));
}

TEST_CASE("outputs: likeness forgets rotation and scale and offset where a cosine does not",
          "[outputs]") {
  auto layer = random_layer(2, e);
  const auto rotation = std::get<0>(at::linalg_qr(random({e, e})));
  const auto first = layer.o.select(1, 0);
  layer.o = at::stack({first, 3 * at::matmul(first, rotation) + 5}, 1);
  OutputSums sums;
  sums.add({layer}, lengths());
  REQUIRE(sums.cka()[0][1].item<double>() == Approx(1).epsilon(1e-10));
  REQUIRE(sums.output_cosine(0)[0][1].item<double>() < 0.9);
  layer.o = at::stack({first, -2 * first}, 1);
  OutputSums opposite;
  opposite.add({layer}, lengths());
  REQUIRE(opposite.output_cosine(0)[0][1].item<double>() == Approx(-1));
  REQUIRE(output_disagreement(opposite.output_cosine(0)) == Approx(0).margin(1e-12));
}

TEST_CASE("outputs: what does not exist is NaN, without sums of pairs there is no likeness",
          "[outputs]") {
  LayerOutputs layer{random({2, H, T, e}), {}, at::zeros({2, T, D}, at::kDouble), {}};
  OutputSums sums(OutputSums::Options{.likeness = false});
  sums.add({layer}, at::zeros({2}, at::kLong));
  REQUIRE(sums.output_norm(0).isnan().all().item<bool>());
  REQUIRE(std::isnan(sums.residual_ratio(0)));
  sums.add({layer}, {});
  REQUIRE(sums.output_norm(0).isfinite().all().item<bool>());
  REQUIRE(sums.contribution_norm(0).isnan().all().item<bool>());
  REQUIRE(std::isnan(sums.residual_ratio(0)));  // no example differs from 0
  REQUIRE_THROWS_WITH(sums.cka(), Catch::Contains("was not summed"));
  REQUIRE_THROWS_WITH(sums.add({layer, layer}, {}), Catch::Contains("2 layers"));
}

TEST_CASE("outputs: norm maps are the norms of what each key brings", "[outputs]") {
  const int64_t S = 6;
  const auto a = at::softmax(random({B, H, T, S}), -1), v = random({B, H, S, e});
  const auto weight = random({D, H * e});
  const auto map = norm_map(a, v, weight), summed = summed_norm_map(a, v, weight);
  REQUIRE(summed.sizes() == at::IntArrayRef({B, T, S}));
  auto brought = at::zeros({D}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    const auto mine = a[1][h][3][2] * at::matmul(weight.narrow(1, h * e, e), v[1][h][2]);
    REQUIRE(map[1][h][3][2].item<double>() == Approx(mine.norm().item<double>()));
    brought = brought + mine;
  }
  REQUIRE(summed[1][3][2].item<double>() == Approx(brought.norm().item<double>()));
}

namespace {

struct Watched {
  LabelledGroup results;
  HeadProbe probe;
};

Watched watch(Model& model, const Tensor& ids, const Tensor& length) {
  Watched watched;
  watched.probe.head_outputs = watched.probe.statistics = true;
  HiddenStates states;
  ModelContext ctx;
  ctx.observer = &watched.probe;
  ctx.hidden = &states;
  model.forward({.ids = ids, .length = length}, ctx);
  OutputAnalysis analysis(heads_at(model, "self"));
  analysis.add(watched.probe, states.at(""), length);
  watched.results = analysis.results();
  return watched;
}

const char* kMixed =
    "{layers: 4, d_model: 20, heads: 4, head_dim: 6, attention: {kind: mha}, attention_at: "
    "{\"1\": {kind: moh, shared: 1, active: 1}, \"2\": {kind: mohsa, overlap: 2}}}";

}  // namespace

TEST_CASE("outputs: a model's results agree with the streamed statistics and with its layers",
          "[outputs]") {
  const auto model = small_decoder(kMixed);
  const auto seen = watch(*model, at::randint(29, {9, 12}, at::kLong), {});
  const auto norm = array(seen.results, "output_norm");
  REQUIRE(norm.dims == std::vector<std::string>{"layer", "head"});
  REQUIRE(norm.values.size() == 16);
  for (int64_t l = 0; l < 4; ++l)
    for (int64_t h = 0; h < 4; ++h)
      REQUIRE(norm.values[l * 4 + h] ==
              Approx(seen.probe.values(l).at("output_norm")[h]).epsilon(1e-12));
  const auto& pairs = array(seen.results, "cka").values;
  REQUIRE(pairs.size() == 256);
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      INFO(i << " " << j);
      const bool routed = i / 4 == 1 && j / 4 == 1 && i % 4 > 0 && j % 4 > 0;
      if (routed && i != j)  // no token uses both
        REQUIRE(std::isnan(pairs[i * 16 + j]));
      else if (i == j)
        REQUIRE(pairs[i * 16 + i] == Approx(1).epsilon(1e-10));
      else
        REQUIRE(pairs[i * 16 + j] == Approx(pairs[j * 16 + i]).epsilon(1e-12));
    }
  for (const auto& a : seen.results.arrays)
    for (const auto* text : {&a.about.name, &a.about.units, &a.about.long_name, &a.about.comment})
      REQUIRE_FALSE(text->empty());
}

TEST_CASE("outputs: pruned heads are NaN in the full grid, masked and sliced alike", "[outputs]") {
  const auto model = small_decoder(kMixed);
  const auto ids = at::randint(29, {B, T}, at::kLong);
  auto layers = model->sites()[0].layers;
  (*layers[0])->mask_heads({1});
  (*layers[2])->mask_heads({0, 3});
  (*layers[3])->mask_heads({0, 1, 2, 3});
  const auto masked = watch(*model, ids, lengths()).results;
  for (int64_t l : {0, 2, 3}) model->exchange("self", l, (*layers[l])->slice());
  const auto sliced = watch(*model, ids, lengths()).results;
  REQUIRE(masked.arrays.size() == sliced.arrays.size());
  for (size_t n = 0; n < masked.arrays.size(); ++n) {
    const auto &a = masked.arrays[n], &b = sliced.arrays[n];
    INFO(a.about.name);
    REQUIRE(a.values.size() == b.values.size());
    for (size_t i = 0; i < a.values.size(); ++i)
      if (std::isnan(a.values[i]))
        REQUIRE(std::isnan(b.values[i]));
      else
        REQUIRE(a.values[i] == Approx(b.values[i]).epsilon(1e-9));
  }
  const auto& norm = array(masked, "output_norm").values;
  const std::vector<int> gone{1, 8, 11, 12, 13, 14, 15};
  for (int n = 0; n < 16; ++n)
    REQUIRE(std::isnan(norm[n]) == (std::find(gone.begin(), gone.end(), n) != gone.end()));
  const auto& cosine = array(masked, "output_cosine").values;  // [4,4,4]
  REQUIRE(std::isnan(cosine[1 * 4 + 2]));
  REQUIRE(std::isfinite(cosine[2 * 4 + 3]));
  REQUIRE(std::isfinite(array(masked, "output_disagreement").values[0]));
  REQUIRE(std::isnan(array(masked, "output_disagreement").values[3]));
  REQUIRE(std::isfinite(array(masked, "residual_ratio").values[3]));
}

TEST_CASE("outputs: routed heads do not depend on what the layer skipped", "[outputs]") {
  std::vector<LabelledGroup> results;
  for (const char* how : {"dense", "sparse"}) {
    const auto model = small_decoder(
        std::string("{layers: 2, d_model: 20, heads: 5, head_dim: 6, attention: {kind: moh, "
                    "shared: 1, active: 2, compute: ") +
        how + "}}");
    torch::manual_seed(3);
    results.push_back(watch(*model, at::randint(29, {B, T}, at::kLong), lengths()).results);
  }
  for (size_t n = 0; n < results[0].arrays.size(); ++n)
    for (size_t i = 0; i < results[0].arrays[n].values.size(); ++i) {
      INFO(results[0].arrays[n].about.name << " " << i);
      const double a = results[0].arrays[n].values[i], b = results[1].arrays[n].values[i];
      if (std::isnan(a))
        REQUIRE(std::isnan(b));
      else
        REQUIRE(a == Approx(b).epsilon(1e-9).margin(1e-12));
    }
}

}  // namespace headlab::test_output_statistics
