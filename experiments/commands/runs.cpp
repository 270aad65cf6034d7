// `headlab runs [FOLDER]`: what lies below runs/.
#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/commands/command.h"
#include "experiments/data/source.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/system/program_name.h"
#include "experiments/text/table.h"
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
          {validation_loss_name(), run.loss ? metric_json(*run.loss) : Json()},
          {"bytes", bytes},
          {"age_s", std::chrono::duration_cast<std::chrono::seconds>(age).count()}};
}

std::string steps_text(const KnownRun& run) {
  const auto step = std::to_string(run.step);
  return run.steps && *run.steps != run.step ? fmt::format("{}/{}", step, *run.steps) : step;
}

// The word by which commands find a run: "@" is the newest, "@2" the one before it.
std::string word_of(size_t index) { return index == 0 ? "@" : fmt::format("@{}", index + 1); }

// `numbered`: with the words by which commands find them.
std::string table_of(const std::vector<KnownRun>& runs, const std::vector<uintmax_t>& bytes,
                     bool numbered) {
  Table table({{.is_text = true},
               {.title = "run", .is_text = true},
               {.title = "kind", .is_text = true},
               {.title = "state", .is_text = true},
               {.title = "written", .is_text = true},
               {.title = "seed"},
               {.title = "steps"},
               {.title = "val loss [nat]"},
               {.title = "size"},
               {.title = "path", .is_text = true}});
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& run = runs[i];
    table.add({numbered ? word_of(i) : "", run.label, run.kind, run.state, age_text(run.written),
               run.seed, steps_text(run), run.loss ? Cell(*run.loss) : Cell(),
               fmt::format("{:.1f} MB", static_cast<double>(bytes[i]) / 1e6),
               visible_line(shown_path(run.path))});
  }
  return table.text();
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
  report.text = table_of(runs, bytes, usual);
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
