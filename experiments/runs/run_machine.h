// On what a run was computed, as its manifest keeps it: the type of device and the precision of its
// passes, which belong to the run, and what else of the machine moves its last bits. No torch in
// here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/runs/experiment.h"

namespace headlab {

// "bf16" or "fp32": what train.precision comes to on a device of this type ("cpu", "cuda").
std::string resolved_precision(const TrainOptions& options, const std::string& device);

// "cpu in fp32": device and precision of a training with these options, of each of its sessions
// that differs, joined by " + "; "" where the manifest tells of none. Sessions of older versions
// keep no precision: it follows from the device.
std::string devices_of(const nlohmann::ordered_json& manifest, const TrainOptions& options);

// In what a training of these options that goes on from `then` on the machine of `now` would no
// longer be one computation, a line each.
std::vector<std::string> device_that_differs(const nlohmann::ordered_json& then,
                                             const nlohmann::ordered_json& now,
                                             const TrainOptions& options);

// And what the user can do about it.
std::string device_remedy(const nlohmann::ordered_json& then, const nlohmann::ordered_json& now);

// What else of the machine and its libraries is other and changes how sums are rounded, no reason
// to refuse; "" where nothing is.
std::string machine_since(const nlohmann::ordered_json& then, const nlohmann::ordered_json& now);

}  // namespace headlab
