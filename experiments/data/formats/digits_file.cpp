#include "experiments/data/formats/digits_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/errors.h"
#include "experiments/data/formats/gzip.h"
#include "experiments/data/formats/plain_text.h"

namespace headlab {

DigitImages parse_digits(std::string_view text, const std::string& name) {
  constexpr int64_t kNumbers = kDigitSide * kDigitSide + 1;
  DigitImages digits;
  each_line(text, [&](std::string_view rest, int64_t line) {
    const auto fail = [&](const std::string& what) {
      throw DataError(fmt::format("{}:{}: {}", name, line, what));
    };
    if (const auto count = std::count(rest.begin(), rest.end(), ',') + 1; count != kNumbers)
      fail(fmt::format("has {} numbers, not {} pixels and a label", count, kNumbers - 1));
    for (int64_t n = 0; n < kNumbers; ++n) {
      const bool is_label = n == kNumbers - 1;
      const auto word = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
      uint8_t number = 0;
      const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
      const int64_t most = is_label ? 9 : kDigitInk;
      if (error != std::errc{} || stop != word.data() + word.size() || number > most)
        fail(fmt::format("number {} is '{}'; it must be 0 to {}", n + 1, word, most));
      (is_label ? digits.labels : digits.pixels).push_back(number);
    }
  });
  return digits;
}

DigitImages read_digits() {
  const std::string name = "digits.csv.gz";
  std::string text;
  inflate_gzip({reinterpret_cast<const char*>(kDigitsFile.data()), kDigitsFile.size()}, name,
               [&](std::span<const uint8_t> block) { text.append(block.begin(), block.end()); });
  return parse_digits(text, name);
}

}  // namespace headlab
