// CIFAR-10 (Krizhevsky 2009) in its binary version: files of records, each a label and the 32x32
// pixels of three channels. No torch in here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headlab {

inline constexpr int64_t kCifarSide = 32, kCifarChannels = 3;

struct CifarImage {
  const uint8_t* pixels;  // [C,side,side], where they lie in the file's bytes
  uint8_t label;          // 0 to 9
};

// DataError `name: what is wrong` for bytes that are no whole number of records, or none, and for
// other labels.
std::vector<CifarImage> parse_cifar10(std::string_view bytes, const std::string& name);

}  // namespace headlab
