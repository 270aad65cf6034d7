#include "experiments/system/memory.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "core/errors.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

std::optional<double> number_in(const fs::path& file) {
  std::ifstream in(file);
  double number = 0;
  if (!(in >> number)) return std::nullopt;  // not there, or "max"
  return number;
}

// Of lines "name: 12 kB" or "name 12".
std::optional<double> number_of(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    double number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return std::nullopt;
}

struct GroupFiles {
  fs::path root;
  const char *limit, *usage;
};

// What a control group and all above it leave; files that will be dropped count as free.
double left_by_groups(const GroupFiles& files, const fs::path& group) {
  double left = std::numeric_limits<double>::infinity();
  for (fs::path path = group.relative_path();; path = path.parent_path()) {
    const fs::path at = files.root / path;
    const auto limit = number_in(at / files.limit), usage = number_in(at / files.usage);
    if (limit && usage)
      left = std::min(left,
                      *limit - *usage + number_of(at / "memory.stat", "inactive_file").value_or(0));
    if (path.empty()) return left;
  }
}

double left_by_groups() {
  double left = std::numeric_limits<double>::infinity();
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "4:memory:/path", of version 2 "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty())
      left =
          std::min(left, left_by_groups({"/sys/fs/cgroup", "memory.max", "memory.current"}, group));
    if (controllers == "memory")
      left = std::min(left, left_by_groups({"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                            "memory.usage_in_bytes"},
                                           group));
  }
  return left;
}

// What was freed and stays with the process is there for the next to ask.
double freed_and_kept() {
#ifdef __GLIBC__
  return static_cast<double>(mallinfo2().fordblks);
#else
  return 0;
#endif
}

}  // namespace

std::string readable_bytes(double bytes) {
  for (const char* unit : {"B", "KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) return fmt::format("{:.4g} {}", bytes, unit);
    bytes /= 1024;
  }
  return fmt::format("{:.4g} PiB", bytes);
}

double available_memory() {
  const auto machine = number_of("/proc/meminfo", "MemAvailable:");
  if (!machine) return std::numeric_limits<double>::infinity();
  return std::max(0.0, std::min(*machine * 1024, left_by_groups())) + freed_and_kept();
}

void require_memory(double bytes, const std::string& what) {
  const double available = available_memory();
  if (bytes <= available) return;
  throw DeviceError(fmt::format(
      "out of memory: {} would take {}, and {} are there; a smaller model, batch or context needs "
      "less",
      what, readable_bytes(bytes), readable_bytes(available)));
}

}  // namespace headlab
