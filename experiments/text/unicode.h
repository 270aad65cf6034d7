// Normal forms and cases of Unicode, code point by code point, by utf8proc, as far as the
// tokenizers library knows them (unicode_tables.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "experiments/text/utf8.h"

namespace headlab {

bool is_digit(char32_t code_point);  // of the library's step Digits: is_number(), and newer ones
// As BERT's normalizer has them.
bool is_punctuation(char32_t code_point);      // categories P*
bool is_nonspacing_mark(char32_t code_point);  // category Mn
bool is_control(char32_t code_point);          // categories Cc, Cf, Co

// A code point, and the bytes of a text that it is or was made of.
struct PlacedChar {
  char32_t value = 0;
  TextRange range;
};
using PlacedChars = std::vector<PlacedChar>;

// Of a part of a text that begins at byte `begin`. DataError as decode_utf8.
PlacedChars placed_chars(std::string_view part, size_t begin, const std::string& where);

// Canonical decomposition (NFD): what a code point falls into has its bytes.
PlacedChars decomposed(const PlacedChars& chars);
// Canonical composition (NFC). What is made of one character has its bytes; what several became has
// those of the first, the others are passed over from there on, as the tokenizers library has it.
PlacedChars composed(const PlacedChars& chars);
// Each on its own: no rule looks at its neighbours.
PlacedChars lower_case(const PlacedChars& chars);

}  // namespace headlab
