#include "experiments/runs/known_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <set>
#include <system_error>

#include "core/config/config.h"
#include "core/errors.h"
#include "experiments/data/source.h"
#include "experiments/files/config_file.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/output.h"
#include "experiments/system/program_name.h"
#include "experiments/text/visible_text.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

fs::file_time_type written_at(const fs::path& run) {
  std::error_code error;
  const auto time = fs::last_write_time(run / "status.json", error);
  return error ? fs::last_write_time(run / "config.yaml", error) : time;
}

void flatten(const ConfigNode& node, const std::string& path,
             std::vector<std::pair<std::string, std::string>>& settings) {
  if (node.kind != ConfigNode::Kind::kMapping)
    return static_cast<void>(settings.emplace_back(path, to_flow(node)));
  for (const auto& [key, value] : node.entries)
    flatten(value, path.empty() ? key : fmt::format("{}.{}", path, key), settings);
}

std::string setting(const KnownRun& run, const std::string& path) {
  for (const auto& [name, value] : run.settings)
    if (name == path) return value;
  return "";
}

// The kinds of the stack's heads, in the order in which the config names them.
std::string kinds_of(const KnownRun& run) {
  std::vector<std::string> kinds;
  for (const auto& [path, value] : run.settings) {
    const bool heads = path.starts_with("model.") && path.ends_with(".kind") &&
                       path.find("attention") != path.npos && path.find(".inner") == path.npos &&
                       path.find(".map") == path.npos;
    if (heads && std::find(kinds.begin(), kinds.end(), value) == kinds.end())
      kinds.push_back(value);
  }
  return fmt::format("{}", fmt::join(kinds, "+"));
}

std::string state_of(const fs::path& path, const std::optional<RunStatus>& status) {
  if (find_run(path).kind == FoundRun::Kind::kRunning) return "running";
  if (!status) return "damaged";
  return status->state == RunState::kRunning ? "killed" : run_state_name(status->state);
}

std::string label_of(const KnownRun& run) {
  std::string label = run.name;
  if (!run.kind.empty() && run.name.find(run.kind) == run.name.npos)
    label += fmt::format(" ({})", run.kind);
  const auto tag = setting(run, "tag");
  return tag.empty() || tag == "\"\"" ? label : label + " " + tag;
}

void find_below(const fs::path& folder, std::vector<fs::path>& found) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code none;
    if (!entry->is_directory(none) || entry->is_symlink(none) ||
        entry->path().filename().string().starts_with('.'))
      continue;
    if (is_run(entry->path()))
      found.push_back(entry->path());
    else
      find_below(entry->path(), found);
  }
}

std::string listing(const std::vector<fs::path>& paths) {
  constexpr size_t kMost = 20;
  std::vector<KnownRun> runs;
  for (const auto& path : paths) runs.push_back(know_run(path));
  const auto differing = what_differs(runs);
  std::string text;
  for (size_t i = 0; i < runs.size() && i < kMost; ++i)
    text += fmt::format("\n  {}   {}{}{}", visible_line(shown_path(runs[i].path)),
                        run_text(runs[i]), differing[i].empty() ? "" : "; ", differing[i]);
  if (runs.size() > kMost) text += fmt::format("\n  and {} more", runs.size() - kMost);
  return text;
}

// N of `@N`, with `@` the first; 0: these words are no such thing.
size_t newest_number(std::string_view word) {
  if (!word.starts_with('@')) return 0;
  word.remove_prefix(1);
  if (word.empty()) return 1;
  size_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? number : 0;
}

fs::path newest(const fs::path& words, size_t number) {
  const auto runs = newest_runs("runs");
  if (runs.empty())
    throw RunError(fmt::format("{}: there is no run below {}; `{} run CONFIG` makes one",
                               words.string(), (fs::current_path() / "runs").string(),
                               program_name()));
  if (number > runs.size())
    throw RunError(fmt::format("{}: there are only {} runs below {}", words.string(), runs.size(),
                               (fs::current_path() / "runs").string()));
  auto path = runs[number - 1];
  for (auto part = std::next(words.begin()); part != words.end(); ++part) path /= *part;
  return path;
}

}  // namespace

std::vector<fs::path> runs_below(const fs::path& folder) {
  std::vector<fs::path> found;
  find_below(folder, found);
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<fs::path> newest_runs(const fs::path& folder) {
  auto found = runs_below(folder);
  std::map<fs::path, fs::file_time_type> written;
  for (const auto& path : found) written[path] = written_at(path);
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return written[a] > written[b]; });
  return found;
}

