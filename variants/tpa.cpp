// Tensor product attention: queries, keys and values are sums of few products of a factor of the
// heads and a factor of the features, and decoding keeps these factors alone.
//
// Zhang et al., "Tensor Product Attention Is All You Need", arXiv 2501.06425, section 3;
// tensorgi/TPA. With ranks Rq, Rk and Rv, and a, b products of the token,
//   q_h = 1/Rq sum_s qa_hs rope(qb_s)    k_h = 1/Rk sum_u ka_hu rope(kb_u)    v_h = 1/Rv sum_u
//   va_hu vb_u o_h = softmax(scale q_h k_h^T) v_h;   norm: o_h <- RMS(o_h) norm
// With q_rank 0 queries are plain. Few queries meet the factors themselves, many the keys and
// values that are made of them:
//   z_h = scale / (Rq Rk) sum_su qa_hs ka_hu (rope(qb_s) rope(kb_u)^T)
//   o_h = 1/Rv sum_u (softmax(z_h) va_hu) vb_u
#include <cmath>

#include "core/attention/layers.h"
#include "core/attention/precision.h"
#include "core/attention/weight_dropout.h"
#include "core/config/config.h"
#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct TpaOptions : HeadOptions, DerivedDefaults<HeadShape> {
  int64_t q_rank = 6, k_rank = 2, v_rank = 2;
  bool norm = false;
  double norm_eps = 1e-5;
  std::optional<double> scale;

  void visit(Fields& f) override {
    f("q_rank", q_rank, "products that a query is a sum of; 0: queries are plain", at_least(0));
    f("k_rank", k_rank, "products that a key is a sum of", at_least(1));
    f("v_rank", v_rank, "products that a value is a sum of", at_least(1));
    f("norm", norm, "RMS norm of what a head says, one weight for all heads");
    f("norm_eps", norm_eps, "epsilon of the norm", above(0));
    f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
  }
  HeadTraits traits() const override { return {.own_values = true}; }
  std::optional<InitDifferences> init_differences() const override {
    return InitDifferences{
        {"q_a, k_a, v_a", "U(+-sqrt(6 / ((heads + d_model) rank)))", "N(0, sqrt(rank / d_model))"},
        {"q, q_b, k_b, v_b", "U(+-sqrt(6 / ((rank + d_model) head_dim)))", "as plain heads"},
        {"o", "0", "as plain heads"}};
  }
  void derive(const HeadShape& shape) override {
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
  }
};

// The factors of one of q, k and v: of the heads [B,H,n,R] and of the features [B,R,n,d].
struct Factors {
  Tensor a, b;
};

// 1/R sum_r a_hr b_r: [B,H,n,d].
Tensor joined(const Factors& f) {
  const auto products = at::matmul(f.a.transpose(1, 2), f.b.transpose(1, 2));  // [B,n,H,d]
  return products.transpose(1, 2) / static_cast<double>(f.a.size(3));
}

class Tpa : public AttentionHeads {
 public:
  using Options = TpaOptions;

  Tpa(const HeadShape& s, const Options& options)
      : AttentionHeads(s, options.traits()),
        options_(options),
        scale_(options.scale.value_or(1 / std::sqrt(s.head_dim))) {
    q_ = pair("q", options.q_rank), k_ = pair("k", options.k_rank), v_ = pair("v", options.v_rank);
    output_projection(s.heads * s.head_dim, false);
    if (s.init_as_host)
      init_output(o_, s);
    else
      o_->weight.detach().zero_();
    if (!options.norm) return;
    norm_ = register_module("norm", RmsNorm(at::IntArrayRef{s.head_dim}, options.norm_eps));
    lay_out("norm.weight", shared_by_heads());
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto of_token = [&](const Pair& of) {
      const int64_t weights = (of.a ? of.a->weight.numel() : 0) + of.b->weight.numel();
      return 2.0 * static_cast<double>(weights + of.rank * shape_.heads * shape_.head_dim);
    };
    const auto width = static_cast<double>(shape_.heads * shape_.head_dim);
    return T * (of_token(q_) + 2 * static_cast<double>(o_->weight.numel())) +
           S * (of_token(k_) + of_token(v_)) + 4 * pairs * width;
  }

 private:
  // The projections of the two factors; of rank 0 one plain projection.
  struct Pair {
    Linear a{nullptr}, b{nullptr};
    int64_t rank = 0;
  };

