// The names of a process's threads, as the kernel has them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace headlab::testing {

// `process`: its number. A thread that ends meanwhile has an empty name, or is left out.
inline std::vector<std::string> thread_names(const std::string& process = "self") {
  std::vector<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + process + "/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    names.push_back(name);
  }
  return names;
}

}  // namespace headlab::testing
