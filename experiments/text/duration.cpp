#include "experiments/text/duration.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace headlab {

std::string duration_text(double seconds) {
  if (!(seconds < 1e9)) return "?";
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  const int64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return fmt::format("{}d {:02}h", days, hours % 24);
  if (hours > 0) return fmt::format("{}h {:02}m", hours, minutes % 60);
  if (minutes > 0) return fmt::format("{}m {:02}s", minutes, whole % 60);
  return fmt::format("{}s", whole);
}

}  // namespace headlab
