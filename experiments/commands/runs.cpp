// `headlab runs [FOLDER]`: what lies below runs/.
#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/report.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/system/program_name.h"
#include "experiments/system/visible_text.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct RunsOptions {
  std::string folder = "runs";
  bool json = false;

  void visit(Arguments& a) {
    a.option("FOLDER", folder, "where runs are looked for, however deep");
    a.flag("--json", json, "print one JSON object");
  }
};

// Bytes of everything in a run.
uintmax_t size_of(const fs::path& run) {
  uintmax_t bytes = 0;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(run, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code none;
    if (!entry->is_symlink(none) && entry->is_regular_file(none)) bytes += entry->file_size(none);
  }
  return bytes;
}

Json json_of(const KnownRun& run, uintmax_t bytes) {
  const auto age = fs::file_time_type::clock::now() - run.written;
  return {{"run", fs::absolute(run.path).string()},
          {"label", run.label},
          {"name", run.name},
          {"kind", run.kind},
          {"seed", run.seed},
          {"status", run.state},
          {"step", run.step},
          {"steps", run.steps ? Json(*run.steps) : Json()},
          {"val/loss", run.loss ? metric_json(*run.loss) : Json()},
          {"bytes", bytes},
          {"age_s", std::chrono::duration_cast<std::chrono::seconds>(age).count()}};
}

std::string steps_text(const KnownRun& run) {
  const auto step = std::to_string(run.step);
  return run.steps && *run.steps != run.step ? fmt::format("{}/{}", step, *run.steps) : step;
}

constexpr size_t kNumbers = 5;  // columns from here on are numbers

// `numbered`: with the words by which commands find them.
std::string table(const std::vector<KnownRun>& runs, const std::vector<uintmax_t>& bytes,
                  bool numbered) {
  std::vector<std::array<std::string, 9>> rows{
      {"", "run", "kind", "state", "written", "seed", "steps", "val loss [nat]", "size"}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    const auto number = i == 0 ? "@" : fmt::format("@{}", i + 1);
    rows.push_back({numbered ? number : "", run.label, run.kind, run.state, age_text(run.written),
                    std::to_string(run.seed), steps_text(run),
                    run.loss ? fmt::format("{:.4f}", *run.loss) : "",
                    fmt::format("{:.1f} MB", static_cast<double>(bytes[i]) / 1e6)});
  }
  std::array<size_t, 9> widths{};
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string gap(widths[c] - rows[r][c].size(), ' ');
      line += (c >= kNumbers ? gap + rows[r][c] : rows[r][c] + gap) + "  ";
    }
    line += r == 0 ? "path" : visible_line(shown_path(runs[r - 1].path));
    text += line + "\n";
  }
  return text;
}

int run_runs(const RunsOptions& o) {
  std::error_code none;
  const bool usual = o.folder == RunsOptions{}.folder;
  if (!usual && !fs::is_directory(o.folder, none))
    throw RunError(o.folder + ": there is no such folder");
  std::vector<KnownRun> runs;
  std::vector<uintmax_t> bytes;
  Report report{.object = {{"runs", Json::array()}}, .text = {}};
  for (const auto& path : newest_runs(o.folder)) {
    bytes.push_back(size_of(path));
    report.object["runs"].push_back(json_of(runs.emplace_back(know_run(path)), bytes.back()));
  }
  report.text = table(runs, bytes, usual);
  if (runs.empty())
    report.text = fmt::format("no run below {}; `{} run CONFIG` makes one\n",
                              fs::absolute(o.folder).string(), program_name());
  return print(report, o.json);
}

const RegisterCommand runs_command({.name = "runs",
                                    .summary = "list the runs below runs/, the newest first",
                                    .example = "headlab runs",
                                    .group = Group::kLook},
                                   run_runs);

}  // namespace
}  // namespace headlab
