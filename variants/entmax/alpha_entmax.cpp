#include "variants/entmax/alpha_entmax.h"

#include <torch/csrc/autograd/custom_function.h>

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
const RowMapOnCuda* entmax_on_cuda();

RowMap entmax_row_map(double alpha) {
  auto map = HEADLAB_OF_ISA(entmax_rows);
#ifdef HEADLAB_CUDA
  map.cuda = entmax_on_cuda();
#endif
  map.number = alpha;
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

// Newton's method for t in the weights [1 + e (y - t)]_+ ^ (1/e), e = alpha - 1, as entmax_rows.h
// does it for a row. Above alpha 2 steps would go astray, and the bracket is halved instead.
// exp(log1p(.) / e) loses no digits where alpha is nearly 1.
Tensor by_newton(const Tensor& y, const Tensor& alpha) {
  const auto e = alpha - 1;
  const auto sum = [](const Tensor& t) { return t.sum(-1, /*keepdim=*/true); };  // [...,1]
  const auto weigh = [&](const Tensor& u) { return at::exp(at::log1p(u) / e); };
  const auto above = [&](const Tensor& t) { return ((y - t) * e).clamp_min_(-1); };  // [...,S]
  const auto near = y > -1 / e;
  const auto keys = sum(near).to(y.scalar_type()).clamp_min(1);
  auto high = -at::expm1(-e * keys.log()) / e;  // where all near keys are the highest
  auto low = at::zeros_like(high);
  auto t = at::minimum(high, (sum(at::where(near, y, 0)) / keys + high).clamp_min(0));
  const bool fine = y.scalar_type() == at::kDouble;
  const bool halves = (e > 1).any().item<bool>();
  const double close = halves ? 0 : fine ? 4e-10 : 1e-5;
  const int enough = fine ? 12 : 8;  // for Newton on a GPU, which would wait for the question
  const int most = halves ? 60 : y.is_cpu() ? 100 : enough;
  for (int step = 0; step < most; ++step) {
    const auto u = above(t), p = weigh(u);
    const auto f = sum(p), over = f - 1;
    const auto slope = sum(p / (u + 1).clamp_min(std::numeric_limits<float>::min()));
    low = at::where(over >= 0, t, low), high = at::where(over >= 0, high, t);
    const auto next = t + (f - f.pow(1 - e)) / (e * slope);
    t = at::where((next >= low).logical_and(next <= high).logical_and(e <= 1), next,
                  (low + high) / 2);
    if (y.is_cpu() && !(over.abs() > close).any().item<bool>()) break;
  }
  const auto p = weigh(above(t));
  return p / sum(p);
}

Tensor weights(const Tensor& z, const Tensor& allowed, const Tensor& alpha) {
  if (z.numel() == 0) return at::zeros_like(z);
  const auto seen = allowed.defined() ? z.masked_fill(allowed.logical_not(), kLowest) : z;
  const auto y = seen - seen.amax(-1, /*keepdim=*/true);
  const auto exactly = [&](double a) { return alpha.dim() == 0 && alpha.item<double>() == a; };
  if (exactly(1.5)) return entmax15(y);
  if (exactly(2)) return sparsemax(y);
  return by_newton(y, alpha);
}

// From the weights alone: autograd sees neither the sort nor the steps.
struct Entmax : torch::autograd::Function<Entmax> {
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* context, const Tensor& z, const std::optional<Tensor>& allowed,
                        const Tensor& alpha) {
    auto p = weights(z, allowed.value_or(Tensor()), alpha);
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
    if (!alpha.requires_grad()) return {dz, Tensor(), Tensor()};
    // dp/dalpha = (p - s) / (alpha-1)^2 - (p ln p - s sum p ln p) / (alpha-1)
    const auto e = alpha - 1, surprise = p * some.log();
    const auto dalpha = (sum(p * g) - along) / e.square() -
                        (sum(surprise * g) - along * sum(surprise)) / e;  // [...,1]
    return {dz, Tensor(), dalpha.sum_to_size(alpha.sizes())};
  }
};

Tensor applied(const Tensor& z, const Tensor& allowed, const Tensor& alpha) {
  return Entmax::apply(z, allowed.defined() ? std::optional(allowed) : std::nullopt, alpha);
}

}  // namespace

Tensor entmax(const Tensor& z, const Tensor& allowed, double alpha) {
  TORCH_CHECK(alpha >= 1, "entmax: alpha must be at least 1, is ", alpha);
  if (alpha == 1) return masked_softmax(z, allowed);
  return applied(z, allowed, at::scalar_tensor(alpha, at::kDouble));
}

Tensor entmax(const Tensor& z, const Tensor& allowed, const Tensor& alpha) {
  return applied(z, allowed, alpha);
}

}  // namespace headlab
