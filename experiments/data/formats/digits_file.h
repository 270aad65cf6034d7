// scikit-learn's digits.csv.gz, which lies in the program: lines of 64 pixels and a label, numbers
// with commas between. No torch in here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headlab {

inline constexpr int64_t kDigitSide = 8, kDigitInk = 16;  // pixels a side; the most of a pixel

struct DigitImages {
  std::vector<uint8_t> pixels;  // [N,side,side], 0 to kDigitInk
  std::vector<uint8_t> labels;  // [N], 0 to 9
};

// configs/data/digits.csv.gz, written into the build by CMake.
extern const std::span<const uint8_t> kDigitsFile;

DigitImages read_digits();  // of kDigitsFile
// The same of a text. DataError `name:line: what is wrong`.
DigitImages parse_digits(std::string_view text, const std::string& name);

}  // namespace headlab
