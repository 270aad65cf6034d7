// What is in a log, whether it is being written, finished, or left by a dead writer. No torch in
// here.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace headlab {

// Status, groups, records, last values, sizes of maps. RunError in one line: not HDF5, not a log,
// damaged.
nlohmann::ordered_json inspect_log(const std::filesystem::path& path);
std::string to_text(const nlohmann::ordered_json& inspected);  // for people

}  // namespace headlab
