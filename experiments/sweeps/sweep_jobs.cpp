#include "experiments/sweeps/sweep_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/errors.h"
#include "experiments/files/replacement_file.h"
#include "experiments/system/output_file.h"
#include "experiments/text/shell_word.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// A word of a shell on a line of a script.
std::string line_word(const std::string& text) {
  require_no_control(text, "sweep --emit");
  return shell_word(text);
}

// A value of an #SBATCH line, which no shell reads: Slurm takes quotes and backslashes out of it.
std::string batch_value(const std::string& text) {
  require_no_control(text, "sweep --emit");
  auto plain = text;
  std::erase(plain, '%');
  if (shell_word(plain) == plain) return text;
  std::string value = "\"";
  for (const char c : text)
    value += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return value + "\"";
}

// A path in the name of a file that Slurm fills in (%A_%a).
std::string batch_path(const std::filesystem::path& path) {
  std::string text;
  for (const char c : path.string()) text += c == '%' ? "%%" : std::string(1, c);
  return text;
}

// Points `first` and on, `count` of them. The trap: B: signals this shell alone, which passes it
// on; a cancel reaches the run by itself, and the shell outlives it to requeue.
std::string slurm_script(const FrozenSweep& sweep, const JobOrders& orders, size_t first,
                         size_t count) {
  return fmt::format(
      R"(#!/bin/bash
#SBATCH --job-name={name} --array=0-{last}%{at_once} --time={time}
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task={threads}{gpus} --output={output}
#SBATCH --requeue --open-mode=append --signal=B:USR1@120
set -u
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
IFS=$'\t' read -r run config < <(sed -n "$((SLURM_ARRAY_TASK_ID + {line}))p" {points})
[ -n "${{config:-}}" ] || {{ echo "no point $SLURM_ARRAY_TASK_ID" >&2; exit 2; }}
pid=; trap '[ -n "$pid" ] && kill -USR1 "$pid"' USR1     # B: signals this shell alone: pass it on
trap : TERM                                             # a cancel reaches the run by itself: outlive it
{program} run "$config" --out {out} & pid=$!
wait "$pid"; rc=$?; while kill -0 "$pid" 2>/dev/null; do wait "$pid"; rc=$?; done   # a trap ends the first wait
[ "$rc" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 20 ] &&
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
exit "$rc"
)",
      fmt::arg("name", batch_value(sweep.name)), fmt::arg("last", count - 1),
      fmt::arg("at_once", orders.at_once), fmt::arg("time", orders.time),
      fmt::arg("threads", orders.threads),
      fmt::arg("gpus", orders.gpus > 0 ? fmt::format(" --gpus-per-task={}", orders.gpus) : ""),
      fmt::arg("output", batch_value(batch_path(sweep.folder) + "/slurm/%A_%a.out")),
      fmt::arg("line", first + 1),
      fmt::arg("points", line_word((sweep.folder / "points.tsv").string())),
      fmt::arg("program", line_word(orders.program)),
      fmt::arg("out", line_word(sweep.out.string())));
}

}  // namespace

// [D-]H:MM:SS. By hand: std::regex calls itself for every character, until a long text ends the
// stack.
bool is_time_limit(const std::string& text) {
  constexpr size_t kMost = 32;
  if (text.size() > kMost) return false;
  std::string form = text;  // every digit a 9
  for (char& c : form)
    if (std::isdigit(static_cast<unsigned char>(c))) c = '9';
  const size_t dash = form.find('-');
  if (dash != form.npos && form.substr(0, dash) != std::string(dash, '9')) return false;
  const auto clock = dash == form.npos ? form : form.substr(dash + 1);
  if (dash == 0 || (clock != "9:99:99" && clock != "99:99:99" && clock != "999:99:99"))
    return false;
  return text[text.size() - 5] < '6' && text[text.size() - 2] < '6';  // tens of minutes, seconds
}

std::vector<std::string> write_slurm_scripts(const FrozenSweep& sweep, const JobOrders& orders) {
  std::error_code error;
  fs::create_directories(sweep.folder / "slurm", error);
  if (error)
    throw RunError((sweep.folder / "slurm").string() + ": cannot be made: " + error.message());
  std::vector<std::string> commands;
  const size_t all = sweep.points.size();
  for (size_t first = 0; first < all; first += kMostOfAnArray) {
    const auto file = sweep.folder / (all <= kMostOfAnArray
                                          ? "sweep.sbatch"
                                          : fmt::format("sweep-{}.sbatch", commands.size() + 1));
    replace_file(file, slurm_script(sweep, orders, first, std::min(kMostOfAnArray, all - first)));
    commands.push_back("sbatch " + line_word(file.string()));
  }
  return commands;
}

std::string write_job_list(const FrozenSweep& sweep, const JobOrders& orders) {
  std::string text;
  for (const auto& point : sweep.points)
    text += fmt::format(
        "{}{} run {} --out {}\n",
        orders.sets_threads ? fmt::format("OMP_NUM_THREADS={} ", orders.threads) : "",
        line_word(orders.program), line_word(point.config.string()), line_word(sweep.out.string()));
  const auto file = sweep.folder / "sweep.jobs";
  replace_file(file, text);
  return fmt::format(
      "parallel --jobs {} --joblog {} --resume-failed --termseq TERM,60000,KILL,1000 < {}",
      orders.at_once, line_word((sweep.folder / "sweep.joblog").string()),
      line_word(file.string()));
}

}  // namespace headlab
