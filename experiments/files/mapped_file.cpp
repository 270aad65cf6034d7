// open, fstat, mmap.
#include "experiments/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/errors.h"
#include "experiments/files/git_lfs.h"

namespace headlab {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: {}", path.string(), what));
  };
  const auto reason = [](int error) { return std::generic_category().message(error); };
  // Not blocking, so that opening a pipe does not wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail("cannot be opened: " + reason(errno));
  struct stat status {};
  void* address = nullptr;
  int error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  const bool regular = S_ISREG(status.st_mode);
  size_ = static_cast<size_t>(status.st_size), stamp_ = stamp_of(status);
  if (error == 0 && regular && size_ > 0) {
    address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) error = errno;
  }
  ::close(descriptor);
  if (error != 0) fail("cannot be read: " + reason(error));
  if (!regular) fail("is not a regular file");
  data_ = static_cast<const std::byte*>(address);
  if (const auto complaint = git_lfs_complaint(text()); !complaint.empty()) {
    ::munmap(address, size_);
    fail(std::string(complaint));
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::forget(const std::byte* begin, size_t bytes) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = static_cast<size_t>(begin - data_) / page * page;
  const size_t last = static_cast<size_t>(begin - data_) + bytes;
  if (bytes > 0) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

}  // namespace headlab
