// The settings beside weights in Hugging Face's layout.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/errors.h"

namespace headlab {

// What transformers assumes: every key that is read of such a config.json, with the value that the
// configuration class of transformers 5.24 gives it where the file does not (null: none); an empty
// object where the type is not known. `renamed`, likewise: other names of a key that the class
// takes (attribute_map).
const nlohmann::json& hugging_face_defaults(const std::string& model_type);
const nlohmann::json& hugging_face_other_names(const std::string& model_type);

// config.json, with what transformers assumes of the keys that it leaves out. Errors name file and
// key: DataError for what is wrong, ConfigError for what no model here can do.
class HuggingFaceSettings {
 public:
  explicit HuggingFaceSettings(const std::filesystem::path& file);
  HuggingFaceSettings(nlohmann::json json, std::string name);

  const std::string& name() const { return file_; }
  [[noreturn]] void refuse(const std::string& what) const { throw DataError(file_ + ": " + what); }
  [[noreturn]] void unknown(const std::string& what) const {
    throw ConfigError(file_ + ": " + what);
  }
  const std::string& model_type() const { return model_type_; }
  // Null where the value is null. `key`: "architectures", or one of the table of defaults.
  const nlohmann::json* find(const std::string& key) const;
  template <class T>
  T get(const std::string& key) const {
    const auto* value = find(key);
    if (!value) refuse(key + " is missing");
    return as<T>(key, *value);
  }
  // At least 1, and not so much that products of sizes overflow.
  int64_t size(const std::string& key) const { return checked(key, get<int64_t>(key)); }
  int64_t size(const std::string& key, int64_t where_null) const {
    return find(key) ? size(key) : where_null;
  }
  std::string activation(const std::string& key) const;
  // A token of `vocabulary`; counted from the end where it is negative, as torch does. None where
  // it is null.
  std::optional<int64_t> token(const std::string& key, int64_t vocabulary) const;
  // One number, or a list of them; none where the value is null.
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
  void add_defaults();

  std::string file_, model_type_;
  nlohmann::json json_;
};

}  // namespace headlab
