// Format stats-outputs-1: statistics of heads' outputs from their maps, values and weights.
#include "core/torch.h"
#include "experiments/analysis/output_statistics.h"
#include "experiments/cases/case_file.h"

namespace headlab {
namespace {

// in.attention [L,B,H,T,T], in.value [L,B,H,T,e], in.output_weight [L,D,H*e], in.hidden [L,B,T,D],
// in.length [B]; metadata causal.
NamedTensors output_statistics_of_file(const CaseFile& file) {
  const auto attention = file.at("in.attention"), value = file.at("in.value");
  const auto weight = file.at("in.output_weight"), hidden = file.at("in.hidden");
  const int64_t L = attention.size(0), T = attention.size(3);
  AttentionMask mask;
  mask.causal = file.settings().truth("causal");
  mask.query_length = mask.key_length = file.at("in.length");
  // Rows beyond a length, and hidden keys, hold numbers that must not count.
  const auto counted = counted_pairs(attention[0], allowed_keys(mask, T, T, at::kCPU), mask);
  const auto rows = counted.any(-1);  // [B,H,T]
  const auto a = attention.masked_fill(counted.logical_not(), 0);

  std::vector<LayerOutputs> layers;
  std::vector<Tensor> maps, summed, weighted;
  for (int64_t l = 0; l < L; ++l) {
    layers.push_back({at::matmul(a[l], value[l]), weight[l], hidden[l], rows});
    maps.push_back(norm_map(a[l], value[l], weight[l]));
    summed.push_back(summed_norm_map(a[l], value[l], weight[l]));
    const auto of_head = maps.back().sum(at::IntArrayRef({0, 2, 3}));  // [H]
    weighted.push_back(of_head / rows.sum(at::IntArrayRef({0, 2})));
  }
  OutputSums sums;
  sums.add(layers, mask.query_length);
  std::vector<Tensor> norm, contribution, cosine, disagreement, ratio;
  for (int64_t l = 0; l < L; ++l) {
    norm.push_back(sums.output_norm(l));
    contribution.push_back(sums.contribution_norm(l));
    cosine.push_back(sums.output_cosine(l));
    disagreement.push_back(at::scalar_tensor(output_disagreement(cosine[l]), at::kDouble));
    ratio.push_back(at::scalar_tensor(sums.residual_ratio(l), at::kDouble));
  }
  return {{"out.norm_map", at::stack(maps)},
          {"out.summed_norm_map", at::stack(summed)},
          {"out.value_weighted_norm", at::stack(weighted)},
          {"out.output_norm", at::stack(norm)},
          {"out.contribution_norm", at::stack(contribution)},
          {"out.output_cosine", at::stack(cosine)},
          {"out.output_disagreement", at::stack(disagreement)},
          {"out.cka", sums.cka()},
          {"out.residual_ratio", at::stack(ratio)}};
}

const RegisterCase outputs_cases("stats-outputs-1", output_statistics_of_file);

}  // namespace
}  // namespace headlab
