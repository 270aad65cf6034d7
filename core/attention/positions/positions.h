// Positions as heads meet them: rotary embedding, and biases that depend on the distance j - i
// only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace headlab {

using at::Tensor;

enum class RopeLayout { kHalf, kInterleaved };  // pairs (i, i + r/2), or (2i, 2i + 1)

// Rotary position embedding (Su et al., arXiv 2104.09864). With r = floor(d * fraction), made even,
// pair i < r/2 at position p turns by p * base^(-2i/r); the last d - r features pass.
class Rotary {
 public:
  explicit Rotary(double base = 10000, RopeLayout layout = RopeLayout::kHalf, double fraction = 1);
  // x [B,H,T,d], positions [T] or [B,T] -> [B,H,T,d]. Angles are float32, for float64 x float64.
  Tensor rotate(const Tensor& x, const Tensor& positions) const;

 private:
  double base_, fraction_;
  RopeLayout layout_;
};

// A bias on the scores that depends on the distance between key and query alone. It is asked for by
// distance, so that no path has to hold [H,T,S].
class PositionBias {
 public:
  virtual ~PositionBias() = default;
  // -> [H, last - first + 1]: the bias at j - i = first .. last (query i, key j), per head.
  virtual Tensor by_distance(int64_t first, int64_t last) const = 0;
};

}  // namespace headlab
