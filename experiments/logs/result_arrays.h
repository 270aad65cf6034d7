// Results of an analysis as labelled arrays, and the HDF5 file that holds them: /analysis, /roles,
// /ablation, /pruning, in the schema of the log. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "experiments/logs/run_log.h"

namespace headlab {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();  // there is no number

// A dimension of a group. Coordinates are 0, 1, ..., or `labels` where there are any.
struct ResultAxis {
  LogVariable about;
  int64_t size = 0;
  std::vector<std::string> labels = {};
  std::vector<int64_t> coordinates = {};  // given: instead of 0, 1, ...
};

struct ResultArray {
  LogVariable about;
  std::vector<std::string> dims;  // names of the group's axes, e.g. {"layer", "head"}
  std::vector<double> values;     // row-major; NaN: does not exist
  bool flags = false;             // 0 and 1 only: u1 in the file; others but counts are f8
  std::map<std::string, double> attributes = {};  // thresholds and the like
  std::map<std::string, int64_t> count_attributes = {};
  std::vector<std::string> texts = {};            // instead of values
  std::map<std::string, std::string> notes = {};  // attributes that are texts
};

struct ResultGroup {
  std::string path;  // "analysis/cross"
  std::vector<ResultAxis> axes;
  std::vector<ResultArray> arrays;
};

// An axis, unless the group has one of that name.
void add_axis(ResultGroup& group, ResultAxis axis);
// Those of the axes layer, head, layer2 and head2 that `dims` names. layers, heads: of the model as
// it was built.
void add_head_axes(ResultGroup& group, const std::vector<std::string>& dims, int64_t layers,
                   int64_t heads);

// RunError where write_results() could not even begin: ask before hours of work.
void require_place(const std::filesystem::path& path);

// Writes the file whole or not at all, in the place of an older one. RunError where the storage
// refuses; std::invalid_argument for an array whose axes are unknown or do not fit its values.
void write_results(const std::filesystem::path& path, const RootAttributes& attributes,
                   const std::vector<ResultGroup>& groups);

}  // namespace headlab
