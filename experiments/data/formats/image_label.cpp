#include "experiments/data/formats/image_label.h"

#include <fmt/format.h>

#include "core/errors.h"

namespace headlab {

void check_label(uint8_t label, int64_t n, const std::string& name) {
  if (label >= kImageClasses)
    throw DataError(fmt::format("{}: label {} (from 0) is {}; labels are 0 to {}", name, n, label,
                                kImageClasses - 1));
}

}  // namespace headlab
