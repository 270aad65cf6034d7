#include "experiments/files/json_place.h"

#include <fmt/format.h>

#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {

std::string JsonPlace::name() const { return path_.empty() ? file_ : file_ + ": " + path_; }

std::optional<JsonPlace> JsonPlace::find(const std::string& key) const {
  if (!value_->is_object()) refuse("is no object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonPlace(*found, file_, path_.empty() ? key : path_ + "." + key);
}

JsonPlace JsonPlace::at(const std::string& key) const {
  auto found = find(key);
  if (!found) refuse(fmt::format("'{}' is missing", key));
  return *found;
}

std::vector<JsonPlace> JsonPlace::elements() const {
  if (!value_->is_array()) refuse("is no array");
  std::vector<JsonPlace> all;
  for (const auto& value : *value_)
    all.emplace_back(value, file_, fmt::format("{}[{}]", path_, all.size()));
  return all;
}

std::string JsonPlace::text() const {
  if (!value_->is_string()) refuse("is no text");
  return value_->get<std::string>();
}

int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) refuse("is no integer");
  return value_->get<int64_t>();
}

bool JsonPlace::truth() const {
  if (!value_->is_boolean()) refuse("is neither true nor false");
  return value_->get<bool>();
}

std::string JsonPlace::text(const std::string& key, const std::string& otherwise) const {
  const auto found = find(key);
  return found ? found->text() : otherwise;
}

bool JsonPlace::truth(const std::string& key, bool otherwise) const {
  const auto found = find(key);
  return found ? found->truth() : otherwise;
}

void JsonPlace::refuse(const std::string& what) const { throw DataError(name() + " " + what); }

void JsonPlace::unknown(const std::string& what) const { throw NotKnownHere(name() + ": " + what); }

nlohmann::json read_json(const std::filesystem::path& file) {
  const MappedFile bytes(file);
  if (nests_too_deep(bytes.text())) throw DataError(file.string() + ": nests too deep");
  try {
    return nlohmann::json::parse(bytes.text());
  } catch (const nlohmann::json::exception& error) {  // a number may overflow, too
    std::string what = error.what();
    const auto place = what.find("] ");
    if (place != what.npos) what.erase(0, place + 2);
    throw DataError(fmt::format("{}: {}", file.string(), what));
  }
}

}  // namespace headlab
