#include "experiments/analysis/output_analysis.h"

#include <algorithm>

#include "core/torch.h"
#include "experiments/analysis/head_measurements.h"

namespace headlab {
namespace {

class Outputs : public HeadMeasurement {
 public:
  using HeadMeasurement::HeadMeasurement;

  std::vector<std::string> names() const override {
    return {"contribution_norm", "output_cosine", "output_disagreement", "residual_ratio", "cka"};
  }
  // Sums between all heads' features, of a large model gigabytes.
  std::vector<std::string> on_request() const override {
    int64_t features = 0;
    for (int64_t l = 0; l < setup_.heads.layers(); ++l)
      features += setup_.heads.layer(l).heads() * setup_.heads.layer(l).value_width();
    constexpr int64_t kMost = 8192;  // a quarter of a gigabyte
    return features > kMost ? std::vector<std::string>{"cka"} : std::vector<std::string>{};
  }

  void start(const std::vector<std::string>& wanted, HeadProbe& probe) override {
    probe.head_outputs = true;
    const bool likeness = std::ranges::find(wanted, "cka") != wanted.end();
    sums_.emplace(setup_.heads, OutputSums::Options{.likeness = likeness});
  }
  void add(const AnalysisBatch& batch) override {
    const auto& site = setup_.heads.site();
    sums_->add(batch.probe, batch.hidden.at(site.stack), batch.data.*site.query_length);
  }
  void finish(LabelledGroup& to) override { merge(to, sums_->results()); }

 private:
  std::optional<OutputAnalysis> sums_;
};

}  // namespace

OutputAnalysis::OutputAnalysis(SiteHeads heads, const OutputSums::Options& options)
    : heads_(std::move(heads)), likeness_(options.likeness), sums_(options) {}

void OutputAnalysis::add(const HeadProbe& probe, const std::vector<Tensor>& hidden,
                         const Tensor& length) {
  std::vector<LayerOutputs> batch;
  for (int64_t l = 0; l < heads_.layers(); ++l) {
    const auto& layer = heads_.layer(l);
    const auto& seen = probe.layer_outputs().at({heads_.name(), l, 0});
    const auto rows = at::tensor(alive_rows(layer), at::kLong).to(seen.o.device());
    const auto of_alive = [&](const Tensor& t) {  // [B,H or 1,..]
      return t.defined() && t.size(1) == seen.o.size(1) ? t.index_select(1, rows) : t;
    };
    LayerOutputs& outputs = batch.emplace_back();
    outputs.o = of_alive(seen.o);
    outputs.counted = of_alive(seen.counted);
    const int64_t D = layer.shape().d_model, H = seen.o.size(1), e = seen.o.size(3);
    if (seen.weight.defined()) outputs.weight = of_alive(seen.weight.view({D, H, e})).flatten(1);
    if (!hidden.empty()) outputs.hidden = hidden.at(l);
  }
  sums_.add(batch, length);
}

LabelledGroup OutputAnalysis::results() const {
  const int64_t L = heads_.layers();
  std::vector<Tensor> norm(L), contribution(L), cosine(L);
  auto disagreement = at::full({L}, kNaN, at::kDouble), ratio = disagreement.clone();
  for (int64_t l = 0; l < sums_.layers(); ++l) {
    norm[l] = sums_.output_norm(l);
    contribution[l] = sums_.contribution_norm(l);
    cosine[l] = sums_.output_cosine(l);
    disagreement[l] = output_disagreement(cosine[l]);
    ratio[l] = sums_.residual_ratio(l);
  }
  LabelledGroup group{"", head_axes(heads_), {}};
  const auto put = [&](const char* name, const char* what, const char* formula,
                       std::vector<std::string> dims, const Tensor& values) {
    add_array(group, {name, "1", what, formula}, std::move(dims), values);
  };
  put("output_norm", "norm of what the head says", "mean over rows of norm(o_h), before gates",
      {"layer", "head"}, heads_.by_head(norm));
  put("contribution_norm", "norm of what the head adds to the residual stream",
      "mean over rows of norm(W_O^h o_h), before gates", {"layer", "head"},
      heads_.by_head(contribution));
  put("output_cosine", "cosine of what two heads say",
      "mean over rows of o_h . o_g / ((norm(o_h) + 1e-20) (norm(o_g) + 1e-20))",
      {"layer", "head", "head2"}, heads_.within_layers(cosine));
  put("output_disagreement", "cosine of all pairs of heads",
      "mean of output_cosine over all pairs of alive heads, the diagonal included", {"layer"},
      disagreement);
  put("residual_ratio", "share of the layer's input that differs between tokens",
      "mean over examples of norm_F(X - column means) / norm_F(X)", {"layer"}, ratio);
  if (likeness_ && sums_.layers() > 0)
    put("cka", "linear centred kernel alignment of what two heads say",
        "norm_F(Y^T X)^2 / (norm_F(X^T X) norm_F(Y^T Y)), X and Y o_h and o_g of all rows that "
        "count for both, columns centred",
        {"layer", "head", "layer2", "head2"}, heads_.between_layers(sums_.cka()));
  return group;
}

std::unique_ptr<HeadMeasurement> outputs_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Outputs>(setup);
}

}  // namespace headlab
