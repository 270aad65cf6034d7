// Labels of images, as files of images have them. No torch in here.
#pragma once

#include <cstdint>
#include <string>

namespace headlab {

inline constexpr int64_t kImageClasses = 10;  // of all kinds so far

// DataError naming the file `name` unless the label of its image `n` is a class.
void check_label(uint8_t label, int64_t n, const std::string& name);

}  // namespace headlab
