// open without waiting, fstat, and what is wrong in a sentence.
#include "experiments/files/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/errors.h"

namespace headlab {
namespace {

const char* word_of_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "a link";
}

[[noreturn]] void refuse_kind(const std::filesystem::path& path, mode_t mode) {
  throw RunError(fmt::format("{}: is {} where a file should be; remove it", path.string(),
                             word_of_kind(mode)));
}

[[noreturn]] void refuse_shared(const std::filesystem::path& path, const std::string& what) {
  throw RunError(
      fmt::format("{}: {}, so that writing it would change another file; put a copy of the file "
                  "in its place, or remove it",
                  path.string(), what));
}

bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

}  // namespace

int open_regular(const std::filesystem::path& path, int flags) {
  const int how = flags | O_NONBLOCK | O_CLOEXEC | (writes(flags) ? O_NOFOLLOW : 0);
  const int descriptor = ::open(path.c_str(), how, 0666);
  const int error = errno;
  struct stat status {};
  if (descriptor < 0) {
    const bool there = ::lstat(path.c_str(), &status) == 0;
    if (there && error == ELOOP && S_ISLNK(status.st_mode) && writes(flags))
      refuse_shared(path, "is a link");
    // What a FIFO without a reader, a socket or a directory answers.
    if (there && (error == ENXIO || error == EISDIR) && !S_ISREG(status.st_mode))
      refuse_kind(path, status.st_mode);
    errno = error;
    return -1;
  }
  const bool known = ::fstat(descriptor, &status) == 0;
  const bool shared = writes(flags) && status.st_nlink > 1;
  if (known && S_ISREG(status.st_mode) && !shared) return descriptor;
  ::close(descriptor);
  if (known && S_ISREG(status.st_mode))
    refuse_shared(path, fmt::format("is a file of {} names", status.st_nlink));
  refuse_kind(path, status.st_mode);
}

namespace {

void require_openable(const std::filesystem::path& path, int flags) {
  if (const int descriptor = open_regular(path, flags); descriptor >= 0) ::close(descriptor);
}

}  // namespace

void require_regular(const std::filesystem::path& path) { require_openable(path, O_RDONLY); }
void require_writable(const std::filesystem::path& path) { require_openable(path, O_RDWR); }

void require_own_directory(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, none))) return;
  throw RunError(fmt::format(
      "{}: is a link, so that writing there would change {}; move the run as a whole to where it "
      "has room, and link its directory",
      path.string(), std::filesystem::read_symlink(path, none).string()));
}

std::optional<std::string> read_regular(const std::filesystem::path& path, uint64_t most) {
  int descriptor = -1;
  try {
    descriptor = open_regular(path, O_RDONLY);
  } catch (const RunError&) {  // none of ours
  }
  if (descriptor < 0) return std::nullopt;
  struct stat status {};
  std::string text;
  bool whole = ::fstat(descriptor, &status) == 0 && static_cast<uint64_t>(status.st_size) <= most;
  if (whole) text.resize(static_cast<size_t>(status.st_size));
  size_t have = 0;
  while (whole && have < text.size()) {
    const ssize_t got = ::read(descriptor, text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    whole = got >= 0;
    if (got <= 0) break;  // cut meanwhile
    have += static_cast<size_t>(got);
  }
  ::close(descriptor);
  text.resize(have);
  return whole ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace headlab
