// Walking through a log of any layout: where it is, its groups, and the records in them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "experiments/files/h5.h"

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
// The first `rows` keys of a group as far as they count: a full disk may take the length of a key
// and not its last numbers, which then are 0, out of order; an evaluation, which follows an update,
// has none of 0. RunError: other keys are out of order.
std::vector<int64_t> counted_keys(const H5Dataset& key, hsize_t rows);
std::optional<LogRecords> log_records(const H5Group& group);

// The group and all below it, in order of creation. RunError: deeper than any log.
void each_group(const H5Group& group, const std::function<void(const H5Group&)>& visit,
                int depth = 0);

// RunError when the file, of `size` bytes, ends before a complete record does: HDF5 reads zeros
// there. What a full disk did not take, behind the last complete record, may be missing.
void require_uncut(const H5File& file, const std::filesystem::path& path, hsize_t size);
// RunError when a part of the log does not open, or a chunk of the last complete record of a group
// cannot be read. Chunks of records before it are not looked at: there may be many.
void require_readable(const H5Group& root);

}  // namespace headlab
