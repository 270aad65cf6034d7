// Differential attention: a head subtracts one map from another, so that what both say of no key in
// particular cancels.
//
// Ye et al., "Differential Transformer", arXiv 2410.05258, equations (1) to (3); microsoft/unilm,
// Diff-Transformer. With two queries a head,
//   version 1  q_h = [q1,q2], k = [k1,k2] of width d/2, one lambda a layer:
//              lambda = exp(<lambda_q1, lambda_k1>) - exp(<lambda_q2, lambda_k2>) + lambda_init
//              A = softmax(z1) - lambda softmax(z2),   o_h = RMS(A v) norm (1 - lambda_init)
//   version 2  q_h = [q1,q2] of width d, one k; lambda = sigmoid(x lambda^T) of each token and head
//              A = softmax(z1) - lambda softmax(z2),   o_h = A v
// lambda_init = 0.8 - 0.6 exp(-0.3 layer), layers from 0.
#include <cmath>

#include "core/attention/composed/composition.h"
#include "core/attention/precision.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct DifferentialOptions : BiasOptions, DerivedDefaults<HeadShape> {
  int64_t version = 1;
  std::optional<double> lambda_init;
  std::optional<bool> norm;
  bool norm_affine = true;
  double norm_eps = 1e-5;
  std::optional<double> scale;

  void visit(Fields& f) override {
    f("version", version, "1: halves of queries and keys; 2: two queries to one key",
      between(1, 2));
    f("lambda_init", lambda_init,
      "start of lambda in version 1 (default: 0.8 - 0.6 exp(-0.3 layer))");
    f("norm", norm, "norm of what a head says (default: in version 1)");
    f("norm_affine", norm_affine, "the norm has a weight, one for all heads");
    f("norm_eps", norm_eps, "epsilon of the norm", above(0));
    f("scale", scale, "factor on q k^T (default: the width of a query^-0.5)");
    BiasOptions::visit(f);
  }
  bool halves() const { return version == 1; }
  bool normed() const { return norm.value_or(halves()); }
  void derive(const HeadShape& shape) override {
    norm = normed();
    if (!scale) scale = 1 / std::sqrt(halves() ? shape.head_dim / 2 : shape.head_dim);
  }
  void check(const Complain& complain) const override {
    if (halves()) return;
    if (lambda_init)
      complain("lambda_init", "version 2 makes lambda from each token; leave it out");
    if (norm.value_or(false)) complain("norm", "version 2 has no norm; leave it out");
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    if (halves() && shape.head_dim % 2 != 0)
      complain("version", "version 1 cuts heads in two halves, and head_dim is " +
                              std::to_string(shape.head_dim) + "; choose version: 2");
  }
  HeadTraits traits() const override {
    return {.rows_sum_to_one = false, .grouped = true, .own_values = true};
  }
  Projections projections_in(const HeadShape& shape) const {
    auto projections = BiasOptions::projections();
    projections.maps = 2;
    projections.key_maps = halves() ? 2 : 1;
    if (halves()) projections.qk_width = shape.head_dim / 2;
    projections.scale = scale;
    return projections;
  }
};

class Differential : public QkvHeads {
 public:
  using Options = DifferentialOptions;

