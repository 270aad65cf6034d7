// Words and environment of a program that is to be started, as exec and posix_spawn take them.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headlab {

// "NAME=value" of this process's environment with `set` over it, without the names that are
// `left_out`.
inline std::vector<std::string> environment_with(
    const std::map<std::string, std::string>& set,
    const std::function<bool(std::string_view)>& left_out = [](std::string_view) {
      return false;
    }) {
  std::vector<std::string> settings;
  for (char** setting = ::environ; *setting != nullptr; ++setting) {
    const std::string_view text = *setting;
    const auto name = text.substr(0, text.find('='));
    if (!left_out(name) && !set.count(std::string(name))) settings.emplace_back(text);
  }
  for (const auto& [name, value] : set) settings.push_back(fmt::format("{}={}", name, value));
  return settings;
}

// Valid as long as the texts are; null ends it.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace headlab
