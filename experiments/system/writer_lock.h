// Who may write a file or a directory: a lock on `<file>.lock` or `<directory>/.lock`, which says
// who holds it. The kernel frees it when the holder dies, however it dies. No torch in here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/errors.h"

namespace headlab {

// What is to be written is another process's.
class TakenError : public RunError {
 public:
  using RunError::RunError;
};

class WriterLock {
 public:
  // TakenError: another process has it, and which. RunError: it cannot be made. flock(), and where
  // the file system has none, fcntl(); one that has neither keeps nobody out, which is told once.
  explicit WriterLock(const std::filesystem::path& subject);
  WriterLock(WriterLock&& other) noexcept;
  WriterLock& operator=(WriterLock&&) = delete;
  ~WriterLock();

  bool held() const { return descriptor_ >= 0; }       // false: moved away
  void renamed(const std::filesystem::path& subject);  // a directory took its lock along

  // "process 123 on host", or none when nobody has it.
  static std::optional<std::string> holder(const std::filesystem::path& subject);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace headlab
