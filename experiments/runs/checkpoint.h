// Checkpoints of a run: ckpt/step-00002000/{model.safetensors, optimizer.safetensors, state.json},
// and the links ckpt/last and ckpt/best.
//
// A name in ckpt/ always means a whole checkpoint, whenever the process or the machine dies.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/models/named_tensors.h"

namespace headlab {

struct LocatedRun;

struct Checkpoint {
  int64_t step = 0;
  NamedTensors model = {};
  std::optional<NamedTensors> optimizer = {};  // none: no training has made these weights
  // The caller's: tokens, wall_s, RNG words, early stopping, ... JSON has no NaN and no infinity:
  // see metric_json.
  nlohmann::json trainer = {};
};

struct RetentionOptions {
  int64_t keep_last = 2;                     // the newest ones
  bool keep_best = true;                     // and the best
  std::optional<int64_t> resumed_from = {};  // and this one
};

// Saves under its step, replacing one of that step, moves `last` to it (and `best`, if it is the
// best so far), and removes those that need not stay. On return everything is on the disk.
// RunError where the storage refuses; the checkpoints that were there are there still.
void save_checkpoint(const std::filesystem::path& run, const Checkpoint& checkpoint, bool best,
                     const RetentionOptions& retention = {});

// model.safetensors of the checkpoint of a step.
std::filesystem::path weights_file(const std::filesystem::path& run, int64_t step);

// The newest checkpoint that is whole; none when the run has none at all. `warning` names newer
// ones that are damaged, and stays as it is where there are none. RunError when all are damaged.
std::optional<Checkpoint> load_latest(const std::filesystem::path& run,
                                      std::string* warning = nullptr);

// The checkpoint that was named, or the latest of the run (RunError when there is none); RunError
// naming it and the file that is missing or whose bytes are not those that were written.
Checkpoint load_located(const LocatedRun& located, std::string* warning = nullptr);
// The same for who does not train on: the optimizer's file is neither read nor looked at.
Checkpoint load_located_weights(const LocatedRun& located, std::string* warning = nullptr);

// Makes ckpt/ what it was after the checkpoint of `step` was saved: later ones are gone, `last`
// leads to it, `best` to the best one so far. For a run that goes on from there.
void rewind_checkpoints(const std::filesystem::path& run, int64_t step);

}  // namespace headlab
