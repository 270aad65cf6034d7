#include "variants/entmax/alpha_entmax.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/kernels/isa.h"
#include "core/torch.h"

namespace headlab {

#define HEADLAB_DECLARE(isa) \
  namespace isa {            \
  RowMap entmax_rows();      \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

RowMap entmax_row_map(double alpha) {
  auto map = HEADLAB_OF_ISA(entmax_rows);
  map.numbers[0] = alpha;
  return map;
}

namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();

// Threshold and weights of rows y [...,S] whose largest entry is 0. An entry of -1 or less has no
// weight and changes no threshold, so that hidden keys may stand anywhere below. Rows of NaN have
// no support, and stay NaN with one of 1.
struct Sorted {
  Tensor values, k;  // descending, not below -1; 1..S

  explicit Sorted(const Tensor& y)
      : values(std::get<0>(y.clamp_min(-1).sort(-1, /*descending=*/true))),
        k(at::arange(1, y.size(-1) + 1, y.options())) {}
};

Tensor sparsemax(const Tensor& y) {
  const Sorted sorted(y);
  const auto sum = sorted.values.cumsum(-1);  // [...,S]
  const auto support =
      (sorted.k * sorted.values + 1 > sum).sum(-1, /*keepdim=*/true).clamp_min(1);  // [...,1]
  const auto tau = (sum.gather(-1, support - 1) - 1) / support;                     // [...,1]
  return (y - tau).clamp_min_(0);
}

Tensor entmax15(const Tensor& y) {
  const auto half = y / 2;
  const Sorted sorted(half);
  const auto mean = sorted.values.cumsum(-1).div_(sorted.k);                     // [...,S]
  const auto squares = sorted.values.square().cumsum(-1);                        // [...,S]
  const auto deviations = squares - sorted.k * mean.square();                    // [...,S]
  const auto taus = mean - ((1 - deviations) / sorted.k).clamp_min_(0).sqrt_();  // [...,S]
  // Keys at -1 meet their threshold with equality where one key has all the weight: rounding must
  // not count them.
  const auto support = (taus <= sorted.values)
                           .logical_and_(sorted.values > -1)
                           .sum(-1, /*keepdim=*/true)
                           .clamp_min(1);  // [...,1]
  return (half - taus.gather(-1, support - 1)).clamp_min_(0).square_();
}

// Bisection for t = (1 + tau) / (1 - alpha), in [0, (1 - n^(1-alpha)) / (alpha-1)] for n keys: the
// weights exp(log(1 + (alpha-1) (y - t)) / (alpha-1)) lose no digits where alpha is nearly 1.
Tensor bisected(const Tensor& y, const Tensor& keys, const Tensor& alpha) {
  const auto e = alpha - 1;
  const auto weigh = [&](const Tensor& t) {
    return ((y - t) * e).clamp_min_(-1).log1p_().div_(e).exp_();  // [...,S]
  };
  auto high = at::expm1(-e * keys.to(y.scalar_type()).clamp_min(1).log()).neg() / e;  // [...,1]
  auto low = at::zeros_like(high);
  const int halvings = y.scalar_type() == at::kDouble ? 50 : 30;
  for (int n = 0; n < halvings; ++n) {
    const auto middle = (low + high) / 2;
    const auto heavy = weigh(middle).sum(-1, /*keepdim=*/true) >= 1;
    low = at::where(heavy, middle, low);
    high = at::where(heavy, high, middle);
  }
  const auto p = weigh(low);
  return p / p.sum(-1, /*keepdim=*/true);
}

// The same row by row, for 1 < alpha <= 2.
template <class T>
Tensor by_rows(const Tensor& z, const Tensor& alphas, const RowFunctions<T>& functions) {
  const int64_t S = z.size(-1), rows = z.numel() / S;
  const int64_t padded = (S + kRowLanes - 1) / kRowLanes * kRowLanes;
  const auto p = at::empty_like(z);
  const auto *from = z.const_data_ptr<T>(), *alpha = alphas.const_data_ptr<T>();
  auto* to = p.mutable_data_ptr<T>();
  at::parallel_for(0, rows, 1 + 4096 / S, [&](int64_t begin, int64_t end) {
    std::vector<T> lanes(padded), scratch(padded + kRowLanes);
    for (int64_t row = begin; row < end; ++row) {
      const double number = alpha[row];
      std::copy_n(from + row * S, S, lanes.data());
      std::fill(lanes.begin() + S, lanes.end(), -std::numeric_limits<T>::infinity());
      functions.weigh(lanes.data(), padded, &number, lanes.data(), nullptr, scratch.data());
      std::copy_n(lanes.data(), S, to + row * S);
    }
  });
  return p;
}

bool kernel_serves(const Tensor& z, const Tensor& alpha, Backend backend) {
  return z.is_cpu() && backend != Backend::kEager && alpha.max().item<double>() <= 2;
}

Tensor weights(const Tensor& z, const Tensor& allowed, const Tensor& alpha, Backend backend) {
  if (z.numel() == 0) return at::zeros_like(z);
  const auto seen = allowed.defined() ? z.masked_fill(allowed.logical_not(), kLowest) : z;
  if (kernel_serves(z, alpha, backend)) {
    auto rows = z.sizes().vec();
    rows.back() = 1;
    const auto alphas = alpha.to(z.scalar_type()).expand(rows).contiguous();  // [...,1]
    const auto& row_map = HEADLAB_OF_ISA(entmax_rows);
    return z.scalar_type() == at::kDouble ? by_rows(seen.contiguous(), alphas, row_map.f64)
                                          : by_rows(seen.contiguous(), alphas, row_map.f32);
  }
  const auto y = seen - seen.amax(-1, /*keepdim=*/true);
  const auto exactly = [&](double a) { return alpha.dim() == 0 && alpha.item<double>() == a; };
  if (exactly(1.5)) return entmax15(y);
  if (exactly(2)) return sparsemax(y);
  const auto keys = allowed.defined() ? allowed.expand_as(z).sum(-1, /*keepdim=*/true)  // [...,1]
                                      : at::scalar_tensor(z.size(-1), z.options());
  return bisected(y, keys, alpha);
}

// From the weights alone: autograd sees neither the sort nor the halvings.
struct Entmax : torch::autograd::Function<Entmax> {
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* context, const Tensor& z, const std::optional<Tensor>& allowed,
                        const Tensor& alpha, Backend backend) {
    auto p = weights(z, allowed.value_or(Tensor()), alpha, backend);
    if (allowed) p.masked_fill_(allowed->logical_not(), 0);
    context->save_for_backward({p, alpha});
    return p;
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &p = saved[0], &alpha = saved[1], &g = gradients[0];
    const auto sum = [](const Tensor& t) { return t.sum(-1, /*keepdim=*/true); };  // [...,1]
    // dz = q (g - <s,g>), q = p^(2-alpha) on the support, s = q / sum q; a row without keys has
    // none.
    const auto some = at::where(p > 0, p, 1);  // no derivative of this backward pass is NaN
    const auto q = at::where(p > 0, (some.log() * (2 - alpha)).exp_(), 0);
    const auto total = sum(q).clamp_min(std::numeric_limits<float>::min());
    const auto along = sum(q * g) / total;  // <s,g>
    const auto dz = q * (g - along);
    if (!alpha.requires_grad()) return {dz, Tensor(), Tensor(), Tensor()};
    // dp/dalpha = (p - s) / (alpha-1)^2 - (p ln p - s sum p ln p) / (alpha-1)
    const auto e = alpha - 1, surprise = p * some.log();
    const auto dalpha = (sum(p * g) - along) / e.square() -
                        (sum(surprise * g) - along * sum(surprise)) / e;  // [...,1]
    return {dz, Tensor(), dalpha.sum_to_size(alpha.sizes()), Tensor()};
  }
};

Tensor applied(const Tensor& z, const Tensor& allowed, const Tensor& alpha, Backend backend) {
  return Entmax::apply(z, allowed.defined() ? std::optional(allowed) : std::nullopt, alpha,
                       backend);
}

}  // namespace

Tensor entmax(const Tensor& z, const Tensor& allowed, double alpha, Backend backend) {
  TORCH_CHECK(alpha >= 1, "entmax: alpha must be at least 1, is ", alpha);
  if (alpha == 1) return masked_softmax(z, allowed);
  return applied(z, allowed, at::scalar_tensor(alpha, at::kDouble), backend);
}

Tensor entmax(const Tensor& z, const Tensor& allowed, const Tensor& alpha, Backend backend) {
  return applied(z, allowed, alpha, backend);
}

}  // namespace headlab
