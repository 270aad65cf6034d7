// `headlab runs [FOLDER]`: what lies below runs/.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/commands/report.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/system/program_name.h"
#include "experiments/text/visible_text.h"

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

using Row = std::array<std::string, 9>;
const Row kTitles{"", "run", "kind", "state", "written", "seed", "steps", "val loss [nat]", "size"};
constexpr size_t kNumbers = 5;  // columns from here on are numbers

// The word by which commands find a run: "@" is the newest, "@2" the one before it.
std::string word_of(size_t index) { return index == 0 ? "@" : fmt::format("@{}", index + 1); }

Row row_of(const KnownRun& run, uintmax_t bytes, const std::string& word) {
  return {word,
          run.label,
          run.kind,
          run.state,
          age_text(run.written),
          std::to_string(run.seed),
          steps_text(run),
          run.loss ? fmt::format("{:.4f}", *run.loss) : "",
          fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)};
}

// Texts to the left of their columns, numbers to the right.
std::string aligned(const Row& row, const std::array<size_t, std::tuple_size_v<Row>>& widths) {
  std::string line;
  for (size_t column = 0; column < row.size(); ++column) {
    const auto& cell = row[column];
    const std::string gap(widths[column] - cell.size(), ' ');
    line += column < kNumbers ? cell + gap : gap + cell;
    line += "  ";
  }
  return line;
}

// `numbered`: with the words by which commands find them.
std::string table(const std::vector<KnownRun>& runs, const std::vector<uintmax_t>& bytes,
                  bool numbered) {
  std::vector<Row> rows{kTitles};
  for (size_t i = 0; i < runs.size(); ++i)
    rows.push_back(row_of(runs[i], bytes[i], numbered ? word_of(i) : ""));
  std::array<size_t, std::tuple_size_v<Row>> widths{};
  for (const auto& row : rows)
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  std::string text = aligned(rows[0], widths) + "path\n";
  for (size_t i = 0; i < runs.size(); ++i)
    text += aligned(rows[i + 1], widths) + visible_line(shown_path(runs[i].path)) + "\n";
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
    runs.push_back(know_run(path));
    bytes.push_back(size_of(path));
    report.object["runs"].push_back(json_of(runs.back(), bytes.back()));
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
