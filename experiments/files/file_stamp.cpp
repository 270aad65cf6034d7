#include "experiments/files/file_stamp.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace headlab {
namespace {

std::mutex mutex;
std::vector<std::pair<FileStamp, std::string>>& digests() {
  static std::vector<std::pair<FileStamp, std::string>> read;
  return read;
}

}  // namespace

FileStamp stamp_of(const struct stat& status) {
  const auto nanoseconds = [](const timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.device = static_cast<uint64_t>(status.st_dev),
          .inode = static_cast<uint64_t>(status.st_ino),
          .bytes = int64_t{status.st_size},
          .modified_ns = nanoseconds(status.st_mtim),
          .changed_ns = nanoseconds(status.st_ctim)};
}

FileStamp stamp_of(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return {};
  return stamp_of(status);
}

bool is_settled(const FileStamp& stamp) {
  constexpr auto kTick = std::chrono::milliseconds(20);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto age = now - std::chrono::nanoseconds(stamp.changed_ns);
  if (age < -kTick) return false;
  if (age < kTick) std::this_thread::sleep_for(kTick - age);
  return true;
}

std::optional<std::string> digest_read(const FileStamp& stamp) {
  const std::lock_guard lock(mutex);
  for (const auto& [known, digest] : digests())
    if (known == stamp) return digest;
  return std::nullopt;
}

void remember_digest(const FileStamp& stamp, const std::string& digest) {
  const std::lock_guard lock(mutex);
  digests().emplace_back(stamp, digest);
}

}  // namespace headlab
