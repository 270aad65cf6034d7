#include "experiments/models/bottleneck.h"

#include "core/torch.h"

namespace headlab {

BottleneckImpl::BottleneckImpl(const StackOptions& options, int64_t vocabulary) {
  constexpr double kStd = 0.02;
  constexpr int64_t kHidden = 2;
  const int64_t D = options.d_model;
  for (int64_t n = 0; n <= kHidden; ++n) {
    const auto number = std::to_string(n);
    norms_.push_back(register_module("norm" + number, Norm(options)));
    linears_.push_back(register_module("linear" + number, Linear(D, n < kHidden ? D : vocabulary)));
    init_normal(linears_.back(), kStd);
  }
}

Tensor BottleneckImpl::forward(const Tensor& state, int64_t places) {
  const int64_t half = state.size(1) / 2;
  const auto exact = state.options().dtype(at::kDouble);
  const auto exponents = at::arange(half, exact) / static_cast<double>(half - 1);
  const auto angles = at::arange(places, exact).unsqueeze(1) * at::pow(10000.0, exponents.neg());
  const auto positions = at::cat({angles.sin(), angles.cos()}, 1).to(state.scalar_type());
  auto x = state.unsqueeze(1) + positions;  // [B,T,D]
  for (size_t n = 0; n + 1 < linears_.size(); ++n) x = at::gelu(linears_[n](norms_[n](x)), "none");
  return linears_.back()(norms_.back()(x));  // [B,T,V]
}

double BottleneckImpl::flops_per_token() const {
  double total = 0;
  for (const auto& linear : linears_) total += 2.0 * static_cast<double>(linear->weight.numel());
  return total;
}

}  // namespace headlab
