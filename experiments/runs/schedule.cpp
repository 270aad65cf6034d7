#include "experiments/runs/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace headlab {

std::vector<std::string> schedule_names() {
  return {"cosine", "linear", "constant", "inverse_sqrt", "noam"};
}

namespace {

// fairseq's: linear from init to lr, then with the root of the number of updates done.
double inverse_sqrt(double s, double w, double init, double lr) {
  return s < w ? init + s * (lr - init) / w : lr * std::sqrt(w / s);
}

}  // namespace

double Schedule::at(int64_t step) const {
  const double s = static_cast<double>(step), w = static_cast<double>(warmup);
  const double end = static_cast<double>(decay);
  if (kind == "noam") return inverse_sqrt(s + 1, w, 0, 1 / std::sqrt(d_model * w));
  if (kind == "inverse_sqrt") return inverse_sqrt(s, w, init_lr, lr);
  if (kind == "linear") {  // transformers'
    if (s < w) return lr * s / w;
    return s < end ? lr * (end - s) / (end - w) : 0;
  }
  if (s < w) return lr * (s + 1) / (w + 1);  // nanoGPT's
  if (kind == "constant") return lr;
  if (s >= end) return min_lr;
  return min_lr + 0.5 * (1 + std::cos(std::numbers::pi * (s - w) / (end - w))) * (lr - min_lr);
}

}  // namespace headlab
