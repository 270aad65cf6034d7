// Tokens that a text spells out verbatim: they are cut out before a tokenizer looks at the rest.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/text/utf8.h"

namespace headlab {

class SpecialTokens {
 public:
  SpecialTokens(std::vector<std::string> texts);  // NOLINT: a list of them is one

  const std::vector<std::string>& texts() const { return texts_; }

  // Whether a text spells one out from before `at` to behind it, there or one byte before being
  // ASCII's white space. Who looks for specials from the left finds the same ones in the two parts
  // as in the whole where none does.
  bool stand_across(std::string_view text, size_t at) const;

  // Calls `take(range, number)` with one part of a text after the other; `number` is that of the
  // special, -1 for what lies between two. The leftmost comes first, of several there the longest.
  void for_each_part(std::string_view text,
                     const std::function<void(TextRange, int64_t)>& take) const;

 private:
  struct Found {
    size_t at = std::string_view::npos;
    int64_t number = -1;
  };
  Found next(std::string_view text, size_t from) const;

  std::vector<std::string> texts_;
  std::vector<std::string> spaced_;  // those with ASCII's white space in them
  std::string first_bytes_;
  std::array<std::vector<int64_t>, 256> beginning_;  // by first byte, the longest first
};

}  // namespace headlab
