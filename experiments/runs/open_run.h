// A run that exists: its config, and its model with the weights of a checkpoint; and runs made of a
// checkpoint alone.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "experiments/data/source.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/models/model.h"
#include "experiments/models/named_tensors.h"
#include "experiments/models/restore_model.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/experiment.h"
#include "experiments/runs/run_data.h"
#include "experiments/runs/run_metrics.h"

namespace headlab {

// The model that an experiment describes, initialised from its seed alone, on `device`.
std::shared_ptr<Model> build_model(const Experiment& experiment, const DataShape& data,
                                   const at::Device& device);

// ConfigError where weights are of a type that updates would be lost in.
void require_trainable(const Experiment& experiment);

// The same of one that is to be trained: ConfigError where it has no loss, or half weights.
std::shared_ptr<Model> build_trained_model(const Experiment& experiment, const DataShape& data,
                                           const at::Device& device);

struct OpenedRun {
  Experiment experiment;
  DataDescription data_description;  // what the model asks of its data
  std::shared_ptr<DataSource> data;  // null until who reads data has opened some
  std::shared_ptr<Model> model;      // eval mode
  int64_t step = 0;                  // updates behind the weights
  std::filesystem::path path;        // of the run, absolute
  nlohmann::ordered_json manifest;   // as it lies there; null where it is missing or damaged
};

// `path`: a run directory (its last checkpoint), or a checkpoint directory inside one. Reads
// nothing beside it, so that the run may have been moved and its data may be gone. A run of an
// older version that keeps no data.json has its data opened: DataError where they cannot be.
OpenedRun open_run(const std::filesystem::path& path, const at::Device& device);
// With its own data. DataError where they cannot be read.
OpenedRun open_run_and_data(const std::filesystem::path& path, const at::Device& device);

// What the manifest says of the device: its type, "cpu" or "cuda"; version of the CUDA runtime, ""
// without a GPU; the names of the GPUs in use.
std::string device_type_of(const at::Device& device);
std::string cuda_version(const at::Device& device);
std::vector<std::string> gpu_names(const at::Device& device);
// Numbers in all parameters of a model and in those that `train` trains, and the names of these.
nlohmann::ordered_json parameters_json(Model& model, const TrainOptions& train);
// The kinds of heads of every layer as built, and of layers within layers.
std::set<std::string> kinds_of_heads(Model& model);
// The maps that they choose by name, but for the softmax, which is core's.
std::set<std::string> maps_of_heads(Model& model);

// The manifest of this process working on an experiment. `data`: data_json() of the source's files.
nlohmann::ordered_json process_manifest(const Experiment& experiment,
                                        const nlohmann::ordered_json& data,
                                        const at::Device& device);
// The same with the parameters and the code of the model.
nlohmann::ordered_json manifest_of(const Experiment& experiment, Model& model,
                                   const nlohmann::ordered_json& data, const at::Device& device);
// `parent` in the manifest of what is made of step `step` of a run: with the code that made it.
nlohmann::ordered_json parent_json(const std::filesystem::path& run, int64_t step,
                                   const nlohmann::ordered_json& manifest);
// The same for what is made of a run: that run, its code and what it was made from are its
// `parent`.
nlohmann::ordered_json manifest_of(const OpenedRun& parent, const Experiment& experiment,
                                   Model& model, const at::Device& device);

// A finished run of one checkpoint, its best, at `path` itself: whole or not at all. RunError where
// the storage refuses, and where anything but an empty directory lies there. `add_files` puts more
// into the run before it takes its place.
void write_run(const std::filesystem::path& path, Experiment experiment,
               const DataDescription& description, const Checkpoint& checkpoint,
               const nlohmann::ordered_json& manifest, const Metrics& metrics,
               const std::function<void(const std::filesystem::path& run)>& add_files = {});

// Weights of `model` as step `step` of a run that has not yet trained it. `validation_loss`: the
// one that training is to fall below, where it is known.
Checkpoint untrained_checkpoint(const Model& model, int64_t step,
                                std::optional<double> validation_loss);

// What a file of results says of the run that it is about.
RootAttributes root_attributes(Experiment experiment, const std::string& title,
                               const std::string& run_id, const nlohmann::ordered_json& manifest);

}  // namespace headlab
