// `init: RUN`: a training that begins with the weights of another run.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "experiments/data/data_description.h"
#include "experiments/models/model.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/experiment.h"

namespace headlab {

// Puts the run that `init` means in place of `@` and of a folder with one run in it, so that the
// experiment and its hash name it. RunError as in resolve_run().
void resolve_init(Experiment& experiment);

// The weights that an experiment begins with, and the run that they are of.
class InitialWeights {
 public:
  // None where the experiment has no `init`. `path`: where it is to be trained. RunError where the
  // weights cannot be read, ConfigError where they come from what lies at `path` itself.
  static std::optional<InitialWeights> of(const Experiment& experiment,
                                          const std::filesystem::path& path);

  // The file that holds them: another one is other data.
  const std::filesystem::path& file() const { return file_; }
  std::string text() const;  // "RUN at step N"
  // `parent` of the manifest.
  nlohmann::ordered_json parent_json() const;
  // Puts them into a model of `experiment` whose data are these; layers that are sliced there are
  // sliced first. ConfigError lists all that does not fit, also tokens that mean something else.
  void put_into(Model& model, const DataDescription& data) const;

 private:
  std::filesystem::path run_, file_;
  Checkpoint checkpoint_;
};

}  // namespace headlab
