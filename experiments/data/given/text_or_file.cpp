#include "experiments/data/given/text_or_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/errors.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"

namespace headlab {
namespace {

constexpr size_t kLongestPath = 4096;

// Whether it ends in .txt or the like. The end of a sentence is none, nor are digits of a number.
bool has_extension(std::string_view word) {
  const auto dot = word.rfind('.');
  if (dot == word.npos || dot == 0) return false;
  const auto extension = word.substr(dot + 1);
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return std::any_of(extension.begin(), extension.end(), is_letter) &&
         std::all_of(extension.begin(), extension.end(), is_part);
}

bool looks_like_path(std::string_view text) {
  const auto is_blank = [](unsigned char c) { return std::isspace(c) != 0; };
  if (text.size() > kLongestPath || std::any_of(text.begin(), text.end(), is_blank)) return false;
  return text.find('/') != text.npos || has_extension(text);
}

}  // namespace

NamedText text_of_file(const std::string& path, const Tokenizer* tokenizer) {
  std::string text(tokenizer ? file_for(*tokenizer, path).text : TextFile(path).text());
  return {std::move(text), path, {std::filesystem::canonical(path)}};
}

NamedText text_or_file(const std::string& option, const std::string& given,
                       const Tokenizer* tokenizer) {
  std::error_code none;
  if (given.size() <= kLongestPath && std::filesystem::is_regular_file(given, none))
    return text_of_file(given, tokenizer);
  if (looks_like_path(given))
    throw DataError(fmt::format(
        "{0} {1}: there is no such file. To measure on a file, name one that exists; to measure on "
        "this word itself, write it with a blank: {0} '{1} '",
        option, given));
  return {given, option, {}};
}

}  // namespace headlab
