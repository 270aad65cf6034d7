// A number as it stands in a text, which there may not be.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace headlab {

// "-" for NaN; `format`: of fmt, for everything else.
inline std::string number_text(double value, fmt::format_string<double&> format) {
  return std::isnan(value) ? "-" : fmt::format(format, value);
}

}  // namespace headlab
