#include "experiments/system/program_name.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "experiments/system/own_files.h"
#include "headlab_build.h"

namespace headlab {

std::string program_name() {
  const char* name = std::getenv("HEADLAB_COMMAND");
  return name != nullptr && *name != '\0' ? name : "headlab";
}

std::string script_name(const std::string& script) {
  const auto folder = std::filesystem::path(program_name()).parent_path();
  // pip puts headlab-log, which opens logs as the scripts do, beside the command headlab.
  if (is_installed()) return (folder / "headlab-log").string() + " " + script;
  return folder.empty() ? fmt::format("{}/scripts/{}", build::kSourceDir, script)
                        : (folder / script).string();
}

std::string as_called(const std::string& commands, const std::string& name) {
  static const std::string written = "headlab ";
  std::string called;
  size_t copied = 0;
  for (size_t at = 0; (at = commands.find(written, at)) != std::string::npos;
       at += written.size()) {
    // The first word of a line or of what stands in brackets.
    const auto before = commands.find_last_not_of(' ', at - 1);
    if (at != 0 && before != std::string::npos && commands[before] != '\n' &&
        commands[at - 1] != '(')
      continue;
    called += commands.substr(copied, at - copied) + name + " ";
    copied = at + written.size();
  }
  return called + commands.substr(copied);
}

}  // namespace headlab
