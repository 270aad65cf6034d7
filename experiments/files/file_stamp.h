// By what a file is known again without being read, and the digests that are known so. No torch in
// here.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace headlab {

// Who writes to a file changes changed_ns, which no program sets back.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0, modified_ns = 0, changed_ns = 0;

  bool operator==(const FileStamp&) const = default;
};
FileStamp stamp_of(const struct stat& status);
FileStamp stamp_of(const std::filesystem::path& file);  // zeros where it is not there

// A write in the same tick of the file system's clock as the one before would not be seen: waits
// for the next one. False where that clock is not this machine's.
bool is_settled(const FileStamp& stamp);

// The SHA-256 of the file with this stamp, where this process has read it.
std::optional<std::string> digest_read(const FileStamp& stamp);
// Of a settled one.
void remember_digest(const FileStamp& stamp, const std::string& digest);

}  // namespace headlab
