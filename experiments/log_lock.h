// Who may write a log: a lock on `<log>.lock`, which says who holds it. The kernel frees it when
// the holder dies, however it dies.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace headlab {

class LogLock {
 public:
  // RunError: another process has it, and which; or the file cannot be made. On file systems that
  // know no locks nobody is kept out.
  explicit LogLock(const std::filesystem::path& log);
  LogLock(const LogLock&) = delete;
  LogLock& operator=(const LogLock&) = delete;
  ~LogLock();

  // "process 123 on host", or none when nobody has it.
  static std::optional<std::string> holder(const std::filesystem::path& log);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace headlab
