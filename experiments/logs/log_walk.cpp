#include "experiments/logs/log_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "experiments/logs/log_schema.h"

namespace headlab {
namespace {

constexpr int kDeepest = 8;  // groups of a log nest two deep

}  // namespace

std::filesystem::path find_log(const std::filesystem::path& file_or_run) {
  std::error_code failed;
  const bool directory = std::filesystem::is_directory(file_or_run, failed);
  const std::filesystem::path path = directory ? file_or_run / "log.h5" : file_or_run;
  if (!std::filesystem::is_regular_file(path, failed)) {
    throw RunError(path.string() + ": there is no such log");
  }
  return path;
}

void require_log_schema(const H5Group& root) {
  if (!root.has_attribute("schema_name") || root.text("schema_name") != kLogSchemaName) {
    throw RunError(root.where() + ": is not a log of headlab (attribute schema_name)");
  }
  const std::string version = root.text("schema_version");
  const std::string ours = kLogSchemaVersion;
  if (version.substr(0, version.find('.')) != ours.substr(0, ours.find('.'))) {
    throw RunError(
        fmt::format("{}: has schema {}, this program knows {}", root.where(), version, ours));
  }
}

std::vector<int64_t> counted_keys(const H5Dataset& key, hsize_t rows) {
  std::vector<int64_t> keys = key.read_at<int64_t>({0}, {rows});
  int64_t last = key.path().starts_with("/eval/") ? 0 : -1;
  const auto wrong = std::find_if(keys.begin(), keys.end(),
                                  [&](int64_t k) { return std::exchange(last, k) >= k; });
  const auto other = std::find_if(wrong, keys.end(), [](int64_t k) { return k != 0; });
  if (other != keys.end()) {
    const auto at = wrong - keys.begin();
    throw RunError(fmt::format("{}: is damaged: row {} says {}{}; take a copy from before",
                               key.where(), at, keys[at],
                               at > 0 ? fmt::format(" after {}", keys[at - 1]) : ""));
  }
  keys.erase(wrong, keys.end());
  return keys;
}

std::optional<LogRecords> log_records(const H5Group& group) {
  LogRecords found;
  bool keyed = false;
  for (const std::string& name : group.names()) {
    if (!group.has_dataset(name)) continue;
    H5Dataset data = group.dataset(name);
    if (!data.grows()) continue;
    if (data.is_scale() && data.extent().size() == 1 && !keyed) {
      found.key = std::move(data);
      keyed = true;
    } else {
      found.columns.push_back(std::move(data));
    }
  }
  if (!keyed || found.key.type() != H5Type::kI64) return std::nullopt;
  found.complete = found.key.rows();
  for (const H5Dataset& data : found.columns) {
    found.complete = std::min(found.complete, data.rows());
  }
  found.complete = counted_keys(found.key, found.complete).size();
  return found;
}

void each_group(const H5Group& group, const std::function<void(const H5Group&)>& visit, int depth) {
  if (depth > kDeepest) throw RunError(group.where() + ": groups are nested too deep for a log");
  visit(group);
  for (const std::string& name : group.names()) {
    if (group.has_group(name)) each_group(group.group(name), visit, depth + 1);
  }
}

void require_uncut(const H5File& file, const std::filesystem::path& path, hsize_t size) {
  const hsize_t says = file.end();
  if (says <= size) return;
  hsize_t end = 0;
  each_group(file.root(), [&](const H5Group& group) {
    const std::optional<LogRecords> records = log_records(group);
    for (const std::string& name : group.names()) {
      if (!group.has_dataset(name)) continue;
      const H5Dataset data = group.dataset(name);
      const hsize_t rows = records && data.grows() ? records->complete : 1;
      if (rows > 0) end = std::max(end, data.row_end(rows - 1));
    }
  });
  if (end > size) {
    throw RunError(
        fmt::format("{}: has been cut short: {} of {} bytes are there", path.string(), size, says));
  }
}

void require_readable(const H5Group& root) {
  each_group(root, [&](const H5Group& group) {
    const std::optional<LogRecords> records = log_records(group);
    for (const std::string& name : group.names()) {
      if (!group.has_dataset(name)) continue;
      const H5Dataset data = group.dataset(name);
      if (records && data.grows() && records->complete > 0) data.check_row(records->complete - 1);
    }
  });
}

}  // namespace headlab
