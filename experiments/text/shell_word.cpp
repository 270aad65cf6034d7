#include "experiments/text/shell_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace headlab {
namespace {

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7F; }

// U+0080 to U+009F in UTF-8.
bool is_later_control(std::string_view text, size_t at) {
  if (text[at] != '\xC2' || at + 1 == text.size()) return false;
  const auto next = static_cast<unsigned char>(text[at + 1]);
  return next >= 0x80 && next <= 0x9F;
}

bool is_plain_of_shell(unsigned char c) {
  constexpr std::string_view kOthers = "/._-+@,:=";
  return std::isalnum(c) != 0 || c >= 0x80 || kOthers.find(c) != kOthers.npos;
}

// $'...', of which bash and zsh take \ooo as a byte.
std::string escaped_word(const std::string& text) {
  std::string word = "$'";
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n')
      word += "\\n";
    else if (c == '\t')
      word += "\\t";
    else if (is_control(static_cast<unsigned char>(c)))
      word += fmt::format("\\{:03o}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    else if (is_later_control(text, at))
      word += fmt::format("\\302\\{:03o}", static_cast<unsigned char>(text[++at]));
    else
      word += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  }
  return word + "'";
}

}  // namespace

bool has_control(const std::string& text) {
  for (size_t at = 0; at < text.size(); ++at)
    if (is_control(static_cast<unsigned char>(text[at])) || is_later_control(text, at)) return true;
  return false;
}

std::string shell_word(const std::string& text) {
  if (has_control(text)) return escaped_word(text);
  if (!text.empty() && std::ranges::all_of(text, is_plain_of_shell)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace headlab
