// Whole numbers as a person reads them.
#pragma once

#include <cstdint>
#include <string>

namespace headlab {

// "1,234,567", of a number that is not negative.
inline std::string with_commas(int64_t number) {
  auto text = std::to_string(number);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3) text.insert(at, 1, ',');
  return text;
}

}  // namespace headlab
