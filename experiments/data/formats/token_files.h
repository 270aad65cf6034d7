// Token ids on disk, as nanoGPT prepares them: little-endian ids without a header, and meta.json
// beside them: {"vocab_size": V, "dtype": "uint16" or "uint32" (uint16), "itos": [the text of every
// token] (none)}. No torch in here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headlab {

// Tokens as they lie in memory or in a mapped file.
using TokenSpan =
    std::variant<std::span<const uint8_t>, std::span<const uint16_t>, std::span<const uint32_t>>;

struct TokenMeta {
  int64_t vocab_size = 0;
  std::string dtype = "uint16";
  std::vector<std::string> itos;
};

// Other keys are for other readers. DataError `path: what is wrong`.
TokenMeta read_token_meta(const std::filesystem::path& path);
// The same of a text; `name` stands for the path.
TokenMeta parse_token_meta(std::string_view text, const std::string& name);

// The ids in a file's bytes, which are aligned to them. DataError naming it where they are no whole
// number of ids.
TokenSpan tokens_in(std::string_view bytes, const TokenMeta& meta, const std::string& name);

}  // namespace headlab
