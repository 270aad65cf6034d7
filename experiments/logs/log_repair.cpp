#include "experiments/logs/log_repair.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/logs/log_walk.h"
#include "experiments/system/child_process.h"
#include "experiments/system/writer_lock.h"

namespace headlab {
namespace {

LogRepair survey(const H5Group& root) {
  LogRepair found;
  each_group(root, [&](const H5Group& group) {
    const std::optional<LogRecords> records = log_records(group);
    if (!records) return;
    hsize_t longest = records->key.rows();
    for (const H5Dataset& data : records->columns) longest = std::max(longest, data.rows());
    found.groups.push_back({group.path(), records->complete, longest - records->complete});
  });
  return found;
}

// Leaves complete records only.
void trim(H5Group& root) {
  each_group(root, [](const H5Group& group) {
    std::optional<LogRecords> records = log_records(group);
    if (!records) return;
    for (H5Dataset& data : records->columns) data.truncate(records->complete);
    records->key.truncate(records->complete);
  });
  root.set_text("status", "stopped");
}

LogRepair repair_here(const std::filesystem::path& path) {
  const H5FileFlags flags = h5_file_flags(path);
  if (!flags.hdf5) throw RunError(path.string() + ": is not an HDF5 file");
  LogRepair repair;
  {
    // First without changing a byte: repairing would fill what is cut off with zeros.
    const H5File file = flags.being_written ? H5File::open_dead(path) : H5File::open_unlocked(path);
    const H5Group root = file.root();
    require_log_schema(root);
    require_whole(root, std::filesystem::file_size(path));
    repair = survey(root);
  }
  repair.needed = flags.being_written;
  if (!repair.needed) return repair;
  H5File::recover(path);
  H5File file = H5File::edit_unlocked(path);
  H5Group root = file.root();
  trim(root);
  file.sync();
  file.close();
  return repair;
}

}  // namespace

LogRepair repair_held_log(const std::filesystem::path& path) {
  using Json = nlohmann::json;
  const Json done = Json::parse(in_child_process(path.string(), [&] {
    const LogRepair repair = repair_here(path);
    Json groups = Json::array();
    for (const LogRepair::Group& group : repair.groups) {
      groups.push_back({group.path, group.records, group.dropped});
    }
    return Json{{"needed", repair.needed}, {"groups", groups}}.dump();
  }));
  LogRepair repair{done["needed"], {}};
  for (const Json& group : done["groups"]) {
    repair.groups.push_back({group[0], group[1], group[2]});
  }
  return repair;
}

LogRepair repair_log(const std::filesystem::path& path) {
  const WriterLock lock(path);
  return repair_held_log(path);
}

namespace {

template <class Variable>
std::vector<std::string> drop_unlogged_of(const std::filesystem::path& path,
                                          const std::string& group_path,
                                          std::vector<Variable>& variables) {
  const WriterLock lock(path);
  repair_held_log(path);
  const H5File file = H5File::open_unlocked(path);
  std::vector<std::string> dropped;
  if (!file.root().has_group(group_path)) return dropped;  // not a log of this run at all
  const H5Group group = file.root().group(group_path);
  std::erase_if(variables, [&](const Variable& variable) {
    if (group.has_dataset(variable.name)) return false;
    dropped.push_back(variable.name);
    return true;
  });
  return dropped;
}

}  // namespace

std::vector<std::string> drop_unlogged(const std::filesystem::path& path, LogSite& site) {
  auto dropped = drop_unlogged_of(path, "heads/" + site.name, site.statistics);
  if (site.maps && site.maps->images) {
    std::vector<LogVariable> image = {{"image", "", "", ""}};
    for (auto& name : drop_unlogged_of(path, "attention/" + site.name, image)) {
      site.maps->images.reset();
      dropped.push_back(std::move(name));
    }
  }
  return dropped;
}

std::vector<std::string> drop_unlogged(const std::filesystem::path& path,
                                       std::vector<LogVariable>& evals) {
  return drop_unlogged_of(path, "eval", evals);
}

}  // namespace headlab
