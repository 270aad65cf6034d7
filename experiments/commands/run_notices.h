// What a user may not expect of a training that begins, on stderr.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "experiments/data/source.h"
#include "experiments/runs/experiment.h"

namespace headlab {

// Where the schedule never reaches its peak.
void say_unreached_rate(const Experiment& experiment, const DataSource& data);
// The run beside `path` that differs from this one in its data alone, where there is one.
void say_same_on_other_data(const std::filesystem::path& path, const Experiment& experiment,
                            const nlohmann::ordered_json& data);

}  // namespace headlab
