// The log's schema as data: which groups a layout makes, with their axes and variables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/files/h5.h"
#include "experiments/logs/run_log.h"

namespace headlab {

inline constexpr const char* kLogSchemaName = "headlab";
inline constexpr const char* kLogSchemaVersion = "1.0.0";

// Packed weights: w is stored as round(w * 65534), so that 1 and "no such position" differ.
inline constexpr double kPackedOne = 65534;
inline constexpr uint16_t kPackedNone = 65535;

// A variable that grows by one row a record, over some of its group's axes.
struct LogColumn {
  LogVariable about;
  H5Type type = H5Type::kF32;
  std::vector<std::string> dims;
};

// A group of records, beside arrays that do not grow. `key` is the growing scale, written last; i8.
// Axes are i4.
struct LogGroup : LabelledGroup {
  LogVariable key;
  std::vector<LogColumn> columns = {};
  std::string normalization = {};  // of attention maps; else empty

  bool maps() const { return !normalization.empty(); }
  size_t row_bytes(const LogColumn& column) const;
  size_t row_bytes() const;  // of all columns
};

// In this order: scalars, eval, heads/<site>..., attention/<site>..., resumes.
// std::invalid_argument: sizes that do not fit each other.
std::vector<LogGroup> log_groups(const LogLayout& layout);

// UTF-8 as it is; a zero byte and bytes that are no UTF-8 as <0xHH>.
std::string readable_text(const std::string& bytes);

}  // namespace headlab
