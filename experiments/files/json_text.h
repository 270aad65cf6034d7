// JSON of files that anyone may have written.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace headlab {

// Whether brackets nest deeper than those of any file that the program writes or knows. Values are
// printed and copied by functions that call themselves, until the stack ends.
bool nests_too_deep(std::string_view json);

// None where the text is no JSON, holds a number that no double reaches, or nests too deep.
template <class Json = nlohmann::json>
std::optional<Json> parse_json(std::string_view text) {
  if (nests_too_deep(text)) return std::nullopt;
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

// As text, which every value has: U+FFFD stands in place of bytes that are not UTF-8, as names of
// files may hold them. indent -1: on one line.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// A whole number in 64 bits. Json's own exception for any other: what get() makes of 1e300 is
// undefined.
template <class Json>
int64_t whole_number(const Json& json) {
  return json.template get_ref<const int64_t&>();
}

}  // namespace headlab
