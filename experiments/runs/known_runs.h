// The runs below a folder, and which of them a user's words mean. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace headlab {

struct KnownRun {
  std::filesystem::path path;
  std::string name;   // of the config; of its directory, where prune or convert made it
  std::string label;  // the name, with the kind of heads where it is not in it, and the tag
  std::string kind;   // of heads; several with "+" between, where layers differ; "": unknown
  int64_t seed = 0;
  std::string state;             // as status.json has it; "killed" where nobody writes it any more
  int64_t step = 0;              // the last that status.json tells of
  std::optional<int64_t> steps;  // of the whole run, where its config says it
  std::optional<double> loss;    // the newest validation loss, in nat
  std::filesystem::file_time_type written;                    // when its status was written
  std::vector<std::pair<std::string, std::string>> settings;  // all of its config, by their paths
};

// Sorted by path. What is hidden and what lies inside a run is left out.
std::vector<std::filesystem::path> runs_below(const std::filesystem::path& folder);
// The one whose status was written last comes first.
std::vector<std::filesystem::path> newest_runs(const std::filesystem::path& folder);
KnownRun know_run(const std::filesystem::path& path);

// "mha, seed 1337, finished, 3 minutes ago"
std::string run_text(const KnownRun& run);
std::string age_text(std::filesystem::file_time_type then);
// What sets each of the runs apart from the others, by the settings in which not all are equal.
std::vector<std::string> what_differs(const std::vector<KnownRun>& runs);
// As it can be pasted: from the caller's directory where it lies below.
std::string shown_path(const std::filesystem::path& path);

// The run, or what is in one, that `words` mean: `@` is the newest run below runs/ of the caller's
// directory, `@2` the one before it, `@/ckpt/best` what lies in one; a folder with one run below it
// is that run. Anything else stays as it is. RunError where there is no such run, and where a
// folder holds several: they are listed.
std::filesystem::path resolve_run(const std::filesystem::path& words);
// The same, and says on stderr which run was taken where `words` did not name it.
std::filesystem::path take_run(const std::filesystem::path& words);

}  // namespace headlab
