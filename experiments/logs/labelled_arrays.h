// Arrays with named axes, units and coordinates in groups of an HDF5 file: what logs and files of
// results are made of. No torch in here.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/files/h5.h"

namespace headlab {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();  // there is no number

// A variable and what a reader must know of it. `comment` has the exact formula.
struct LogVariable {
  std::string name, units, long_name, comment;
  bool counts = false;  // whole numbers: i8 in the file, where kNoCount stands for none
};
inline constexpr int64_t kNoCount = -1;

// A dimension of a group. Coordinates are 0, 1, ..., or `labels` where there are any.
struct LabelledAxis {
  LogVariable about;
  int64_t size = 0;
  std::vector<std::string> labels = {};
  std::vector<int64_t> coordinates = {};  // given: instead of 0, 1, ...

  std::vector<int64_t> places() const;  // the coordinates, where there are no labels
};

struct LabelledArray {
  LogVariable about;
  std::vector<std::string> dims;  // names of the group's axes, e.g. {"layer", "head"}
  std::vector<double> values;     // row-major; NaN: does not exist
  bool flags = false;             // 0 and 1 only: u1 in the file
  std::map<std::string, double> attributes = {};  // thresholds and the like
  std::map<std::string, int64_t> count_attributes = {};
  std::vector<std::string> texts = {};            // instead of values
  std::map<std::string, std::string> notes = {};  // attributes that are texts
  std::optional<H5Type> type = {};  // kI32 or kU8: whole numbers that are all there; else f8 or i8
};

struct LabelledGroup {
  std::string path;  // "analysis/cross"
  std::vector<LabelledAxis> axes;
  std::vector<LabelledArray> arrays;

  // Lengths of these axes. std::invalid_argument: no axis is called so.
  H5Extent extent(const std::vector<std::string>& dims) const;
};

// An axis, unless the group has one of that name.
void add_axis(LabelledGroup& group, LabelledAxis axis);
// Those of the axes layer, head, layer2, head2 and expert that `dims` names. layers, heads: of the
// model as it was built; experts: of a head.
void add_head_axes(LabelledGroup& group, const std::vector<std::string>& dims, int64_t layers,
                   int64_t heads, int64_t experts = 0);

// Sets units, long_name and comment.
void describe(H5Dataset& data, const LogVariable& about);
using AxisScales = std::map<std::string, H5Dataset>;  // dimension scales by name
// Writes the axes, their coordinates as `type` or texts, and the arrays over them.
// std::invalid_argument where an array's axes are unknown or do not fit its values.
AxisScales write_arrays(H5Group& group, const LabelledGroup& spec, H5Type type = H5Type::kI64);
// Attaches the scale of each of these axes to the data; `ahead` other axes come first.
void attach_axes(H5Dataset& data, const std::vector<std::string>& dims, const AxisScales& scales,
                 unsigned ahead = 0);

}  // namespace headlab
