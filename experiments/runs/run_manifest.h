// manifest.json: what made a run, so that it can be made again. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headlab {

std::string hdf5_version();
std::string utc_now();  // 2026-01-31T12:00:00Z

std::vector<std::string>& command_line();  // argv of this process; main sets it

// What only the caller knows.
struct ManifestEntries {
  std::string torch = {};              // version
  std::string cuda = {};               // version; empty: runs without
  std::vector<std::string> gpus = {};  // names
  int64_t threads = 0, seed = 0;
  std::vector<std::filesystem::path> data_files = {};
};

// git (commit, dirty; null outside a checkout), versions, cpu, gpus, threads, seeds, data (path,
// bytes, sha256), argv, hostname, scheduler (ids that the environment has), start_utc, end_utc
// null, status "running". DataError where a data file cannot be read.
nlohmann::ordered_json make_manifest(const ManifestEntries& entries);

// The manifest of a run that goes on: `now`, with what `before` said of itself under `previous`
// (oldest first). RunError when a data file has changed in between.
nlohmann::ordered_json continue_manifest(const nlohmann::ordered_json& before,
                                         nlohmann::ordered_json now);

}  // namespace headlab
