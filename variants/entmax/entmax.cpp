// Entmax attention: alpha-entmax instead of the softmax, so that keys can get no weight at all.
//
// Peters et al., "Sparse Sequence-to-Sequence Models", arXiv 1905.05702, equation (10); an alpha
// for each head that is learned: Correia et al., "Adaptively Sparse Transformers", arXiv
// 1909.00015, equation (9), here with a floor, since near 1 its gradient is ill-conditioned:
//   A = alpha-entmax(z), alpha_h = max(1 + sigmoid(alpha_h), 1.01)
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/entmax/alpha_entmax.h"

namespace headlab {
namespace {

// Near alpha 1 the gradient of entmax is ill-conditioned. Below its floor an alpha has none, so
// that updates lead no parameter further down than where alpha is just above it.
constexpr double kLeastAlpha = 1.01, kLeastRawAlpha = -4.59;  // 1 + sigmoid(-4.59) = 1.01005

class EntmaxMap : public Map {
 public:
  explicit EntmaxMap(double alpha) : alpha_(alpha) {}
  explicit EntmaxMap(const Tensor& alphas) : alphas_(alphas) {}

  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall&) const override {
    return alphas_.defined() ? entmax(z, allowed, alphas_.to(z.options()).view({-1, 1, 1}))
                             : entmax(z, allowed, alpha_);
  }
  bool rows_sum_to_one() const override { return true; }
  const Softmax* as_softmax() const override {
    return !alphas_.defined() && alpha_ == 1 ? plain_softmax()->as_softmax() : nullptr;
  }
  MapPtr of_heads(int64_t first, int64_t count) const override {
    if (!alphas_.defined()) return Map::of_heads(first, count);
    return std::make_shared<EntmaxMap>(some_of_heads(alphas_, first, count));
  }
  MapPtr with_learned(const Tensor& raw) const override {
    return std::make_shared<EntmaxMap>((1 + raw.sigmoid()).clamp_min(kLeastAlpha));
  }
  void after_step(Tensor& raw) const override { raw.clamp_min_(kLeastRawAlpha); }

  std::vector<Statistic> statistics() const override {
    return {head_statistic("alpha", "1", "alpha of the entmax", "1: softmax, 2: sparsemax"),
            head_statistic("support", "key", "keys with weight",
                           "mean over rows of the number of a > 0"),
            head_statistic("support_share", "1", "share of the allowed keys with weight",
                           "mean over rows of the number of a > 0 over n_i"),
            head_statistic("support_one", "1", "share of rows with a single key",
                           "share of rows with one a > 0")};
  }
  void report(const MapRows& rows, HeadObserver& observer) const override {
    const auto& p = rows.weights;
    const auto support = (p > 0).sum(-1), keys = rows.pairs.sum(-1);  // [B,H,T]
    const auto one = at::ones({p.size(1)}, p.options().dtype(at::kDouble));
    observer.report("alpha", alphas_.defined() ? alphas_.to(at::kDouble) : one * alpha_, one);
    report_rows(observer, "support", support, rows.rows);
    report_rows(observer, "support_share", support / keys.clamp_min(1).to(at::kDouble), rows.rows);
    report_rows(observer, "support_one", support == 1, rows.rows);
  }

  std::optional<RowMap> row_map(const AttentionCall& call, int64_t S) const override {
    if (!alphas_.defined() && (alpha_ < 1 || alpha_ > 2)) return std::nullopt;
    return alpha_ == 1 ? plain_softmax()->row_map(call, S) : entmax_row_map(alpha_);
  }
  Tensor row_numbers() const override { return alphas_; }

 private:
  double alpha_ = 0;
  Tensor alphas_;  // [H] instead, where they are learned
};

struct EntmaxOptions : MapOptions {
  double alpha = 1.5;
  bool learn_alpha = false;

  void visit(Fields& f) override {
    f("alpha", alpha, "of all heads: 1 is the softmax, 2 sparsemax; larger is sparser",
      at_least(1));
    f("learn_alpha", learn_alpha,
      "each head learns its alpha, between 1.01 and 2; then `alpha` is not used");
  }
  MapPtr map() const override { return std::make_shared<EntmaxMap>(alpha); }
  std::optional<Learned> learned(int64_t heads) const override {
    if (!learn_alpha) return {};
    return Learned{"alpha", at::randn({heads})};
  }
};

using EntmaxHeads = MapHeads<FixedMapOptions<EntmaxOptions>>;

const RegisterMap<EntmaxOptions> map("entmax");
const RegisterHeads<EntmaxHeads> registered(
    "entmax", "sparse attention by alpha-entmax, alpha given or learned");

}  // namespace
}  // namespace headlab
