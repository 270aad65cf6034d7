// Conversion of a whole trained model, and what it cost.
#pragma once

#include <functional>

#include "experiments/conversion/convert.h"
#include "experiments/runs/open_run.h"

namespace headlab {

struct ConvertedModel {
  Experiment experiment;         // that describes the converted model
  std::shared_ptr<Model> model;  // eval mode, with every other weight as it was
  std::map<std::string, std::vector<Conversion>> layers;  // of each site
};

// Converts each attention layer of each site; `edit` changes what else the model's block says.
// ConfigError where a layer cannot be converted or
// where the model that comes out cannot be described.
ConvertedModel convert_model(const OpenedRun& run,
                             const std::function<Conversion(const TrainedLayer&)>& convert,
                             const at::Device& device,
                             const std::function<void(ConfigNode& model)>& edit = {});

// Relative Frobenius errors on examples of a split: norm(new - old) / norm(old).
struct ConversionErrors {
  // Of each site, of each layer on the input that it has in the old model.
  std::map<std::string, std::vector<double>> outputs;
  double logits = 0;  // of the whole models
};

// Both models in eval mode.
ConversionErrors compare_models(Model& before, Model& after, const Sample& sample,
                                const Compute& compute);

}  // namespace headlab
