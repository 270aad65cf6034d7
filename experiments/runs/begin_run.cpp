#include "experiments/runs/begin_run.h"

#include <fmt/format.h>

#include <utility>

#include "core/errors.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

std::optional<Checkpoint> checkpoint_of(const fs::path& run, const ResumeFrom& from,
                                        std::string& warning) {
  if (from.named.empty()) return load_latest(run, &warning);
  return load_located(locate_run(from.named), &warning);
}

// One that was killed in its last calls leaves its lock behind, which nobody holds.
void remove_stale_lock(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path / ".lock", none)) return;
  try {
    const WriterLock lock(path);
  } catch (const RunError&) {  // a directory that may only be read keeps it
  }
}

bool goes_on_by_itself(const ResumeFrom& from) { return !from.never && from.named.empty(); }

}  // namespace

ResumeFrom ResumeFrom::parse(const std::string& text) {
  if (text == "auto") return {};
  if (text == "never") return {.never = true};
  return {.named = text};
}

std::optional<RunStatus> already_finished(const fs::path& path, const ResumeFrom& from) {
  const auto found = find_run(path);
  if (found.kind == FoundRun::Kind::kRunning)
    throw TakenError(fmt::format("{}: is being written by {}", path.string(), found.holder));
  if (found.kind == FoundRun::Kind::kFinished && goes_on_by_itself(from)) {
    remove_stale_lock(path);
    return found.status;
  }
  return std::nullopt;
}

BegunRun begin_run(const fs::path& path, const std::string& config_yaml,
                   nlohmann::ordered_json manifest, const std::string& data_json,
                   const ResumeFrom& from, const std::function<void()>& check) {
  BegunRun begun;
  manifest["run_id"] = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (find_run(path).kind == FoundRun::Kind::kAbsent) {
    begun.directory.emplace(RunDirectory::create(path, config_yaml, manifest, data_json));
    return begun;
  }
  WriterLock lock(path);
  if (check) check();
  const auto status = read_status(path);
  if (status && status->state == RunState::kFinished && goes_on_by_itself(from)) return begun;
  if (!from.never) begun.checkpoint = checkpoint_of(path, from, begun.warning);
  if (!begun.checkpoint) {
    begun.directory.emplace(
        RunDirectory::replace(path, std::move(lock), config_yaml, manifest, data_json));
    return begun;
  }
  begun.directory.emplace(RunDirectory::resume(path, std::move(lock), manifest, data_json));
  rewind_checkpoints(path, begun.checkpoint->step);
  return begun;
}

}  // namespace headlab
