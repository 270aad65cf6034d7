// Learned gates of whole models: what they have decided, putting them around trained heads, and
// taking them off again.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "experiments/conversion/convert_model.h"
#include "experiments/models/site_heads.h"

namespace headlab {

// Of every head, float64 on the CPU. NaN: the layer has no such gates, or the head is no longer
// alive.
struct GateGrids {
  SiteGrids log_alpha, test;
};
GateGrids gate_grids(Model& model);

bool has_gates(Model& model);  // any layer
// Heads that are no longer alive and those whose test gate is 0.
int64_t gone_or_shut(Model& model);

// heads, alive, undecided, expected; `kept` and `shut` as "layer:head"; the histogram
// of log_alpha (edges, counts: what lies beyond an end is in its bin). Kept are the `keep` heads of
// largest log_alpha, or those with a test gate above 0. Null where no layer has gates.
nlohmann::ordered_json gate_report(Model& model, std::optional<int64_t> keep);
std::string gate_text(const nlohmann::ordered_json& report);  // for people, lines

// How gates begin that are put around trained heads, and what they are to do.
struct GateStart {
  double init = 2.5;    // log_alpha of every head
  double penalty = -1;  // loss of an open head; below 0: the kind's default
  int64_t heads = 0;    // of the whole model that stay open in the end; 0: no such target
  int64_t begin = 0, updates = 0;  // the target rises over the first half of these
};
ConfigNode gate_options(const GateStart& start);

// A trained layer of any kind, masked and sliced or not, as `gated` with the kind as its inner one.
// `options`: of the gates, a mapping. log_alpha is as a new layer has it: from torch's generator.
// ConfigError for a layer that has gates already.
Conversion to_gated(const TrainedLayer& layer, const ConfigNode& options);

// The run's model without its hard-concrete gates: the inner kind with every head's gate 1, other
// layers as they are. Heads that should go (gate_grid) must then be masked; where gates are 0 or 1
// and heads do not talk to each other that is the gated model's function. ConfigError where no
// layer has such gates.
ConvertedModel ungate(const OpenedRun& run, const at::Device& device);
// `run` with that model and its settings.
OpenedRun ungated(const OpenedRun& run, const at::Device& device);

}  // namespace headlab
