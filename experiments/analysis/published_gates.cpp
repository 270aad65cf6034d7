#include "experiments/analysis/published_gates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/torch.h"

namespace headlab {

Tensor published_mask(const Tensor& log_alpha, const HardConcrete& gate) {
  const int64_t H = log_alpha.size(1);
  auto mask = at::sigmoid(0.8 * log_alpha / gate.temperature);  // [L,H]
  const auto open = p_open(log_alpha, gate).sum(1);             // [L]
  for (int64_t layer = 0; layer < mask.size(0); ++layer) {
    // Halves go to the even number, as Python rounds.
    const auto zeros =
        static_cast<int64_t>(std::nearbyint(static_cast<double>(H) - open[layer].item<double>()));
    const auto order = std::get<1>(mask[layer].sort(/*stable=*/true, 0, /*descending=*/false));
    mask[layer].index_fill_(0, order.narrow(0, 0, std::clamp<int64_t>(zeros, 0, H)), 0);
  }
  return mask;
}

Tensor subset_gates(const Tensor& weight, const Tensor& u, int64_t k, double temperature) {
  TORCH_CHECK(weight.dim() == 1 && weight.sizes() == u.sizes(), "weight ", weight.sizes(),
              " and u ", u.sizes(), " must be [n]");
  TORCH_CHECK(k >= 1 && k <= weight.size(0), "a subset of ", k, " of ", weight.size(0));
  constexpr double kTiny = std::numeric_limits<float>::min();  // the authors', in every type
  auto r = weight - (-u.log()).log();
  auto p = at::softmax(r / temperature, 0);
  auto gates = p;
  for (int64_t drawn = 1; drawn < k; ++drawn) {
    r = r + (1 - p).clamp_min(kTiny).log();
    p = at::softmax(r / temperature, 0);
    gates = gates + p;
  }
  return gates;
}

Tensor straight_through_subset(const Tensor& weight, int64_t k) {
  TORCH_CHECK(weight.dim() == 1 && k >= 0 && k <= weight.size(0), "a subset of ", k, " of ",
              weight.sizes());
  auto mask = at::ones_like(weight.detach());
  if (k < weight.size(0)) {
    const auto falling = std::get<0>(weight.detach().sort(0, /*descending=*/true));
    mask = (weight.detach() > falling[k]).to(weight.scalar_type());
  }
  return mask + (weight - weight.detach());
}

}  // namespace headlab
