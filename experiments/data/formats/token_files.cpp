#include "experiments/data/formats/token_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

template <class Token>
TokenSpan tokens_as(std::string_view bytes, const std::string& name) {
  if (bytes.size() % sizeof(Token) != 0)
    throw DataError(
        fmt::format("{}: {} bytes are no whole number of {}-byte tokens; it is "
                    "truncated, or dtype in meta.json is wrong",
                    name, bytes.size(), sizeof(Token)));
  return std::span(reinterpret_cast<const Token*>(bytes.data()), bytes.size() / sizeof(Token));
}

}  // namespace

TokenMeta read_token_meta(const std::filesystem::path& path) {
  return parse_token_meta(MappedFile(path).text(), path.string());
}

TokenMeta parse_token_meta(std::string_view text, const std::string& name) {
  using json = nlohmann::json;
  const auto fail = [&](const std::string& what) { throw DataError(name + ": " + what); };
  const auto all = parse_json(text).value_or(json());
  if (!all.is_object()) fail("is not a JSON object");
  TokenMeta meta;
  const json size = all.value("vocab_size", json());
  if (!size.is_number_integer() || size < 1 || size > int64_t{1} << 32)
    fail("vocab_size must be an integer from 1 to 2^32");
  meta.vocab_size = size;
  const json dtype = all.value("dtype", json(meta.dtype));
  if (dtype != "uint16" && dtype != "uint32") fail("dtype must be \"uint16\" or \"uint32\"");
  meta.dtype = dtype;
  if (meta.dtype == "uint16" && meta.vocab_size > 1 << 16)
    fail(fmt::format("uint16 cannot hold vocab_size {}; is dtype uint32?", meta.vocab_size));
  const json itos = all.value("itos", json::array());
  const auto is_text = [](const json& one) { return one.is_string(); };
  if (!itos.is_array() || !std::all_of(itos.begin(), itos.end(), is_text))
    fail("itos must be a list of texts");
  meta.itos = itos;
  if (!meta.itos.empty() && std::ssize(meta.itos) != meta.vocab_size)
    fail(fmt::format("itos has {} texts, vocab_size is {}", meta.itos.size(), meta.vocab_size));
  return meta;
}

TokenSpan tokens_in(std::string_view bytes, const TokenMeta& meta, const std::string& name) {
  return meta.dtype == "uint16" ? tokens_as<uint16_t>(bytes, name)
                                : tokens_as<uint32_t>(bytes, name);
}

}  // namespace headlab
