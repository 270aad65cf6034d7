// Write, fsync, rename, fsync of the directory.
#include "experiments/files/replacement_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "core/errors.h"

namespace headlab {

namespace {

[[noreturn]] void fail_with(const std::filesystem::path& path, int error) {
  const std::string reason = std::generic_category().message(error);
  throw RunError(fmt::format("{}: cannot be written: {}", path.string(), reason));
}

}  // namespace

ReplacementFile::ReplacementFile(const std::filesystem::path& path) : path_(path) {
  static std::atomic<uint64_t> counter = 0;
  do {  // a name may be left over from a killed process
    temporary_ = path.parent_path() / fmt::format(".tmp-{}-{}", ::getpid(), counter++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail();
}

ReplacementFile::~ReplacementFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_) ::unlink(temporary_.c_str());
}

void ReplacementFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, next, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    next += written;
    size -= static_cast<size_t>(written);
  }
}

void ReplacementFile::commit() {
  if (::fsync(descriptor_) != 0) fail();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
  committed_ = true;
  sync_directory(path_.parent_path());  // else the rename may be undone by a crash
}

void ReplacementFile::fail() const { fail_with(path_, errno); }

void replace_file(const std::filesystem::path& path, std::string_view bytes) {
  ReplacementFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory.empty() ? "." : directory;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0 && errno == EACCES) return;  // may not be read: it cannot be synced either
  if (descriptor < 0) fail_with(path, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0) fail_with(path, error);
}

}  // namespace headlab
