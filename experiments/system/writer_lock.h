// Who may write a file or a directory: a lock on `<file>.lock` or `<directory>/.lock`, which says
// who holds it. The kernel frees it when the holder dies, however it dies. No torch in here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace headlab {

class WriterLock {
 public:
  // RunError: another process has it, and which; or the lock cannot be made. On file systems that
  // know no locks nobody is kept out.
  explicit WriterLock(const std::filesystem::path& subject);
  WriterLock(WriterLock&& other) noexcept;
  WriterLock& operator=(WriterLock&&) = delete;
  ~WriterLock();

  void renamed(const std::filesystem::path& subject);  // a directory took its lock along

  // "process 123 on host", or none when nobody has it.
  static std::optional<std::string> holder(const std::filesystem::path& subject);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace headlab
