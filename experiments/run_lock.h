// Who may write a run: a lock on `<run>/.lock`, which says who holds it. The kernel frees it when
// the holder dies, however it dies. No torch in here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace headlab {

class RunLock {
 public:
  // RunError: another process has it, and which; or the file cannot be made. On file systems that
  // know no locks nobody is kept out.
  explicit RunLock(const std::filesystem::path& run);
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();  // the file stays: nobody can hold a lock on one that is no longer there

  // "process 123 on host", or none when nobody has it.
  static std::optional<std::string> holder(const std::filesystem::path& run);

 private:
  int descriptor_ = -1;
};

}  // namespace headlab
