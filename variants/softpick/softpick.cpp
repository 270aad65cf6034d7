// Softpick attention: rectified, so that keys can get no weight and a row need not sum to one.
//
// Zuhri et al., "Softpick: No Attention Sink, No Massive Activations with Rectified Softmax", arXiv
// 2504.20966, equation (3); zaydzuhri/softpick-attention:
//   A_ij = relu(e^z_ij - 1) / (sum_j |e^z_ij - 1| + eps)
// Keys of negative scores get nothing, but they count in the sum, and so keep a gradient.
#include <limits>

#include "core/kernels/isa.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {

#define HEADLAB_DECLARE(isa) \
  namespace isa {            \
  RowMap softpick_rows();    \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE
const RowMapOnCuda* softpick_on_cuda();

namespace {

class SoftpickMap : public Map {
 public:
  explicit SoftpickMap(double eps) : eps_(eps) {}

  // By the authors' stable form: with m = max(max_j z, 0) the sums are taken e^-m times, eps is
  // not, so that m has a gradient of that size.
  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall&) const override {
    const auto hidden_as = [&](const Tensor& x, double value) {
      return allowed.defined() ? x.masked_fill(allowed.logical_not(), value) : x;
    };
    const auto seen = hidden_as(z, std::numeric_limits<float>::lowest());
    const auto m = seen.amax(-1, /*keepdim=*/true).clamp_min(0);   // [B,H,T,1]
    const auto e = hidden_as(at::exp(seen - m) - at::exp(-m), 0);  // [B,H,T,S]
    return at::relu(e) / (e.abs().sum(-1, /*keepdim=*/true) + eps_);
  }

  std::vector<Statistic> statistics() const override {
    return {
        head_statistic("zero_share", "1", "share of the allowed keys without weight",
                       "mean over rows of the number of A = 0 over n_i"),
        head_statistic("zero_rows", "1", "share of rows without weight", "share of rows of A = 0")};
  }
  void report(const MapRows& rows, HeadObserver& observer) const override {
    const auto zeros = ((rows.weights == 0) & rows.pairs).sum(-1);  // [B,H,T]
    report_rows(observer, "zero_share", zeros / rows.pairs.sum(-1).clamp_min(1).to(at::kDouble),
                rows.rows);
    report_rows(observer, "zero_rows", rows.sums == 0, rows.rows);
  }

  std::optional<RowMap> row_map(const AttentionCall&, int64_t) const override {
    auto map = HEADLAB_OF_ISA(softpick_rows);
#ifdef HEADLAB_CUDA
    map.cuda = softpick_on_cuda();
#endif
    map.number = eps_;
    return map;
  }

 private:
  double eps_;
};

struct SoftpickOptions : MapOptions {
  double eps = 1e-8;

  void visit(Fields& f) override {
    f("eps", eps, "added to the sum that a row is divided by", above(0));
  }
  MapPtr map() const override { return std::make_shared<SoftpickMap>(eps); }
};

using Softpick = MapHeads<FixedMapOptions<SoftpickOptions>>;

const RegisterMap<SoftpickOptions> map("softpick");
const RegisterHeads<Softpick> registered("softpick", "rectified softmax, whose rows may be empty");

}  // namespace
}  // namespace headlab
