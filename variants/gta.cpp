// Grouped-tied attention: the heads of a group share one tied state of each token, which is their
// value, and with its first features also their key; what is left of the key carries the positions
// and is shared by all heads.
//
// Zadouri et al., "Hardware-Efficient Attention for Fast Decoding", arXiv 2505.21487, section 3.3;
// Dao-AILab/grouped-latent-attention. With d features of a head, r of which turn,
//   kv = m kv^T = [C (d - r features), E (r)]  [B,Hkv,S,d]     R = rope(m k_rope^T)  [B,S,r]
//   key = [C, R]     value = [C, E]     q_h = [q_n, q_r]
//   z = scale (q_n C^T + rope(q_r) R^T)     y = concat_h(softmax(z) value) o^T
// What decoding keeps of a token are kv and R: Hkv d + r numbers.
#include <cmath>

#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct GtaOptions : BiasOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> rope_dim;
  std::optional<double> scale;
  std::optional<bool> k_rope_bias;

  void visit(Fields& f) override {
    f("rope_dim", rope_dim,
      "features of a key with rotary positions, of all heads alike (default: head_dim / 2)",
      at_least(0));
    f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
    BiasOptions::visit(f);
    f("k_rope_bias", k_rope_bias, "bias on the shared part of the keys (default: qkv_bias)");
  }
  void derive(const HeadShape& shape) override {
    rope_dim = width_of_rope(shape);
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
    k_rope_bias = biases_rope();
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    if (rope_dim && *rope_dim > shape.head_dim)
      complain("rope_dim", "is " + std::to_string(*rope_dim) + ", and head_dim is " +
                               std::to_string(shape.head_dim) + "; choose at most that");
  }
  HeadTraits traits() const override { return {.grouped = true, .own_values = true}; }

  int64_t width_of_rope(const HeadShape& shape) const {
    return rope_dim.value_or(shape.head_dim / 2);
  }
  bool biases_rope() const { return k_rope_bias.value_or(qkv_bias.value_or(bias)); }
};

class Gta : public AttentionHeads {
 public:
  using Options = GtaOptions;

  Gta(const HeadShape& s, const Options& options)
      : AttentionHeads(s, options.traits()),
        rope_(options.width_of_rope(s)),
        content_(s.head_dim - rope_),
        scale_(options.scale.value_or(1 / std::sqrt(s.head_dim))) {
    const auto biases = options.projections();
    const int64_t D = s.d_model, d = s.head_dim;
    q_ = projection("q", D, s.heads * d, biases.qkv_bias, rows_of_heads());
    kv_ = projection("kv", D, s.kv_heads * d, biases.qkv_bias, rows_of_kv_heads());
    if (rope_ > 0)
      k_rope_ = projection("k_rope", D, rope_, options.biases_rope(), shared_by_heads());
    output_projection(s.heads * d, biases.o_bias);
    for (auto* linear : {&q_, &kv_, &k_rope_})
      if (*linear) init_input(*linear, s);
    init_output(o_, s);
  }

  // Of content alone, as far as there is any.
  std::optional<HeadMatrices> matrices() const override {
    if (content_ == 0) return std::nullopt;
    const int64_t D = shape_.d_model, H = shape_.heads, d = shape_.head_dim;
    const auto rows = at::tensor(group_rows(kKvHeads), at::kLong).to(kv_->weight.device());
    const auto kv = kv_->weight.detach().view({shape_.kv_heads, d, D}).index_select(0, rows);
    return HeadMatrices{.q = q_->weight.detach().view({H, d, D}).narrow(1, 0, content_),
                        .k = kv.narrow(1, 0, content_),
                        .v = kv,
                        .o = o_->weight.detach().view({D, H, d}).transpose(0, 1)};
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto numel = [](const Linear& l) {
      return l ? static_cast<double>(l->weight.numel()) : 0.0;
    };
    return 2.0 * T * (numel(q_) + numel(o_)) + 2.0 * S * (numel(kv_) + numel(k_rope_)) +
           4 * pairs * static_cast<double>(shape_.heads * shape_.head_dim);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
      const auto all = split_heads(q_(from), shape_.heads, shape_.head_dim);
      const auto turned = rotate(all.narrow(3, content_, rope_), call, call.positions);
      return at::cat({all.narrow(3, 0, content_), turned}, 3);
    });  // [B,H,T,d]
    const auto& y = source(x, call);
    Tensor k, v;  // [B,Hkv,S,d]
    if (call.inputs) {
      k = from_inputs(Input::kKey, y, call,
                      [&](const Tensor& from) { return keys(tied(from), turned(from, call)); });
      v = from_inputs(Input::kValue, y, call, [&](const Tensor& from) { return tied(from); });
    } else {
      v = cached(call, "kv", [&] { return tied(y); });
      k = rope_ == 0 ? v : keys(v, cached(call, "k_rope", [&] { return turned(y, call); }));
    }
    return {.y = output(attend(q, k, v, call, scale_), v, call)};  // [B,T,D]
  }

  Tensor tied(const Tensor& y) { return split_heads(kv_(y), shape_.kv_heads, shape_.head_dim); }
  // [B,1,S,r]; undefined without rope
  Tensor turned(const Tensor& y, const HeadCall& call) {
    return rope_ == 0 ? Tensor() : rotate(k_rope_(y).unsqueeze(1), call, key_positions(call));
  }
  Tensor keys(const Tensor& kv, const Tensor& turned) const {
    if (!turned.defined()) return kv;
    return at::cat({kv.narrow(3, 0, content_), turned.expand({-1, kv.size(1), -1, -1})}, 3);
  }

  int64_t rope_, content_;  // r, d - r
  double scale_;
  Linear q_{nullptr}, kv_{nullptr}, k_rope_{nullptr};
};

const RegisterHeads<Gta> registered("gta",
                                    "a group's key is its value, but for positions that all share");

}  // namespace
}  // namespace headlab
