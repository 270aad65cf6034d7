// This program, started again with other words: a child that ends when this process does.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headlab {

std::filesystem::path this_program();  // the file that this process was started from
// SHA-256 of what this process runs, which need no longer lie there.
const std::string& program_digest();
// A copy in `folder` of what this process runs, for those who start it later: named by its digest,
// so that a program built since gets a name of its own. RunError where it cannot be written.
std::filesystem::path copy_of_this_program(const std::filesystem::path& folder);

class SpawnedProgram {
 public:
  // Starts `<what this process runs> words...`, though it has been built anew meanwhile, in a
  // process group of its own, with what it prints on stdout
  // and stderr appended to `output`. `environment` is set over this process's, whose variables that
  // make a process one of several (torchrun's, srun's) are taken away. When this process ends,
  // however it does, the child is told to stop (SIGTERM). RunError where it cannot be started.
  SpawnedProgram(const std::vector<std::string>& words, const std::filesystem::path& output,
                 const std::map<std::string, std::string>& environment = {});
  SpawnedProgram(SpawnedProgram&& other) noexcept;
  SpawnedProgram& operator=(SpawnedProgram&&) = delete;
  ~SpawnedProgram();  // stops it (SIGTERM), and waits

  // How it has ended: its exit code, or minus the signal that killed it; none while it runs.
  std::optional<int> ended();
  int wait();
  void signal(int number) const;
  pid_t id() const { return pid_; }

 private:
  void take(int status);

  pid_t pid_ = -1;
  std::optional<int> code_;
};

}  // namespace headlab
