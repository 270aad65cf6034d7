// Takes heads away, one set after the other, and measures what that did. An ablated head's output
// o_h is exchanged; everything upstream of it is untouched.
#pragma once

#include "experiments/data/source.h"
#include "experiments/measuring/change_of_outputs.h"
#include "experiments/measuring/significance.h"
#include "experiments/models/site_heads.h"

namespace headlab {

enum class AblationMode {
  kZero,          // o_h = 0: its value bias goes too, the output bias stays
  kMean,          // o_h = its mean over all positions of the data
  kPositionMean,  // o_h[t] = its mean over the examples that reach position t
  kUniform        // equal weights on all keys that it may attend to
};
const std::vector<std::string>& ablation_modes();     // "zero", "mean", "position_mean", "uniform"
AblationMode ablation_mode(const std::string& name);  // of those

// Exchanges what the heads in `gone` (bool [H]) say. `mean` of every head, for kMean [H,1,e], for
// kPositionMean [H,T,e]; undefined: 0.
void ablate_heads(HeadContext& heads, const Tensor& gone, AblationMode mode, const Tensor& mean);

// Whether a mode means anything for all of these heads: equal weights are of heads whose weights
// are over tokens (HeadTraits::map).
bool can_be_ablated(Model& model, const std::vector<HeadId>& heads, AblationMode mode);

struct Ablated {
  std::vector<HeadId> heads;
  // OutputChangeSums::values(); NaN where they cannot be ablated.
  std::map<std::string, double> changes;
  Significance significance;  // of the change of the loss, among all sets
};

// Every set of heads by itself, in eval mode, the changes against the whole model. A pass goes on
// from the hidden state into the first layer that is touched: ablating all H L heads of a model
// costs (L + 1) / 2L of as many whole passes, and one more for the hidden states.
// `before_each` is called as often as batches x sets, for progress; may be empty.
std::vector<Ablated> ablate(Model& model, const Sample& sample,
                            const std::vector<std::vector<HeadId>>& sets, AblationMode mode,
                            const Compute& compute, const std::function<void()>& before_each = {});

// What heads are ranked on before some are cut: as much of the training data, so that what judges
// the cut has no part in it; of data without any, what judges.
Sample ranking_sample(const Sample& judging);

// Of the alive heads: every one alone; every pair; all but one of each layer (the sets name those
// that go; one for each head that stays).
std::vector<std::vector<HeadId>> single_heads(Model& model);
std::vector<std::vector<HeadId>> head_pairs(Model& model);
std::vector<std::vector<HeadId>> all_but_one(Model& model);

}  // namespace headlab
