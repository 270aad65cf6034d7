#include "experiments/logs/log_table.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/errors.h"
#include "experiments/logs/log_walk.h"

namespace headlab {
namespace {

// A chunk of the largest column is about this long. A part-filled chunk is rewritten at each
// flush, so they stay small.
constexpr size_t kChunkBytes = 16 << 10;

hsize_t rows_per_chunk(const LogGroup& group) {
  if (group.maps()) return 1;
  size_t largest = sizeof(int64_t);
  for (const LogColumn& column : group.columns) {
    largest = std::max(largest, group.row_bytes(column));
  }
  return std::clamp<hsize_t>(kChunkBytes / largest, 16, 1024);
}

H5Layout column_layout(const LogGroup& group, const LogColumn& column) {
  const H5Extent row = group.extent(column.dims);
  H5Layout layout{column.type, {0}, {rows_per_chunk(group)}, group.maps(), std::nullopt};
  layout.extent.insert(layout.extent.end(), row.begin(), row.end());
  layout.chunk.insert(layout.chunk.end(), row.begin(), row.end());
  if (group.maps()) layout.chunk[1] = layout.chunk[2] = 1;  // (step, probe, layer) one by one
  if (column.type == H5Type::kF32 || column.type == H5Type::kF64) {
    layout.fill = std::numeric_limits<double>::quiet_NaN();
  }
  if (column.type == H5Type::kU16) layout.fill = kPackedNone;
  return layout;
}

void set_encoding(H5Dataset& data, const LogGroup& group, const LogColumn& column) {
  if (group.maps()) data.set_text("normalization", group.normalization);
  switch (column.type) {
    case H5Type::kF32:
      data.set_number("_FillValue", std::numeric_limits<float>::quiet_NaN());
      break;
    case H5Type::kF64:
      data.set_number("_FillValue", std::numeric_limits<double>::quiet_NaN());
      break;
    case H5Type::kU16:
      data.set_number("_FillValue", kPackedNone);
      data.set_number("scale_factor", 1 / kPackedOne);
      break;
    case H5Type::kU8: {
      const uint8_t flags[] = {0, 1};
      data.set_numbers<uint8_t>("flag_values", flags);
      data.set_text("flag_meanings", "pruned alive");
      break;
    }
    default:
      break;
  }
}

}  // namespace

void describe_file(H5Group& root, const RootAttributes& attributes, const std::string& status) {
  root.set_text("Conventions", "CF-1.10");
  root.set_text("title", attributes.title);
  root.set_text("source", "headlab");
  root.set_text("schema_name", kLogSchemaName);
  root.set_text("schema_version", kLogSchemaVersion);
  root.set_text("run_id", attributes.run_id);
  root.set_text("created_utc", attributes.created_utc);
  root.set_text("config_yaml", attributes.config_yaml);
  root.set_text("manifest_json", attributes.manifest_json);
  root.set_text("axis_order", "row-major");
  root.set_text("status", status);
}

void make_log_group(H5Group& root, const LogGroup& spec) {
  H5Group group = root.make_group(spec.path);
  auto key = group.make_dataset(spec.key.name, {H5Type::kI64, {0}, {rows_per_chunk(spec)}});
  key.make_scale(spec.key.name);
  describe(key, spec.key);
  const auto scales = write_arrays(group, spec, H5Type::kI32);
  for (const LogColumn& column : spec.columns) {
    H5Dataset data = group.make_dataset(column.about.name, column_layout(spec, column));
    describe(data, column.about);
    set_encoding(data, spec, column);
    data.attach_scale(0, key);
    attach_axes(data, column.dims, scales, /*ahead=*/1);
  }
  if (spec.maps()) {
    H5Dataset data = group.make_dataset("skipped_from", {H5Type::kI64, {}});
    data.write<int64_t>(std::vector<int64_t>{-1});
    describe(data, {"skipped_from", "1", "first step whose maps were left out",
                    "maps stop when they would take more than log.attention.max_bytes before "
                    "compression; -1: none was left out"});
  }
}

LogTable::LogTable(const H5Group& root, const LogGroup& spec) : chunk_rows_(rows_per_chunk(spec)) {
  const H5Group group = root.group(spec.path);
  const auto require = [](const H5Dataset& data, H5Type type, const H5Extent& row, bool grows,
                          bool counts = false) {
    H5Extent extent = data.extent();
    if (grows && !extent.empty()) extent.erase(extent.begin());
    // Logs that older versions began have floating-point counts, and HDF5 converts.
    const bool has_type = data.type() == type || (counts && data.type() == H5Type::kF32);
    if (!has_type || data.grows() != grows || extent != row) {
      throw RunError(data.where() + ": has not the type and axes that this run logs");
    }
  };
  key_name_ = spec.key.name;
  key_ = group.dataset(spec.key.name);
  require(key_, H5Type::kI64, {}, true);
  rows_ = key_.rows();
  for (const auto& axis : spec.axes) {
    const H5Dataset data = group.dataset(axis.about.name);
    require(data, H5Type::kI32, {static_cast<hsize_t>(axis.size)}, false);
    if (data.read<int64_t>() != axis.places()) {
      throw RunError(data.where() + ": has not the coordinates that this run logs");
    }
  }
  for (const LogColumn& column : spec.columns) {
    H5Dataset data = group.dataset(column.about.name);
    require(data, column.type, spec.extent(column.dims), true, column.about.counts);
    rows_ = std::min(rows_, data.rows());
    columns_.push_back(
        {column.about.name, std::move(data), column.type, spec.row_bytes(column), {}});
  }
  if (spec.maps()) {
    skipped_from_ = group.dataset("skipped_from");
    require(skipped_from_, H5Type::kI64, {}, false);
  }
}

void LogTable::add(int64_t key, std::span<const std::byte> row) {
  for (Column& column : columns_) {
    const auto values = row.first(column.bytes);
    column.waiting.insert(column.waiting.end(), values.begin(), values.end());
    row = row.subspan(column.bytes);
  }
  keys_.push_back(key);
}

void LogTable::write_rows() {
  for (Column& column : columns_) {
    if (column.waiting.empty()) continue;
    column.data.append_rows(column.type, column.waiting.data(),
                            column.waiting.size() / h5_size(column.type));
    column.waiting.clear();
  }
}

void LogTable::write_keys() {
  if (keys_.empty()) return;
  key_.append<int64_t>(keys_);
  rows_ += keys_.size();
  keys_.clear();
}

std::optional<int64_t> LogTable::last_key() const {
  if (rows_ == 0) return std::nullopt;
  return key_.read_at<int64_t>({rows_ - 1}, {1})[0];
}

std::map<std::string, std::vector<double>> LogTable::numbers() const {
  std::map<std::string, std::vector<double>> read;
  read[key_name_] = key_.read_at<double>({0}, {rows_});
  for (const auto& column : columns_)
    if (column.data.extent().size() == 1)
      read[column.name] = column.data.read_at<double>({0}, {rows_});
  return read;
}

void LogTable::truncate(hsize_t rows) {
  for (Column& column : columns_) column.data.truncate(rows);
  key_.truncate(rows);
  rows_ = rows;
}

void LogTable::truncate_after(int64_t key) {
  const std::vector<int64_t> keys = counted_keys(key_, rows_);
  truncate(std::upper_bound(keys.begin(), keys.end(), key) - keys.begin());
}

int64_t LogTable::skipped_from() const { return skipped_from_.read<int64_t>()[0]; }

void LogTable::set_skipped_from(int64_t step) {
  skipped_from_.write<int64_t>(std::vector<int64_t>{step});
}

}  // namespace headlab
