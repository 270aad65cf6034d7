#include "experiments/files/count_or_share.h"

#include <cmath>

namespace headlab {

Limits share_limits() {
  auto limits = above(0);
  limits.max = 1, limits.below_max = true;
  return limits;
}

int64_t CountOrShare::of(int64_t all) const {
  return std::llround(is_share() ? number_ * static_cast<double>(all) : number_);
}

void CountOrShare::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  Problems no_share;
  double number = 0;
  int64_t count = 0;
  if (read_value(number, node, path, no_share) && number > 0 && number < 1)
    number_ = number;
  else if (read_value(count, node, path, problems, at_least(0)))
    number_ = static_cast<double>(count);
}

ConfigNode CountOrShare::write() const {
  return is_share() ? write_number(number_) : write_integer(static_cast<int64_t>(number_));
}

void CountOrShare::forms(Forms& f) const {
  f.integer(at_least(0));
  f.number(share_limits());
}

}  // namespace headlab
