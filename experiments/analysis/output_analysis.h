// Statistics of what a model's heads say, summed over batches that a probe watched.
#pragma once

#include "core/observe/probe.h"
#include "experiments/analysis/output_statistics.h"
#include "experiments/analysis/tensor_arrays.h"

namespace headlab {

class OutputAnalysis {
 public:
  // Of one site, whose model must outlive this and keep its heads meanwhile. Options as of
  // OutputSums: without likeness no `cka`.
  explicit OutputAnalysis(SiteHeads heads, const OutputSums::Options& options = {});

  // One batch. The probe watched it with `outputs` on; hidden[l] [B,T,D] goes into layer l
  // (ModelContext.hidden), empty: no residual_ratio; length [B] of the queries, undefined: full.
  void add(const HeadProbe& probe, const std::vector<Tensor>& hidden, const Tensor& length);

  // output_norm, contribution_norm (layer, head), output_cosine (layer, head, head2),
  // output_disagreement, residual_ratio (layer), cka (layer, head, layer2, head2). The path is the
  // caller's to name. Before the first batch all is NaN.
  LabelledGroup results() const;

 private:
  SiteHeads heads_;
  bool likeness_;
  OutputSums sums_;
};

}  // namespace headlab
