// A run that exists: its config, data, and model with the weights of a checkpoint.
#pragma once

#include <filesystem>

#include "core/named_tensors.h"
#include "experiments/data/source.h"
#include "experiments/experiment.h"
#include "experiments/models/model.h"

namespace headlab {

// The model that an experiment describes, initialised from its seed alone, on `device`.
std::shared_ptr<Model> build_model(const Experiment& experiment, const DataSource& data,
                                   const at::Device& device);

// Puts a checkpoint's tensors into a model built from the same config; layers that the checkpoint
// holds sliced are sliced first. RunError lists everything that does not fit.
void load_model(Model& model, const NamedTensors& tensors);

struct OpenedRun {
  Experiment experiment;
  std::shared_ptr<DataSource> data;
  std::shared_ptr<Model> model;  // eval mode
  int64_t step = 0;              // updates behind the weights
};

// `path`: a run directory (its last checkpoint), or a checkpoint directory inside one.
OpenedRun open_run(const std::filesystem::path& path, const at::Device& device);

}  // namespace headlab