  Pair pair(const std::string& name, int64_t rank) {
    const int64_t D = shape_.d_model, H = shape_.heads, d = shape_.head_dim;
    Pair made{.rank = rank};
    if (rank == 0) {
      made.b = projection(name.c_str(), D, H * d, false, rows_of_heads());
      begin(made.b, std::sqrt(6.0 / static_cast<double>(D + H * d)));
      return made;
    }
    made.a = projection((name + "_a").c_str(), D, H * rank, false, rows_of_heads());
    made.b = projection((name + "_b").c_str(), D, rank * d, false, shared_by_heads());
    begin(made.a, std::sqrt(6.0 / static_cast<double>((H + D) * rank)));
    begin(made.b, std::sqrt(6.0 / static_cast<double>((rank + D) * d)));
    // With b as plain heads: then what is joined varies as much as there.
    if (shape_.init_as_host)
      init_normal(made.a, std::sqrt(static_cast<double>(rank) / static_cast<double>(D)));
    return made;
  }
  // U(-bound, bound), Xavier's of the factors by head and feature; or as plain heads.
  void begin(Linear& linear, double bound) const {
    at::NoGradGuard no_grad;
    linear->weight.uniform_(-bound, bound);
    if (shape_.init_as_host) init_input(linear, shape_);
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto& y = source(x, call);
    if (call.inputs) {
      const auto k = from_inputs(Input::kKey, y, call, [&](const Tensor& from) {
        return joined(factors(k_, from, call, key_positions(call)));
      });
      const auto v = from_inputs(Input::kValue, y, call, [&](const Tensor& from) {
        return joined({factor_of_heads(v_, from), factor_of_features(v_, from)});
      });
      return said(attend(queries(x, call), k, v, call, scale_), v, call);
    }
    const auto kept = [&](const char* name, const auto& make) { return cached(call, name, make); };
    const Factors k{
        kept("k_a", [&] { return factor_of_heads(k_, y); }),
        kept("k_b", [&] { return rotate(factor_of_features(k_, y), call, key_positions(call)); })},
        v{kept("v_a", [&] { return factor_of_heads(v_, y); }),
          kept("v_b", [&] { return factor_of_features(v_, y); })};
    if (meets_factors(x.size(1), call)) {
      const auto q = factors(q_, x, call, call.positions);
      const auto heads = attend_to_factors(q, k, v, call);
      return said(heads, call.shaping.exclusion.defined() ? joined(v) : Tensor(), call);
    }
    const auto values = joined(v);  // [B,H,S,d]
    return said(attend(queries(x, call), joined(k), values, call, scale_), values, call);
  }

  HeadOutput said(const Tensor& o, const Tensor& v, const HeadCall& call) {
    auto heads = v.defined() ? exclude_own(o, v, call) : o;  // [B,H,T,d]
    if (norm_ && shape_.heads > 0) heads = norm_(heads);
    return {.y = output(heads, call)};  // [B,T,D]
  }

  Tensor factor_of_heads(Pair& pair, const Tensor& x) const {
    return split_heads(pair.a(x), shape_.heads, pair.rank);  // [B,H,n,R]
  }
  Tensor factor_of_features(Pair& pair, const Tensor& x) const {
    return split_heads(pair.b(x), pair.rank, shape_.head_dim);  // [B,R,n,d]
  }
  Factors factors(Pair& pair, const Tensor& x, const HeadCall& call,
                  const Tensor& positions) const {
    return {factor_of_heads(pair, x), rotate(factor_of_features(pair, x), call, positions)};
  }
  Tensor queries(const Tensor& x, const HeadCall& call) {
    return from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
      if (q_.rank > 0) return joined(factors(q_, from, call, call.positions));
      return rotate(split_heads(q_.b(from), shape_.heads, shape_.head_dim), call, call.positions);
    });  // [B,H,T,d]
  }

  // Whether the factors of queries meet those of keys with fewer operations than keys and values
  // are joined. An observer sees values, and a fused path is asked for by heads: both want these.
  bool meets_factors(int64_t T, const HeadCall& call) const {
    if (q_.rank == 0 || call.observer ||
        (call.backend != Backend::kAuto && call.backend != Backend::kEager))
      return false;
    const int64_t H = shape_.heads, d = shape_.head_dim, Rq = q_.rank, Rk = k_.rank, Rv = v_.rank;
    const int64_t by_joining = (Rk + Rv) * H * d + 2 * T * H * d,  // of a key
        by_factors = T * (Rq * Rk * (d + H) + (Rk + Rv) * H + Rv * H * d);
    return by_factors < by_joining;
  }

  Tensor attend_to_factors(const Factors& q, const Factors& k, const Factors& v,
                           const HeadCall& call) const {
    const int64_t T = q.a.size(2), S = k.a.size(2), Rk = k_.rank, Rv = v_.rank;
    const auto wide = at_least_float(q.a);
    const auto products = [&] {
      const WithoutAutocast exact;
      const double factor = scale_ / static_cast<double>(q_.rank * Rk);
      const auto qb = q.b.to(wide).flatten(1, 2) * factor, kb = k.b.to(wide).flatten(1, 2);
      const auto of_features = at::matmul(qb, kb.mT())  // [B,Rq T,Rk S]
                                   .unflatten(1, {q_.rank, T})
                                   .transpose(1, 2);                             // [B,T,Rq,Rk S]
      const auto by_key = at::matmul(q.a.to(wide).transpose(1, 2), of_features)  // [B,T,H,Rk S]
                              .unflatten(3, {Rk, S})
                              .transpose(1, 2);                 // [B,H,T,Rk,S]
      return (by_key * k.a.to(wide).mT().unsqueeze(2)).sum(3);  // [B,H,T,S]
    };
    const auto z = add_biases(products(), call);
    const auto a = masked_softmax(z, allowed_keys(call.mask, T, S, z.device()));
    const auto kept = dropout(a, weight_dropout(call.dropout, call.rng)).to(v.a.scalar_type());
    const auto by_value = (kept.unsqueeze(3) * v.a.mT().unsqueeze(2)).flatten(3);  // [B,H,T,Rv S]
    const auto sums = at::matmul(by_value.flatten(1, 2), v.b.flatten(1, 2));       // [B,H T,d]
    return sums.unflatten(1, {shape_.heads, T}) / static_cast<double>(Rv);         // [B,H,T,d]
  }

  Options options_;
  double scale_;
  Pair q_, k_, v_;
  RmsNorm norm_{nullptr};
};

const RegisterHeads<Tpa> registered("tpa", "q, k and v from factors of heads and of features");

}  // namespace
}  // namespace headlab
