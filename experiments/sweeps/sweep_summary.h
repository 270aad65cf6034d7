// What the runs of a sweep ended with: a row a point, and means over seeds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/data/source.h"
#include "experiments/measuring/paired.h"
#include "experiments/runs/run_metrics.h"
#include "experiments/sweeps/sweep_points.h"
#include "experiments/sweeps/sweep_run.h"

namespace headlab {

struct SweepRow {
  std::string group;  // the settings but for the seed: rows of one group differ in it alone
  std::string name, label;
  std::filesystem::path run;
  int64_t seed = 0, step = 0;
  PointStatus status;
  Metrics metrics;               // final ones
  std::optional<double> wall_s;  // that its training took, over all its sessions
  std::string code;              // digests of the code that made it; "" where none is kept
  std::string device;            // "cpu in fp32": what it was trained on; "" where it is not known
  // Of its last session; "" where the manifest does not have it.
  std::string commit, machine;  // of the program's sources; name of the CPU

  std::string state_text() const;  // "failed: its reason", "finished"
  // None where it is not there, or not finite.
  std::optional<double> final_loss() const { return final_metric(validation_loss_name()); }
  std::optional<double> final_metric(const std::string& name) const;
};

// Of finished rows of one group that one code made, on one type of device in one precision.
struct SweepMean {
  std::string group, name, code, device;
  std::vector<int64_t> seeds;
  int64_t asked = 0;                      // seeds that the sweep has of the group
  std::map<std::string, Spread> metrics;  // "wall_s" among them
};

struct SweepSummary {
  std::vector<SweepRow> rows;
  std::vector<SweepMean> means;
  // Of groups that several codes made, or several devices or precisions: those are not averaged.
  std::vector<std::string> notices;

  // What the rows were trained on, each once. Tables have a column of it where it is not one.
  std::vector<std::string> devices() const;
};

SweepSummary summary_of(const FrozenSweep& sweep, const std::vector<PointStatus>& points);
std::vector<SweepMean> means_of(const std::vector<SweepRow>& rows);

// Whether a number of metrics.jsonl is none of those that tell what was measured.
bool is_result(const std::string& metric);

std::string summary_text(const SweepSummary& summary);
nlohmann::ordered_json summary_json(const FrozenSweep& sweep, const SweepSummary& summary);
std::string rows_csv(const SweepSummary& summary);
std::string means_csv(const SweepSummary& summary);

// summary.csv, means.csv and summary.json in the folder of the sweep.
void write_summary(const FrozenSweep& sweep, const SweepSummary& summary);

std::string point_state_name(PointState state);  // "finished", "stopped", ...

}  // namespace headlab
