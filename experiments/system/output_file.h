// The one door for what a command writes where its user says (--out): no input, nothing that a run
// keeps for itself, and no device is lost to it. scripts/python/headlab_log/output.py is the same
// door of the Python tools.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace headlab {

// ConfigError `what WORD: ...` where a name has control characters: a line of a script or of a
// table would end in it, and the rest would be another command.
void require_no_control(const std::string& name, const std::string& what);

// Whether a run or a sweep keeps a file or a folder of its own at `path`, or around it: log.h5,
// ckpt/last/state.json, ... A path that is not there yet counts by its name.
bool is_kept_by_run(const std::filesystem::path& path);

class OutputFile {
 public:
  // A path goes where a redirection of the shell would: through links, to the file that they lead
  // to. `read`: files that the command reads, and folders, in which nothing that is there may go.
  // `results`: "analysis" where RUN/analysis*.h5 is the command's own to replace. ConfigError: the
  // name has control characters. RunError: one of those would be lost, the path is a directory or a
  // disk, or nothing could be written there; ask before hours of work.
  OutputFile(std::filesystem::path path, const std::vector<std::filesystem::path>& read,
             const std::string& results = "");

  // Calls `write` with the file to make, whole or not at all. What is no regular file (/dev/null, a
  // FIFO, /dev/stdout) is given the bytes of a file made elsewhere, and stays what it is.
  void write(const std::function<void(const std::filesystem::path& file)>& write) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  void send(const std::filesystem::path& file) const;

  std::filesystem::path path_, target_;  // as given; behind all links
  int descriptor_ = -1;  // of this process, where the path is /dev/stdout, /dev/fd/3
  bool sent_ = false;    // it is no regular file
};

// The same checks of a new folder (--out of prune, convert, import; export): RunError where a run
// keeps it, or where it is a link that leads nowhere.
void require_new_folder(const std::filesystem::path& path);

}  // namespace headlab
