#include "experiments/runs/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/files/new_folder.h"
#include "experiments/files/regular_file.h"
#include "experiments/files/replacement_file.h"
#include "experiments/files/sha256.h"
#include "experiments/runs/checkpoint_state.h"
#include "experiments/runs/run_files.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr std::string_view kStepPrefix = "step-";

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

// The steps that have a checkpoint, newest first.
std::vector<int64_t> saved_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int64_t step = 0;
    if (!name.starts_with(kStepPrefix)) continue;
    std::from_chars(name.data() + kStepPrefix.size(), name.data() + name.size(), step);
    if (name == step_name(step)) steps.push_back(step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw RunError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string target_of(const fs::path& link) {  // empty: no such link
  std::error_code none;
  return fs::read_symlink(link, none).string();
}

// The new link takes the place of an old one in one step.
void point(const fs::path& link, const std::string& target) {
  if (target_of(link) == target) return;
  const fs::path temporary = link.parent_path() / (".tmp-" + link.filename().string());
  fs::remove(temporary);
  fs::create_symlink(target, temporary);
  fs::rename(temporary, link);
}

// Gives a directory its name; what had the name before has the temporary one then.
void put_in_place(const fs::path& temporary, const fs::path& path) {
  if (!fs::exists(path)) return fs::rename(temporary, path);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  // A file system that cannot exchange: for a moment nothing has the name.
  const fs::path old = temporary.string() + "-old";
  fs::remove_all(old);
  fs::rename(path, old);
  fs::rename(temporary, path);
  fs::rename(old, temporary);
}

// Removes directories, each of which loses its name first: none is ever half there.
void discard(const fs::path& folder, const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    const fs::path doomed = folder / (".tmp-old-" + step_name(step));
    fs::remove_all(doomed);
    fs::rename(folder / step_name(step), doomed);
    fs::remove_all(doomed);
  }
}

std::optional<int64_t> best_step(const fs::path& folder, const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    try {
      if (read_state(folder / step_name(step)).value("best", false)) return step;
    } catch (const DataError&) {  // a damaged one is nobody's best
    }
  }
  return std::nullopt;
}

void remove_old(const fs::path& folder, int64_t newest, const RetentionOptions& retention) {
  std::vector<int64_t> steps = saved_steps(folder);
  std::erase_if(steps, [&](int64_t step) { return step > newest; });
  const std::string best = target_of(folder / "best");
  const size_t kept = std::min<size_t>(steps.size(), std::max<int64_t>(retention.keep_last, 1));
  std::vector<int64_t> old(steps.begin() + kept, steps.end());
  std::erase_if(old, [&](int64_t step) {
    return step == retention.resumed_from || (retention.keep_best && step_name(step) == best);
  });
  discard(folder, old);
}

void write_files(const fs::path& directory, const Checkpoint& checkpoint, bool best) {
  nlohmann::ordered_json state{{"schema_version", kStateVersion},
                               {"step", checkpoint.step},
                               {"best", best},
                               {"trainer", checkpoint.trainer}};
  const auto write = [&](const char* name, const NamedTensors& tensors) {
    const fs::path path = directory / name;
    write_tensors(path, tensors);
    state["files"][name] = {{"bytes", fs::file_size(path)}, {"sha256", sha256_of_file(path)}};
  };
  write(kModelFile, checkpoint.model);
  if (checkpoint.optimizer) write(kOptimizerFile, *checkpoint.optimizer);
  replace_file(directory / kStateFile, sealed_state(state));
}

// Errors of the standard library and of reading back what was written, as RunError.
template <class Action>
void as_run_error(const fs::path& path, const Action& action) {
  try {
    action();
  } catch (const fs::filesystem_error& error) {
    const fs::path& made = error.path2().empty() ? error.path1() : error.path2();
    const fs::path& where = made.empty() ? path : made;
    throw RunError(
        fmt::format("{}: cannot be written: {}", where.string(), error.code().message()));
  } catch (const DataError& error) {
    throw RunError(error.what());
  }
}

NamedTensors read_verified(const fs::path& path, const nlohmann::json& state) {
  const nlohmann::json& stated = state.at("files").at(path.filename().string());
  // Its size first: to hash a terabyte of zeros takes an hour.
  std::error_code none;
  const uintmax_t bytes = fs::file_size(path, none);
  if ((!none && stated.at("bytes") != bytes) || stated.at("sha256") != sha256_of_file(path)) {
    throw DataError(fmt::format("{}: is damaged: its bytes are not those written", path.string()));
  }
  return read_tensors(path);
}

