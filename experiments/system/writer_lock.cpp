#include "experiments/system/writer_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "experiments/files/regular_file.h"
#include "experiments/system/host_name.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

std::filesystem::path lock_path(const std::filesystem::path& subject) {
  std::error_code none;
  if (std::filesystem::is_directory(subject, none)) return subject / ".lock";
  return subject.string() + ".lock";
}

std::string read_holder(int descriptor) {
  std::string text(512, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(pread(descriptor, text.data(), 512, 0), 0)));
  std::istringstream in(text);
  std::string process, host;
  in >> process >> host;
  return process.empty() ? "another process" : "process " + process + " on " + host;
}

enum class Lock { kTaken, kOfAnother, kNone };

// Of the whole file, by its open description: closing another one of this process frees nothing.
struct flock whole_file(int16_t type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

Lock try_flock(int descriptor, int operation) {
  int done = 0;
  do done = flock(descriptor, operation | LOCK_NB);
  while (done != 0 && errno == EINTR);
  if (done == 0) return Lock::kTaken;
  return errno == EWOULDBLOCK ? Lock::kOfAnother : Lock::kNone;
}

Lock try_fcntl(int descriptor) {
  auto lock = whole_file(F_WRLCK);
  int done = 0;
  do done = fcntl(descriptor, F_OFD_SETLK, &lock);
  while (done != 0 && errno == EINTR);
  if (done == 0) return Lock::kTaken;
  return errno == EAGAIN || errno == EACCES ? Lock::kOfAnother : Lock::kNone;
}

void tell_once_of_no_lock(const std::filesystem::path& path, int error) {
  static std::once_flag told;
  std::call_once(told, [&] {
    tell(
        "{}: its file system has no locks ({}): nothing keeps a second process from writing the "
        "same; see that there is none",
        path.string(), std::strerror(error));
  });
}

// Whether the lock is to be had. A look at it by holder() takes it for a moment.
bool take(int descriptor, const std::filesystem::path& path) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    auto lock = try_flock(descriptor, LOCK_EX);
    if (lock == Lock::kNone) lock = try_fcntl(descriptor);
    if (lock == Lock::kNone) tell_once_of_no_lock(path, errno);
    if (lock != Lock::kOfAnother) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Without taking it for longer than a moment.
bool is_of_another(int descriptor, Lock by_flock) {
  if (by_flock != Lock::kNone) return by_flock == Lock::kOfAnother;
  auto lock = whole_file(F_WRLCK);
  return fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// The file that was opened is no longer the one of that name when its holder has just let go.
bool still_there(int descriptor, const std::filesystem::path& path) {
  struct stat opened, named;
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

WriterLock::WriterLock(const std::filesystem::path& subject) : path_(lock_path(subject)) {
  for (;;) {
    descriptor_ = open_regular(path_, O_RDWR | O_CREAT);
    if (descriptor_ < 0) {
      throw RunError(path_.string() + ": cannot be made: " + std::strerror(errno));
    }
    if (!take(descriptor_, path_)) {
      const std::string holder = read_holder(descriptor_);
      ::close(descriptor_);
      throw TakenError(subject.string() + ": is being written by " + holder +
                       "; wait for it or stop it");
    }
    if (still_there(descriptor_, path_)) break;
    ::close(descriptor_);
  }
  const std::string text = std::to_string(getpid()) + " " + host_name() + "\n";
  if (ftruncate(descriptor_, 0) != 0 ||
      pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const std::string reason = std::strerror(errno);
    unlink(path_.c_str());
    ::close(descriptor_);
    throw RunError(path_.string() + ": cannot be written: " + reason);
  }
}

WriterLock::WriterLock(WriterLock&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

WriterLock::~WriterLock() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  ::close(descriptor_);
}

void WriterLock::renamed(const std::filesystem::path& subject) { path_ = lock_path(subject); }

std::optional<std::string> WriterLock::holder(const std::filesystem::path& subject) {
  const std::filesystem::path path = lock_path(subject);
  int descriptor = -1;
  try {
    descriptor = open_regular(path, O_RDONLY | O_NOFOLLOW);
  } catch (const RunError&) {  // what is no regular file is no lock of a writer
  }
  if (descriptor < 0) return std::nullopt;
  std::optional<std::string> found;
  if (is_of_another(descriptor, try_flock(descriptor, LOCK_SH))) found = read_holder(descriptor);
  ::close(descriptor);
  return found;
}

}  // namespace headlab
