#include "experiments/sweeps/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "experiments/files/json_text.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/sweeps/sweep_summary.h"
#include "experiments/text/duration.h"
#include "experiments/text/visible_text.h"

namespace headlab {
namespace {

constexpr double kRedrawTable = 0.5, kPlainTable = 60;  // seconds
constexpr size_t kMostLive = 16;                        // lines of points

// The newest whole row of metrics, of which the end of the file holds one.
nlohmann::ordered_json newest_row(const std::filesystem::path& run) {
  constexpr std::streamoff kEnd = 8192;
  std::error_code none;
  if (!std::filesystem::is_regular_file(run / "metrics.jsonl", none)) return {};  // a FIFO waits
  std::ifstream in(run / "metrics.jsonl", std::ios::binary);
  if (!in) return {};
  in.seekg(0, std::ios::end);
  in.seekg(std::max<std::streamoff>(in.tellg() - kEnd, 0));
  std::string text(std::istreambuf_iterator<char>(in), {});
  const auto end = text.rfind('\n');
  if (end == text.npos || end == 0) return {};
  const auto begin = text.rfind('\n', end - 1);
  const auto line = text.substr(begin == text.npos ? 0 : begin + 1, end - begin - 1);
  const auto row = parse_json<nlohmann::ordered_json>(line);
  return row && row->is_object() ? *row : nlohmann::ordered_json();
}

}  // namespace

SweepTable::SweepTable(const FrozenSweep& sweep, ProgressOutput output)
    : sweep_(sweep), output_(std::move(output)) {
  drawn_at_ = output_.seconds();
}

SweepTable::~SweepTable() { erase(); }

void SweepTable::changed(size_t point, const PointStatus& status) {
  if (status.state == PointState::kRunning) {
    auto& row = rows_[point];
    row = {.since = output_.seconds(), .from = {}, .step = 0, .steps = {}, .loss = {}};
  } else {
    rows_.erase(point);
  }
  if (status.state == PointState::kRunning && output_.terminal) return;  // the live table says it
  const auto state = status.state == PointState::kRunning  ? "begins"
                     : status.state == PointState::kLocked ? "waits"
                     : status.state == PointState::kElsewhere
                         ? "is left to another host"
                         : point_state_name(status.state) + (status.found ? " before" : "");
  say(fmt::format("{}/{}  {}  {}{}{}", point + 1, sweep_.points.size(),
                  sweep_.points[point].label(), state, status.reason.empty() ? "" : ": ",
                  status.reason));
}

void SweepTable::looked(const std::vector<PointStatus>& points) {
  const double now = output_.seconds();
  if (now - drawn_at_ < (output_.terminal ? kRedrawTable : kPlainTable)) return;
  drawn_at_ = now;
  std::string text = head_line(points) + "\n";
  size_t lines = 0;
  for (auto& [point, row] : rows_) {
    look_into(point, row);
    if (++lines <= kMostLive) text += running_line(point, row) + "\n";
  }
  text = visible_text(text);
  erase();
  put(text);
  if (output_.terminal) live_ = text;
}

void SweepTable::look_into(size_t point, Row& row) const {
  const auto newest = newest_row(sweep_.points[point].run);
  if (!newest.contains("step") || !newest["step"].is_number_integer()) return;
  row.step = newest["step"].get<int64_t>();
  if (!row.from) row.from = row.step, row.since = output_.seconds();
  const auto& frozen = sweep_.points[point];
  if (!row.steps) row.steps = frozen.experiment.train.steps;
  if (!row.steps) row.steps = steps_of(read_manifest(frozen.run));  // a run by epochs
  if (newest.contains("train/loss") && newest["train/loss"].is_number())
    row.loss = newest["train/loss"].get<double>();
}

std::string SweepTable::running_line(size_t point, const Row& row) const {
  const auto& frozen = sweep_.points[point];
  auto line =
      fmt::format("{}/{}  {}  step {}", point + 1, sweep_.points.size(), frozen.label(), row.step);
  if (row.steps) line += fmt::format("/{}", *row.steps);
  if (row.loss) line += fmt::format("  loss {:.4f}", *row.loss);
  const double passed = output_.seconds() - row.since;
  if (row.steps && row.from && row.step > *row.from) {
    const auto rate = static_cast<double>(row.step - *row.from) / passed;
    line += "  " + duration_text(static_cast<double>(*row.steps - row.step) / rate) + " left";
  }
  const auto width = static_cast<size_t>(std::max(output_.width - 1, 1));
  return output_.terminal ? line.substr(0, width) : line;  // what wraps could not be erased
}

std::string SweepTable::head_line(const std::vector<PointStatus>& points) const {
  const auto count = [&](PointState state) {
    return std::count_if(points.begin(), points.end(),
                         [&](const PointStatus& point) { return point.state == state; });
  };
  auto line = fmt::format("{}: {} of {} points finished", sweep_.name, count(PointState::kFinished),
                          points.size());
  for (const auto state :
       {PointState::kFailed, PointState::kStopped, PointState::kLocked, PointState::kGivenUp})
    if (const auto some = count(state); some > 0)
      line += fmt::format(", {} {}", some, point_state_name(state));
  return line.substr(0, static_cast<size_t>(std::max(output_.width - 1, 1)));
}

void SweepTable::say(const std::string& line) {
  const auto live = live_;
  erase();
  put(visible_text(line) + "\n");
  if (live.empty()) return;
  put(live);
  live_ = live;
}

void SweepTable::erase() {
  if (live_.empty()) return;
  put(fmt::format("\r\x1b[{}A\x1b[J", std::count(live_.begin(), live_.end(), '\n')));
  live_.clear();
}

void SweepTable::put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), output_.file);
  std::fflush(output_.file);
}

std::pair<std::vector<PointStatus>, int> run_shown(const FrozenSweep& sweep, SweepOrders orders) {
  SweepTable table(sweep);
  const std::vector<PointStatus>* points = nullptr;
  orders.changed = [&](size_t point) { table.changed(point, (*points)[point]); };
  orders.looked = [&] { table.looked(*points); };
  SweepRun run(sweep, orders);
  points = &run.points();
  const int code = run.run();
  return {run.points(), code};
}

}  // namespace headlab
