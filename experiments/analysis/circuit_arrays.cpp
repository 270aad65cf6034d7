#include "experiments/analysis/circuit_arrays.h"

#include <algorithm>

#include "core/torch.h"
#include "experiments/analysis/circuits.h"
#include "experiments/analysis/head_measurements.h"

namespace headlab {
namespace {

LogVariable composition_of(const char* which, const char* later) {
  return {std::string("composition_") + which, "1",
          std::string("composition of the head and ") + which + " of the later head2",
          std::string("norm_F(A B) / (norm_F(A) norm_F(B)), A = W_V W_O of (layer, head), B = ") +
              later + " of (layer2, head2); 0 unless layer < layer2"};
}

// The alive heads of one layer; undefined where there are none, or the kind has no matrices.
struct Layer {
  explicit Layer(const AttentionHeads& layer) : size(std::ssize(alive_rows(layer))) {
    heads = layer.matrices();
    if (size == 0) heads.reset();
    if (!heads) return;
    const auto rows = at::tensor(alive_rows(layer), at::kLong).to(heads->q.device());
    for (auto* m : {&heads->q, &heads->k, &heads->v, &heads->o}) *m = m->index_select(0, rows);
    qk = query_key(*heads), kq = key_query(*heads), ov = value_output(*heads);
  }

  int64_t size;
  std::optional<HeadMatrices> heads;
  std::optional<FactoredHeads> qk, kq, ov;
};

template <class Value>
std::vector<Tensor> of_each(const std::vector<Layer>& layers, Value value) {
  std::vector<Tensor> values;
  for (const auto& layer : layers) values.push_back(layer.heads ? value(layer) : Tensor());
  return values;
}

// OV of every earlier head with `later` of every later one: [N,N], 0 elsewhere.
Tensor compositions(const std::vector<Layer>& layers, std::optional<FactoredHeads> Layer::*later) {
  int64_t N = 0;
  for (const auto& layer : layers) N += layer.size;
  auto all = at::zeros({N, N}, at::kDouble);
  int64_t row = 0;
  for (auto a = layers.begin(); a != layers.end(); row += a++->size) {
    int64_t column = row + a->size;
    for (auto b = a + 1; a->heads && b != layers.end(); column += b++->size)
      if (b->heads)
        all.narrow(0, row, a->size)
            .narrow(1, column, b->size)
            .copy_(composition(*a->ov, *(*b.*later)));
    if (a->heads) continue;
    all.narrow(0, row, a->size).fill_(kNaN);
    all.narrow(1, row, a->size).fill_(kNaN);
  }
  return all;
}

// The values of layers [n], n may differ -> [L, n of the widest]; NaN where there are none.
Tensor by_layer(const std::vector<Tensor>& values) {
  int64_t width = 0;
  for (const auto& v : values)
    if (v.defined()) width = std::max(width, v.size(0));
  auto all = at::full({static_cast<int64_t>(values.size()), width}, kNaN, at::kDouble);
  for (size_t l = 0; l < values.size(); ++l)
    if (values[l].defined()) all[l].narrow(0, 0, values[l].size(0)).copy_(values[l]);
  return all;
}

std::vector<Tensor> ranks(std::vector<Tensor> spectra) {
  for (auto& s : spectra)
    if (s.defined()) s = rank_95(s).to(at::kDouble);
  return spectra;
}

void add_spectra(LabelledGroup& group, const SiteHeads& grid, const std::vector<Layer>& layers) {
  const auto of_heads = of_each(layers, [](const Layer& l) { return singular_values(*l.qk); });
  const auto spectra = grid.rows_by_head(of_heads);
  add_array(group,
            {"qk_singular_values", "1", "spectrum of what the head matches",
             "singular values of W_Q^h W_K^hT, largest first"},
            {"layer", "head", "component"}, spectra);
  add_array(group,
            {"qk_rank_95", "1", "rank of what the head matches",
             "fewest components with 95 % of sum sigma^2 of W_Q^h W_K^hT"},
            {"layer", "head"}, grid.by_head(ranks(of_heads)));
  group.axes.push_back(
      {{"component", "1", "component of a head's spectrum", "0 is the largest"}, spectra.size(2)});

  auto sums = of_each(layers, [](const Layer& l) { return layer_singular_values(*l.qk); });
  const auto layer_spectra = by_layer(sums);
  add_array(group,
            {"qk_layer_singular_values", "1", "spectrum of what the layer matches",
             "singular values of sum_h W_Q^h W_K^hT, largest first"},
            {"layer", "layer_component"}, layer_spectra);
  for (auto& s : sums)
    if (s.defined()) s = s.unsqueeze(0);
  add_array(group,
            {"qk_layer_rank_95", "1", "rank of what the layer matches",
             "fewest components with 95 % of sum sigma^2 of sum_h W_Q^h W_K^hT"},
            {"layer"}, by_layer(ranks(sums)));
  group.axes.push_back(
      {{"layer_component", "1", "component of a layer's spectrum", "0 is the largest"},
       layer_spectra.size(1)});
}

class Circuits : public HeadMeasurement {
 public:
  using HeadMeasurement::HeadMeasurement;

  bool of_examples() const override { return false; }

  std::vector<std::string> names() const override {
    return {"qk_singular_values", "qk_rank_95",    "qk_layer_singular_values",
            "qk_layer_rank_95",   "ov_copying",    "ov_copying_full",
            "composition_q",      "composition_k", "composition_v"};
  }
  void finish(LabelledGroup& to) override {
    const auto& model = *setup_.run.model;
    const bool between = setup_.heads.site().within_ids();  // what is read is what is written
    merge(to, between ? circuits(setup_.heads, model.embedding(), model.unembedding())
                      : circuits(setup_.heads));
  }
};

}  // namespace

LabelledGroup circuits(const SiteHeads& grid, const Tensor& embedding, const Tensor& unembedding) {
  at::NoGradGuard no_grad;
  const std::vector<std::string> heads{"layer", "head"}, pairs{"layer", "head", "layer2", "head2"};
  std::vector<Layer> layers;
  for (int64_t l = 0; l < grid.layers(); ++l) layers.emplace_back(grid.layer(l));
  LabelledGroup group{"", head_axes(grid), {}};
  if (std::ranges::none_of(layers, [](const auto& l) { return l.heads.has_value(); })) return group;
  add_spectra(group, grid, layers);
  const auto copied = of_each(layers, [](const Layer& l) { return ov_copying(*l.heads); });
  add_array(group,
            {"ov_copying", "1", "whether the head copies (1) or suppresses (-1)",
             "Re(sum lambda) / sum abs(lambda), eigenvalues of W_V^h W_O^h"},
            heads, grid.by_head(copied));
  if (embedding.defined() && unembedding.defined()) {
    const auto tokens = of_each(
        layers, [&](const Layer& l) { return ov_copying_full(*l.heads, embedding, unembedding); });
    add_array(group,
              {"ov_copying_full", "1", "whether the head copies (1) or suppresses (-1) tokens",
               "Re(sum lambda) / sum abs(lambda), eigenvalues of E W_V^h W_O^h U^T"},
              heads, grid.by_head(tokens));
  }
  const auto compose = [&](const char* with, const char* matrix, auto later) {
    add_array(group, composition_of(with, matrix), pairs,
              grid.between_layers(compositions(layers, later)));
  };
  compose("q", "W_Q W_K^T", &Layer::qk);
  compose("k", "W_K W_Q^T", &Layer::kq);
  compose("v", "W_V W_O", &Layer::ov);
  return group;
}

std::unique_ptr<HeadMeasurement> circuits_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Circuits>(setup);
}

}  // namespace headlab
