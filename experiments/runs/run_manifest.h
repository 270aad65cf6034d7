// manifest.json: what made a run, so that it can be made again. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
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
  std::string device = "cpu";          // its type, "cuda" of a GPU
  std::string precision = "fp32";      // of passes in training, "bf16"
  std::string cpu_capability = {};     // instruction set of torch's kernels; empty: not known
  std::string isa = {};                // likewise of our own
  int64_t threads = 0, seed = 0;
  nlohmann::ordered_json data = nlohmann::ordered_json::array();  // data_json()
  nlohmann::ordered_json code = {};                               // code_json()
};

// Path, bytes, times, inode and sha256 of a file. It is read, except where this process has read it
// before, or `known`, the entries of a manifest, has one of the same path, bytes, times and inode.
// DataError where it cannot be read.
nlohmann::ordered_json file_json(const std::filesystem::path& file,
                                 const nlohmann::ordered_json& known = {});
nlohmann::ordered_json data_json(const std::vector<std::filesystem::path>& files,
                                 const nlohmann::ordered_json& known = {});
// Which of the files have other contents, in their order, a line each. Empty: the same data.
std::vector<std::string> data_that_differ(const nlohmann::ordered_json& then,
                                          const nlohmann::ordered_json& now);

// git (see git_json), code, program (its SHA-256), versions, device, precision, cpu,
// cpu_capability, isa, gpus, threads, seeds, data (path, bytes, sha256), argv, hostname, scheduler
// (ids that the environment has), start_utc, end_utc null, status "running".
nlohmann::ordered_json make_manifest(const ManifestEntries& entries);

// manifest.json; null where it is missing or damaged: no JSON, or other types than those above.
nlohmann::ordered_json read_manifest(const std::filesystem::path& run);

// Updates of the whole run, as it was begun: epochs are counted in them, too. None where it does
// not have them.
std::optional<int64_t> steps_of(const nlohmann::ordered_json& manifest);

// The manifest of a run that goes on: `now`, with what `before` said of itself under `previous`
// (oldest first), and the run_id that its log has, also where its directory has another name by
// now. RunError when a data file has changed in between.
nlohmann::ordered_json continue_manifest(const std::filesystem::path& run,
                                         const nlohmann::ordered_json& before,
                                         nlohmann::ordered_json now);

}  // namespace headlab
