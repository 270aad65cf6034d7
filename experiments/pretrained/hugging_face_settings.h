// The settings beside weights in Hugging Face's layout.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/errors.h"

namespace headlab {

// config.json: keys that must be there, and those that may. Errors name file and key: DataError for
// what is wrong, ConfigError for what no model here can do.
class HuggingFaceSettings {
 public:
  explicit HuggingFaceSettings(const std::filesystem::path& file);
  HuggingFaceSettings(nlohmann::json json, std::string name)
      : file_(std::move(name)), json_(std::move(json)) {}

  const std::string& name() const { return file_; }
  [[noreturn]] void refuse(const std::string& what) const { throw DataError(file_ + ": " + what); }
  [[noreturn]] void unknown(const std::string& what) const {
    throw ConfigError(file_ + ": " + what);
  }
  const nlohmann::json* find(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  template <class T>
  T get(const std::string& key) const {
    const auto* value = find(key);
    if (!value) refuse(key + " is missing");
    return as<T>(key, *value);
  }
  template <class T>
  T get(const std::string& key, T otherwise) const {
    const auto* value = find(key);
    return value ? as<T>(key, *value) : otherwise;
  }
  // At least 1, and not so much that products of sizes overflow.
  int64_t size(const std::string& key) const { return checked(key, get<int64_t>(key)); }
  int64_t size(const std::string& key, int64_t otherwise) const {
    return find(key) ? size(key) : otherwise;
  }
  std::string activation(const std::string& key) const;
  // One number, or a list of them; none where the key is missing.
  std::vector<int64_t> ids(const std::string& key) const;
  void require(const std::string& key, const nlohmann::json& value) const;  // or none

 private:
  template <class T>
  T as(const std::string& key, const nlohmann::json& value) const {
    try {
      return value.get<T>();
    } catch (const nlohmann::json::exception&) {
      refuse(fmt::format("{} cannot be {}", key, value.dump().substr(0, 60)));
    }
  }
  int64_t checked(const std::string& key, int64_t value) const;

  std::string file_;
  nlohmann::json json_;
};

}  // namespace headlab
