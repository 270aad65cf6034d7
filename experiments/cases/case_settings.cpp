#include "experiments/cases/case_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/errors.h"
#include "experiments/files/json_text.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostTokens = int64_t{1} << 20;  // of a text that a case has a model write

bool is_count(const Json& json) {
  return json.is_number_integer() && json >= 1 && json <= kMostTokens;
}

}  // namespace

void CaseSettings::refuse(const std::string& key, const std::string& what) const {
  throw DataError(fmt::format("{}: metadata {}: {}", file_, key, what));
}

const std::string& CaseSettings::text(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end())
    throw DataError(fmt::format("{}: the metadata has no {}", file_, key));
  return found->second;
}

double CaseSettings::number(const std::string& key) const {
  const auto& written = text(key);
  double value = 0;
  const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), value);
  if (error != std::errc() || end != written.data() + written.size() || !std::isfinite(value) ||
      value < 0)
    refuse(key, fmt::format("must be a number of at least 0, is '{}'", written));
  return value;
}

bool CaseSettings::truth(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end() || found->second == "false") return false;
  if (found->second != "true")
    refuse(key, fmt::format("must be true or false, is '{}'", found->second));
  return true;
}

Json CaseSettings::json(const std::string& key) const {
  return parse_json<Json>(text(key)).value_or(Json());
}

CaseSettings::Likely CaseSettings::topk() const {
  const auto said = json("topk");
  const auto temperature = said.is_object() ? said.value("temperature", Json()) : Json();
  const auto top_k = said.is_object() ? said.value("top_k", Json()) : Json();
  if (!temperature.is_number() || temperature <= 0 || !is_count(top_k))
    refuse("topk", "must have a temperature above 0 and an integer top_k of at least 1");
  return {temperature.get<double>(), top_k.get<int64_t>()};
}

int64_t CaseSettings::beam_length(int64_t otherwise) const {
  if (!metadata_.contains("beam")) return otherwise;
  const auto said = json("beam");
  if (!said.is_object()) refuse("beam", "must be an object of JSON");
  const auto longest = said.value("max_length", Json(otherwise));
  if (!is_count(longest))
    refuse("beam", fmt::format("max_length must be an integer from 1 to {}", kMostTokens));
  return longest.get<int64_t>();
}

std::vector<int64_t> CaseSettings::offsets() const {
  const auto said = json("offsets");
  const auto whole = [](const Json& offset) { return offset.is_number_integer(); };
  if (!said.is_array() || !std::all_of(said.begin(), said.end(), whole))
    refuse("offsets", "must be a list of integers");
  return said.get<std::vector<int64_t>>();
}

int64_t CaseSettings::relations() const {
  const auto said = json("relations");
  if (!said.is_array() || said.empty() || said[0] != "all")
    refuse("relations", "must be a list that begins with all");
  return std::ssize(said);
}

Json CaseSettings::conversion() const {
  auto said = json("config");
  for (const char* which : {"from", "to"})
    if (!said.is_object() || !said.contains(which) || !said[which].is_object())
      refuse("config", fmt::format("has no layer '{}'", which));
  return said;
}

}  // namespace headlab