KnownRun know_run(const fs::path& path) {
  KnownRun run;
  run.path = path;
  run.name = visible_line(path.filename().string());
  try {
    flatten(load_config(path / "config.yaml"), "", run.settings);
  } catch (const ConfigError&) {  // `settings` stays empty, and so do name and kind
  }
  run.kind = kinds_of(run);
  const auto manifest = read_manifest(path);
  const auto name = setting(run, "name");
  if (!name.empty() && made_by_run(manifest)) run.name = name;
  run.label = label_of(run);
  const auto number = [&](const char* name) -> std::optional<int64_t> {
    const auto text = setting(run, name);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && !text.empty() ? std::optional(value) : std::nullopt;
  };
  run.seed = number("seed").value_or(0);
  run.steps = steps_of(manifest);
  if (!run.steps && setting(run, "train.epochs").empty()) run.steps = number("train.steps");
  const auto status = read_status(path);
  run.state = state_of(path, status);
  run.written = written_at(path);
  if (status) {
    run.step = status->step;
    if (const auto loss = status->metrics.find(validation_loss_name());
        loss != status->metrics.end())
      run.loss = loss->second;
  }
  return run;
}

std::string age_text(fs::file_time_type then) {
  using std::chrono::duration_cast;
  const auto age = fs::file_time_type::clock::now() - then;
  const auto seconds = duration_cast<std::chrono::seconds>(age).count();
  const auto some = [](int64_t number, const char* unit) {
    return fmt::format("{} {}{} ago", number, unit, number == 1 ? "" : "s");
  };
  if (seconds < 60) return "just now";
  if (seconds < 3600) return some(seconds / 60, "minute");
  if (seconds < 2 * 86400) return some(seconds / 3600, "hour");
  return some(seconds / 86400, "day");
}

std::string run_text(const KnownRun& run) {
  const auto where = run.state == "finished" ? "" : fmt::format(" at step {}", run.step);
  return fmt::format("{}, seed {}, {}{}, {}", run.kind.empty() ? "kind unknown" : run.kind,
                     run.seed, run.state, where, age_text(run.written));
}

std::vector<std::string> what_differs(const std::vector<KnownRun>& runs) {
  constexpr size_t kMost = 6;
  std::vector<std::string> paths;
  for (const auto& run : runs)
    for (const auto& [path, value] : run.settings)
      if (path != "seed" && std::find(paths.begin(), paths.end(), path) == paths.end())
        paths.push_back(path);
  std::erase_if(paths, [&](const std::string& path) {
    return std::all_of(runs.begin(), runs.end(), [&](const KnownRun& run) {
      return setting(run, path) == setting(runs[0], path);
    });
  });
  std::vector<std::string> texts;
  for (const auto& run : runs) {
    std::vector<std::string> parts;
    for (const auto& path : paths)
      if (const auto value = setting(run, path); !value.empty() && parts.size() < kMost)
        parts.push_back(fmt::format("{}={}", path, value));
    texts.push_back(fmt::format("{}", fmt::join(parts, " ")));
  }
  return texts;
}

std::string shown_path(const fs::path& path) {
  const auto absolute = fs::absolute(path).lexically_normal();
  const auto relative = absolute.lexically_relative(fs::current_path());
  const bool below = !relative.empty() && *relative.begin() != ".." && relative != ".";
  return below ? relative.string() : absolute.string();
}

fs::path resolve_run(const fs::path& words) {
  if (words.empty()) return words;
  if (const size_t number = newest_number(words.begin()->string()))
    return fs::absolute(newest(words, number));
  std::error_code error;
  const auto real = fs::canonical(words, error);
  if (error || !fs::is_directory(real) || is_run(real) || is_run(real.parent_path().parent_path()))
    return words;
  const auto below = runs_below(real);
  if (below.size() == 1) return below[0];
  if (below.empty()) return words;
  throw RunError(fmt::format("{}: holds {} runs; name one of them:{}", words.string(), below.size(),
                             listing(below)));
}

fs::path take_run(const fs::path& words) {
  auto path = resolve_run(words);
  if (path == words) return path;
  const auto run = locate_run(path).run;
  tell("{} is {} ({})", words.string(), visible_line(shown_path(path)), run_text(know_run(run)));
  return path;
}

}  // namespace headlab
