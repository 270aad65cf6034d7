#include "experiments/analysis/output_analysis.h"

#include <limits>

#include "core/torch.h"

namespace headlab {
namespace {

const LogVariable kNorm{"output_norm", "1", "norm of what the head says",
                        "mean over rows of norm(o_h), before gates"};
const LogVariable kContribution{"contribution_norm", "1",
                                "norm of what the head adds to the residual stream",
                                "mean over rows of norm(W_O^h o_h), before gates"};
const LogVariable kCosine{"output_cosine", "1", "cosine of what two heads say",
                          "mean over rows of o_h . o_g / ((norm(o_h) + 1e-20) (norm(o_g) + "
                          "1e-20))"};
const LogVariable kDisagreement{"output_disagreement", "1", "cosine of all pairs of heads",
                                "mean of output_cosine over all pairs of alive heads, the "
                                "diagonal included"};
const LogVariable kResidual{"residual_ratio", "1",
                            "share of the layer's input that differs between tokens",
                            "mean over examples of norm_F(X - column means) / norm_F(X)"};
const LogVariable kCka{"cka", "1", "linear centred kernel alignment of what two heads say",
                       "norm_F(Y^T X)^2 / (norm_F(X^T X) norm_F(Y^T Y)), X and Y o_h and o_g of "
                       "all rows that count for both, columns centred"};

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
  auto disagreement = at::full({L}, std::numeric_limits<double>::quiet_NaN(), at::kDouble),
       ratio = disagreement.clone();
  for (int64_t l = 0; l < sums_.layers(); ++l) {
    norm[l] = sums_.output_norm(l);
    contribution[l] = sums_.contribution_norm(l);
    cosine[l] = sums_.output_cosine(l);
    disagreement[l] = output_disagreement(cosine[l]);
    ratio[l] = sums_.residual_ratio(l);
  }
  LabelledGroup group{"", head_axes(heads_), {}};
  const auto put = [&](const LogVariable& about, const std::vector<std::string>& dims,
                       const Tensor& values) {
    group.arrays.push_back(result_array(about, dims, values));
  };
  put(kNorm, {"layer", "head"}, heads_.by_head(norm));
  put(kContribution, {"layer", "head"}, heads_.by_head(contribution));
  put(kCosine, {"layer", "head", "head2"}, heads_.within_layers(cosine));
  put(kDisagreement, {"layer"}, disagreement);
  put(kResidual, {"layer"}, ratio);
  if (likeness_ && sums_.layers() > 0)
    put(kCka, {"layer", "head", "layer2", "head2"}, heads_.between_layers(sums_.cka()));
  return group;
}

}  // namespace headlab
