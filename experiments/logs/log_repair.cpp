#include "experiments/logs/log_repair.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.h"
#include "experiments/files/replacement_file.h"
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

// What is in a log that is to be whole.
LogRepair survey_whole(const H5Group& root) {
  require_log_schema(root);
  require_readable(root);
  return survey(root);
}

using Survey = std::function<LogRepair()>;

// In a child process that has the limits of `path`.
LogRepair survey_apart(const std::filesystem::path& path, const Survey& body) {
  using Json = nlohmann::json;
  const Json done = Json::parse(in_child_process(path.string(), [&] {
    const LogRepair repair = body();
    Json groups = Json::array();
    for (const LogRepair::Group& group : repair.groups) {
      groups.push_back({group.path, group.records, group.dropped});
    }
    return groups.dump();
  }));
  LogRepair repair;
  for (const Json& group : done) repair.groups.push_back({group[0], group[1], group[2]});
  return repair;
}

void copy_into(ReplacementFile& copy, const std::filesystem::path& path) {
  const int from = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (from < 0 || fstat(from, &status) != 0) {
    const std::string reason = std::strerror(errno);
    if (from >= 0) close(from);
    throw RunError(path.string() + ": cannot be read: " + reason);
  }
  std::vector<char> buffer(1 << 20);
  ssize_t n = 0;
  try {
    while ((n = read(from, buffer.data(), buffer.size())) != 0) {
      if (n < 0 && errno != EINTR)
        throw RunError(path.string() + ": cannot be read: " + std::strerror(errno));
      if (n > 0) copy.write(buffer.data(), static_cast<size_t>(n));
    }
  } catch (...) {
    close(from);
    throw;
  }
  close(from);
  // Its owner as far as this process may give files away.
  if (chown(copy.temporary().c_str(), status.st_uid, status.st_gid) != 0) errno = 0;
  chmod(copy.temporary().c_str(), status.st_mode & 07777);
}

// Mends a copy; what is said of it is said of `path`.
LogRepair mend(const std::filesystem::path& copy, const std::filesystem::path& path) {
  try {
    {
      // First without changing a byte: repairing would fill what is cut off with zeros.
      const H5File file = H5File::open_dead(copy);
      require_uncut(file, path, std::filesystem::file_size(copy));
    }
    H5File::recover(copy);
    H5File file = H5File::edit_unlocked(copy);
    H5Group root = file.root();
    LogRepair repair = survey_whole(root);
    trim(root);
    file.sync();
    file.close();
    return repair;
  } catch (const RunError& error) {
    std::string what = error.what();
    if (const size_t at = what.find(copy.string()); at != std::string::npos)
      what.replace(at, copy.string().size(), path.string());
    throw RunError(what);
  }
}

}  // namespace

LogRepair repair_held_log(const std::filesystem::path& path) {
  const H5FileFlags flags = h5_file_flags(path);
  if (!flags.hdf5) throw RunError(path.string() + ": is not an HDF5 file");
  if (!flags.being_written) {
    return survey_apart(path, [&] { return survey_whole(H5File::open_unlocked(path).root()); });
  }
  ReplacementFile copy(std::filesystem::canonical(path));  // a link to a log stays one
  copy_into(copy, path);
  LogRepair repair = survey_apart(path, [&] { return mend(copy.temporary(), path); });
  repair.needed = true;
  copy.commit();
  return repair;
}

LogRepair repair_log(const std::filesystem::path& path) {
  const WriterLock lock(std::filesystem::canonical(path));  // which its writer holds
  return repair_held_log(path);
}

namespace {

template <class Variable>
void drop_unlogged_of(const H5Group& root, const std::string& path,
                      std::vector<Variable>& variables, std::set<std::string>& dropped) {
  if (!root.has_group(path)) return;  // not a log of this run at all
  const H5Group group = root.group(path);
  std::erase_if(variables, [&](const Variable& variable) {
    if (group.has_dataset(variable.name)) return false;
    dropped.insert(variable.name);
    return true;
  });
}

}  // namespace

std::vector<std::string> drop_unlogged(const std::filesystem::path& path,
                                       std::vector<LogSite>& sites,
                                       std::vector<LogVariable>& evals) {
  const WriterLock lock(path);
  repair_held_log(path);
  const H5File file = H5File::open_unlocked(path);
  const H5Group root = file.root();
  std::set<std::string> dropped;
  drop_unlogged_of(root, "eval", evals, dropped);
  for (LogSite& site : sites) {
    drop_unlogged_of(root, "heads/" + site.name, site.statistics, dropped);
    if (!site.maps || !site.maps->images) continue;
    std::vector<LogVariable> image = {{"image", "", "", ""}};
    drop_unlogged_of(root, "attention/" + site.name, image, dropped);
    if (image.empty()) site.maps->images.reset();
  }
  return {dropped.begin(), dropped.end()};
}

}  // namespace headlab
