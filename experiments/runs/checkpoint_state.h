// state.json of a checkpoint: what it holds beside tensors, sealed by a hash. No torch in here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace headlab {

inline constexpr const char* kStateFile = "state.json";
inline constexpr int64_t kStateVersion = 1;  // its schema_version

// The text of state.json: it protects itself too, for its last member is the SHA-256 of the text up
// to its digits.
std::string sealed_state(const nlohmann::ordered_json& state);

// Of the directory of a checkpoint. DataError where the file is missing or damaged.
nlohmann::json read_state(const std::filesystem::path& checkpoint);

}  // namespace headlab
