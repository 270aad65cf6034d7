// Walking through a log of any layout: where it is, its groups, and the records in them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "core/files/h5.h"

namespace headlab {

// FILE.h5, or the log of a run directory. RunError: there is none.
std::filesystem::path find_log(const std::filesystem::path& file_or_run);

// RunError: not a log of this schema's major version.
void require_log_schema(const H5Group& root);

// A group with a growing i8 scale, and what grows along with it.
struct LogRecords {
  H5Dataset key;
  std::vector<H5Dataset> columns;
  hsize_t complete = 0;  // rows that the key counts and every column has
};
// How many of the keys of a group count: a full disk may take the length of a key and not its last
// numbers, which then are 0, out of order; an evaluation, which follows an update, has none of 0.
hsize_t counted_keys(const std::vector<int64_t>& keys, const std::string& group);
std::optional<LogRecords> log_records(const H5Group& group);

// The group and all below it, in order of creation. RunError: deeper than any log.
void each_group(const H5Group& group, const std::function<void(const H5Group&)>& visit,
                int depth = 0);

// RunError when bytes of a complete record, or of anything that does not grow, lie beyond `size`.
void require_whole(const H5Group& root, hsize_t size);

}  // namespace headlab