// Its step, weights and the trainer's words. DataError, JSON's exceptions.
Checkpoint read_weights(const fs::path& directory, const nlohmann::json& state) {
  return {.step = whole_number(state.at("step")),
          .model = read_verified(directory / kModelFile, state),
          .optimizer = std::nullopt,
          .trainer = state.at("trainer")};
}

Checkpoint read_all(const fs::path& directory, const nlohmann::json& state) {
  Checkpoint checkpoint = read_weights(directory, state);
  if (state.at("files").contains(kOptimizerFile))
    checkpoint.optimizer = read_verified(directory / kOptimizerFile, state);
  return checkpoint;
}

using Reading = Checkpoint (*)(const fs::path& directory, const nlohmann::json& state);

Checkpoint load(const fs::path& directory, Reading read) {
  try {
    return read(directory, read_state(directory));
  } catch (const DataError& error) {
    throw RunError(error.what());
  } catch (const nlohmann::json::exception&) {
    throw RunError(
        fmt::format("{}: lacks what a checkpoint states", (directory / kStateFile).string()));
  }
}

std::optional<Checkpoint> load_latest(const fs::path& run, std::string* warning, Reading read) {
  std::string damaged;  // one line each
  for (const int64_t step : saved_steps(run / "ckpt")) {
    try {
      Checkpoint checkpoint = load(run / "ckpt" / step_name(step), read);
      if (warning != nullptr && !damaged.empty()) {
        *warning = fmt::format("{}; the checkpoint of step {} is used", damaged, checkpoint.step);
      }
      return checkpoint;
    } catch (const RunError& error) {
      damaged += (damaged.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (damaged.empty()) return std::nullopt;
  throw RunError(damaged + "; no other checkpoint is there: start anew with --resume never");
}

Checkpoint load_located(const LocatedRun& located, std::string* warning, Reading read) {
  if (!located.checkpoint.empty()) return load(located.checkpoint, read);
  std::optional<Checkpoint> latest = load_latest(located.run, warning, read);
  if (!latest) throw RunError(fmt::format("{}: has no checkpoint yet", located.run.string()));
  return std::move(*latest);
}

}  // namespace

fs::path weights_file(const fs::path& run, int64_t step) {
  return run / "ckpt" / step_name(step) / kModelFile;
}

void save_checkpoint(const fs::path& run, const Checkpoint& checkpoint, bool best,
                     const RetentionOptions& retention) {
  const fs::path folder = run / "ckpt", path = folder / step_name(checkpoint.step);
  const fs::path temporary = folder / (".tmp-" + step_name(checkpoint.step));
  as_run_error(path, [&] {
    const Removal removal(temporary);  // of what has this name in the end, new or old
    require_own_directory(folder);
    if (fs::create_directory(folder)) sync_directory(run);
    const bool is_best =
        retention.keep_best && (best || target_of(folder / "best") == step_name(checkpoint.step));
    fs::remove_all(temporary);
    fs::create_directory(temporary);
    write_files(temporary, checkpoint, is_best);  // and syncs them and their directory
    put_in_place(temporary, path);
    sync_directory(folder);
    point(folder / "last", path.filename());
    if (is_best) point(folder / "best", path.filename());
    sync_directory(folder);
    remove_old(folder, checkpoint.step, retention);
  });
}

std::optional<Checkpoint> load_latest(const fs::path& run, std::string* warning) {
  return load_latest(run, warning, read_all);
}

Checkpoint load_located(const LocatedRun& located, std::string* warning) {
  return load_located(located, warning, read_all);
}

Checkpoint load_located_weights(const LocatedRun& located, std::string* warning) {
  return load_located(located, warning, read_weights);
}

void rewind_checkpoints(const fs::path& run, int64_t step) {
  const fs::path folder = run / "ckpt";
  as_run_error(folder, [&] {
    require_own_directory(folder);
    const std::vector<int64_t> steps = saved_steps(folder);  // newest first
    const auto first_kept =
        std::find_if(steps.begin(), steps.end(), [&](int64_t saved) { return saved <= step; });
    const std::vector<int64_t> later(steps.begin(), first_kept), kept(first_kept, steps.end());
    point(folder / "last", step_name(step));
    if (const std::optional<int64_t> best = best_step(folder, kept)) {
      point(folder / "best", step_name(*best));
    } else {
      fs::remove(folder / "best");
    }
    discard(folder, later);
    sync_directory(folder);
  });
}

}  // namespace headlab
