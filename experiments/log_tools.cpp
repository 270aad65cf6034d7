#include "experiments/log_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "experiments/log_records.h"
#include "experiments/log_schema.h"
#include "experiments/writer_lock.h"

namespace headlab {
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

LogRepair repair_held_log(const std::filesystem::path& path) {
  LogRepair repair;
  const auto survey = [&](const H5File& file, bool cut) {
    H5Group root = file.root();
    require_log_schema(root);
    repair.groups.clear();
    each_group(root, [&](const H5Group& group) {
      std::optional<LogRecords> records = log_records(group);
      if (!records) return;
      hsize_t longest = records->key.rows();
      for (const H5Dataset& data : records->columns) longest = std::max(longest, data.rows());
      repair.groups.push_back({group.path(), records->complete, longest - records->complete});
      if (!cut) return;
      for (H5Dataset& data : records->columns) data.truncate(records->complete);
      records->key.truncate(records->complete);
    });
    if (cut) root.set_text("status", "stopped");
  };
  const H5FileFlags flags = h5_file_flags(path);
  if (!flags.hdf5) throw RunError(path.string() + ": is not an HDF5 file");
  repair.needed = flags.being_written;
  if (!repair.needed) {
    survey(H5File::open(path), false);
    return repair;
  }
  {
    // First without changing a byte: repairing would fill what is cut off with zeros.
    const H5File file = H5File::open_dead(path);
    require_log_schema(file.root());
    require_whole(file.root(), std::filesystem::file_size(path));
  }
  H5File::recover(path);
  H5File file = H5File::edit_unlocked(path);
  survey(file, true);
  file.sync();
  file.close();
  return repair;
}

LogRepair repair_log(const std::filesystem::path& path) {
  const WriterLock lock(path);
  return repair_held_log(path);
}

}  // namespace headlab