  Differential(const HeadShape& s, const Options& options)
      : QkvHeads(s, options.traits(), options.projections_in(s)),
        options_(options),
        lambda_init_(options.lambda_init.value_or(
            0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(s.layer)))) {
    if (options.halves()) {
      const auto vector = [&](const char* name) {
        return parameter(name, at::randn({s.head_dim / 2}) * 0.1, shared_by_heads());
      };
      lambda_q1_ = vector("lambda_q1"), lambda_k1_ = vector("lambda_k1");
      lambda_q2_ = vector("lambda_q2"), lambda_k2_ = vector("lambda_k2");
    } else {
      lambda_ = projection("lambda", s.d_model, s.heads, false, rows_of_heads());
      init_input(lambda_, s);
    }
    if (!options.normed() || !options.norm_affine) return;
    norm_ = register_module("norm", RmsNorm(at::IntArrayRef{s.head_dim}, options.norm_eps));
    lay_out("norm.weight", shared_by_heads());
  }

  std::vector<Statistic> own_statistics() const override {
    auto all = composed_statistics();
    for (const auto& of_second : row_statistics_of_map(1)) all.push_back(of_second);
    const char* name = "lambda";
    all.push_back(options_.halves()
                      ? layer_statistic(name, "1", "weight of the second map", "lambda")
                      : head_statistic(name, "1", "weight of the second map",
                                       "mean over tokens of lambda_{t,h}"));
    return all;
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    // Both maps meet the values at once.
    const double twice = 2 * pairs * static_cast<double>(shape_.heads * shape_.head_dim);
    const double of_lambda = lambda_ ? 2.0 * T * static_cast<double>(lambda_->weight.numel()) : 0;
    return projected_flops(T, S, pairs) - twice + of_lambda;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call).unflatten(1, {shape_.heads, 2});  // [B,H,2,T,w]
    const int64_t sides = options_.halves() ? 2 : 1;
    auto k = keys(x, call);                          // [B,Hkv*sides,S,w]
    k = k.unflatten(1, {k.size(1) / sides, sides});  // [B,Hkv,2 or 1,S,w]
    const auto v = values(x, call);                  // [B,Hkv,S,d]
    const auto lambda = lambdas(rest_of(x, call));   // [1,1,1,1] or [B,H,T,1]
    const auto q1 = q.select(2, 0), q2 = q.select(2, 1);
    const auto k1 = k.select(2, 0), k2 = k.select(2, -1);
    const auto quiet = call.unobserved();
    // Dropout of one call falls on the same pairs in both: on A.
    auto heads = exclude_own(
        attend(q1, k1, v, quiet, scale()) - lambda * attend(q2, k2, v, quiet, scale()), v,
        call);  // [B,H,T,d]
    if (options_.normed() && shape_.heads > 0) {
      const std::vector<int64_t> width{shape_.head_dim};
      heads = norm_ ? norm_(heads) : at::rms_norm(heads, width, {}, options_.norm_eps);
      heads = heads * (1 - lambda_init_);
    }
    if (call.observer) observe({q1, k1, q2, k2}, v, lambda, heads, call);
    return {.y = output(heads, call)};  // [B,T,D]
  }

  Tensor lambdas(const Tensor& x) {
    if (lambda_) return lambda_(x).sigmoid().transpose(1, 2).unsqueeze(3);  // [B,H,T,1]
    const auto product = [](const Tensor& q, const Tensor& k) {
      const auto type = at_least_float(q);
      return (q.to(type) * k.to(type)).sum().exp();
    };
    const auto lambda = product(lambda_q1_, lambda_k1_) - product(lambda_q2_, lambda_k2_);
    return (lambda + lambda_init_).to(x.scalar_type()).view({1, 1, 1, 1});
  }

  struct Sides {
    Tensor q1, k1, q2, k2;
  };
  // Patterns are those of either softmax; what meets the values is their difference.
  void observe(const Sides& sides, const Tensor& v, const Tensor& lambda, const Tensor& heads,
               const HeadCall& call) const {
    auto& observer = *call.observer;
    if (!observer.wants_maps()) return;
    at::NoGradGuard no_grad;
    const auto allowed = allowed_keys(call.mask, heads.size(2), v.size(2), v.device());
    const auto z1 = scores(sides.q1, sides.k1, call, scale()),
               z2 = scores(sides.q2, sides.k2, call, scale());                      // [B,H,T,S]
    const auto p1 = masked_softmax(z1, allowed), p2 = masked_softmax(z2, allowed);  // [B,H,T,S]
    const auto a = p1 - lambda.to(p1.scalar_type()) * p2;
    observer.weights({.p = p1, .a = a, .scores = z1, .v = v, .out = heads}, call);
    observer.weights({.p = p2, .a = p2, .scores = z2, .v = v, .out = heads, .map = 1}, call);
    if (!observer.wants_statistics()) return;
    if (!lambda_) return observer.report("lambda", lambda.squeeze(), at::ones({}, at::kDouble));
    const auto counted = counted_pairs(p1, allowed, call.mask).any(-1);  // [B,H,T]
    report_rows(observer, "lambda", lambda.squeeze(3), counted);
  }

  Options options_;
  double lambda_init_;
  Tensor lambda_q1_, lambda_k1_, lambda_q2_, lambda_k2_;  // [d/2], version 1
  Linear lambda_{nullptr};                                // [H,D], version 2
  RmsNorm norm_{nullptr};
};

const RegisterHeads<Differential> registered("differential",
                                             "heads that subtract one map from another");

}  // namespace
}  // namespace headlab
