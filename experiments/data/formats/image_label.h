// Labels of images, as files of images have them. No torch in here.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "core/errors.h"

namespace headlab {

inline constexpr int64_t kImageClasses = 10;  // of all kinds so far

// DataError naming the file `name` unless the label of its image `n` is a class.
inline void check_label(uint8_t label, int64_t n, const std::string& name) {
  if (label >= kImageClasses)
    throw DataError(fmt::format("{}: label {} (from 0) is {}; labels are 0 to {}", name, n, label,
                                kImageClasses - 1));
}

}  // namespace headlab
