// How much each head matters, without taking it away: the gradient of the loss at gates of 1
// (Michel, Levy, Neubig 2019, arXiv 1905.10650), and the size of what it says.
//
// With a gate xi_h = 1 on the output o_h of head h, and L_n the summed loss of example n:
//   c[n,h,t] = <o_h[n,t], dL_n / do_h[n,t]>,  sum_t c = dL_n / dxi_h
#pragma once

#include "experiments/data/source.h"
#include "experiments/models/site_heads.h"

namespace headlab {

// Sums over batches of one layer's c, padding left out.
class ImportanceSums {
 public:
  // c [B,H,T] of one batch; length [B], undefined: T each.
  void add(const Tensor& c, const Tensor& length = {});

  // [H], float64. NaN without examples. By name:
  // paper: 1/N sum_n |sum_t c|: E |dL_n/dxi_h|, equation 2
  // per_position: sum_n sum_t |c| / sum_n length_n: both released forks
  // batch: sum_b |sum_{n in b} sum_t c| / sum_n length_n: depends on the batch size
  Tensor reduced(const std::string& reduction) const;
  Tensor paper_interval() const;  // half of the 95 % interval of paper, of t; NaN of one example

 private:
  Tensor by_example_, example_squares_, by_position_, by_batch_;  // [H]
  double examples_ = 0, positions_ = 0;
};
const std::vector<std::string>& importance_reductions();  // "paper", ...

// I / (norm2(I) + 1e-20), the norm over a layer's heads. [L,H], NaN where there is no head.
Tensor normalized_by_layer(const Tensor& importance);
// `norm`, one of importance_norms(): "layer" does so in every layer; "global" divides by the norm
// over the heads of all sites, "none" by nothing, so that these two rank heads alike.
SiteGrids normalized(const SiteGrids& importance, const std::string& norm);
// Other numbers of the heads, such as intervals, over the same norms.
SiteGrids over_norms_of(const SiteGrids& importance, const SiteGrids& numbers,
                        const std::string& norm);
const std::vector<std::string>& importance_norms();

// Names under which an analysis has what follows: importance (paper, within its layer),
// importance_global, importance_<reduction>, activation, and of what comes from paper
// <name>_interval.
const std::vector<std::string>& importance_arrays();

// All that one pass over some batches says of the heads; NaN where none is.
struct HeadImportance {
  std::map<std::string, SiteGrids> raw;  // by reduction
  SiteGrids paper_interval;              // half of raw["paper"]'s
  SiteGrids activation;                  // mean over positions of the norm of what the head says
};

// Eval mode, one forward and backward pass a batch; no gradient of a parameter is touched.
HeadImportance measure_importance(Model& model, const Sample& sample, const Compute& compute);

}  // namespace headlab
