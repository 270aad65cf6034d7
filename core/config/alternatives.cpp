#include "core/config/alternatives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace headlab {

void WordOrNumber::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  Problems no_number;
  double number = 0;
  if (read_value(number, node, path, no_number)) {
    number_ = number;
  } else if (std::find(words_.begin(), words_.end(), node.text) != words_.end()) {
    number_.reset();
    word_ = node.text;
  } else {
    problems.add(node.place, path,
                 fmt::format("must be {} or a number{}", fmt::join(words_, ", "),
                             did_you_mean(node.text, words_)));
  }
}

std::string WordOrNumber::type() const {
  return fmt::format("{} or number", fmt::join(words_, ", "));
}

void WordOrNumber::forms(Forms& f) const {
  f.word(words_);
  f.number({});
}

}  // namespace headlab
