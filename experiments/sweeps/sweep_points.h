// The points of a sweep as they are trained: each with its settings, frozen in a config of its own,
// and the run that it makes.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/runs/experiment.h"
#include "experiments/sweeps/sweep_file.h"

namespace headlab {

struct FrozenPoint {
  std::vector<std::pair<std::string, ConfigNode>> settings;  // what the axes say, `base` first
  Experiment experiment;
  std::string yaml;              // the resolved config, with absolute paths
  std::filesystem::path run;     // that `headlab run` of this config makes, absolute
  std::filesystem::path config;  // the file that holds it
  std::string hash;              // run_hash(), by which the run is named

  std::string label() const;  // "model.attention.kind=moh seed=1"; the name where no axis is
};

struct FrozenSweep {
  std::filesystem::path folder;  // the sweep's own files, absolute
  std::filesystem::path out;     // folder of the runs, absolute
  std::string name;              // of the sweep file, without its suffix
  std::vector<FrozenPoint> points;
};

// A point of this config, whose run goes below `out`; its file is not yet known. ConfigError with
// everything that is wrong in it.
FrozenPoint freeze_point(std::vector<std::pair<std::string, ConfigNode>> settings,
                         const ConfigNode& config, const std::filesystem::path& out);

// A folder of runs as sweeps name it: absolute, and without a slash at its end.
std::filesystem::path folder_of_runs(const std::filesystem::path& out);

// Says where the sweep's own files lie, and so the config of each point.
void place_sweep(FrozenSweep& sweep, const std::filesystem::path& folder);

// The sweep that `file` describes, each point with `overrides` over what the axes say; paths in it
// and in its bases start from the file that they stand in. Nothing is written. ConfigError with
// everything that is wrong in any point, and where two points are one run.
FrozenSweep resolve_sweep(const std::filesystem::path& file,
                          const std::vector<std::string>& overrides,
                          const std::filesystem::path& out);

// Writes the frozen configs, points.tsv (run directory TAB frozen config, a line a point) and
// points.json (the same with the settings of each) into the folder of the sweep. RunError where the
// storage refuses.
void write_points(const FrozenSweep& sweep);
// The same, and a copy of the sweep file.
void write_sweep(const FrozenSweep& sweep, const std::filesystem::path& file);

// At most kMaxConfigBytes and one of a file that a user wrote: parsing refuses the longer ones.
// ConfigError where it cannot be opened.
std::string written_text(const std::filesystem::path& file);

// Problems of several points, each once.
class PointProblems {
 public:
  void add(const std::string& lines);
  void raise() const;  // ConfigError with the first hundred, when there is any

 private:
  std::set<std::string> seen_;
  std::vector<std::string> lines_;
};

}  // namespace headlab
