// Values of a JSON file that know where they stand, for messages.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/errors.h"

namespace headlab {

// What a file asks for that nothing here can do.
class NotKnownHere : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class JsonPlace {
 public:
  // `file` is what messages call it; `value` must outlive this.
  JsonPlace(const nlohmann::json& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  std::string name() const;  // file: path

  // Of an object: none where it is missing or null. DataError where it is missing, or this is no
  // object.
  std::optional<JsonPlace> find(const std::string& key) const;
  JsonPlace at(const std::string& key) const;
  std::vector<JsonPlace> elements() const;  // of an array

  // DataError where it is something else.
  std::string text() const;
  int64_t integer() const;
  bool truth() const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  bool truth(const std::string& key, bool otherwise) const;

  [[noreturn]] void refuse(const std::string& what) const;   // DataError
  [[noreturn]] void unknown(const std::string& what) const;  // NotKnownHere

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

// DataError naming file, line and column.
nlohmann::json read_json(const std::filesystem::path& file);

// What `make` makes of a file; its DataError names the file too.
template <class Make>
auto made_of(const std::string& file, Make make) {
  try {
    return make();
  } catch (const DataError& error) {
    throw DataError(file + ": " + error.what());
  }
}

}  // namespace headlab
