// Multi-token attention: what a query says of a key depends on the queries and keys beside them,
// and on what other heads say there.
//
// Golovneva et al., "Multi-Token Attention", arXiv 2504.00927, section 3; facebookresearch/RAM.
// With a kernel w [cq,ck] of each head, whose last row meets the current query,
//   conv(s)[h,i,j] = sum_{a<cq, b<ck} w[h,a,b] s[h, i-(cq-1)+a, j-p+b]
//                    p = (ck-1)/2 (pad_key: both), ck-1 (left), 0 (right)
//   z = mix_pre(conv_pre(mask0(scale q k^T))) + biases,   mix_pre: sum_h z_h pre[h,g]
//   A = mask0(mix_post(mask0(conv_post(softmax(z))))),    mix_post: likewise within groups of heads
//   o_h = A v;   o_h <- RMS(o_h) norm (1 - lambda_init);   o_h <- o_h sigmoid(o_h gate^T + b)
// mask0 puts 0 where a query may not see a key.
#include <algorithm>
#include <cmath>

#include "core/attention/composed/composition.h"
#include "core/attention/maps/map.h"
#include "core/attention/paths/paths.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/mta/map_convolution.h"

namespace headlab {
namespace {

using Kernel = std::vector<int64_t>;  // queries and keys; empty: none

// A row of what it gives is made of so many rows before it too.
int64_t rows_of(const Kernel& kernel) { return kernel.empty() ? 0 : kernel[0] - 1; }

struct MtaOptions : BiasOptions, DerivedDefaults<HeadShape> {
  Kernel pre_kernel, post_kernel;
  bool pre = false;
  int64_t post = 0;
  std::string pad_key = "both";
  bool norm = false;
  double norm_eps = 1e-5, lambda_init = 0;
  std::string gate = "none";
  std::optional<double> scale;

  void visit(Fields& f) override {
    f("pre_kernel", pre_kernel, "queries and keys of a convolution of the scores (default: none)",
      between(1, 4096));
    f("post_kernel", post_kernel, "likewise of the weights (default: none)", between(1, 4096));
    f("pre", pre, "mixes the scores across heads before the softmax");
    f("post", post, "heads of a group whose weights are mixed; 0: none", at_least(0));
    f("pad_key", pad_key, "where the keys of a kernel lie beside the one that it stands at",
      one_of({"both", "left", "right"}));
    f("norm", norm, "RMS norm of what a head says, one weight for all heads");
    f("norm_eps", norm_eps, "epsilon of the norm", above(0));
    f("lambda_init", lambda_init, "what is normed is multiplied by 1 - lambda_init");
    f("gate", gate, "sigmoid gate of what a head says: one of the head, or of each feature",
      one_of({"none", "head", "element"}));
    f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
    BiasOptions::visit(f);
  }
  std::optional<InitDifferences> init_differences() const override {
    return InitDifferences{{"q, k, v, o", "N(0, d_model^-0.5) within 3 std", "as plain heads"}};
  }
  void derive(const HeadShape& shape) override {
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
  }
  void check(const Complain& complain) const override {
    const auto check_kernel = [&](const char* name, const Kernel& kernel) {
      if (!kernel.empty() && kernel.size() != 2)
        complain(name, "wants two sizes, [queries, keys]");
      else if (!kernel.empty() && pad_key == "both" && kernel[1] % 2 == 0)
        complain(name, std::to_string(kernel[1]) +
                           " keys have no middle; choose an odd number, or pad_key: left or right");
    };
    check_kernel("pre_kernel", pre_kernel);
    check_kernel("post_kernel", post_kernel);
    if (lambda_init != 0 && !norm) complain("lambda_init", "there is no norm; turn on norm");
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    if (post > 0 && shape.heads % post != 0)
      complain("post", "groups of " + std::to_string(post) + " do not divide " +
                           std::to_string(shape.heads) + " heads; choose a divisor");
  }
  HeadTraits traits() const override {
    return {.independent = !pre && post <= 1,
            .rows_sum_to_one = post_kernel.empty() && post == 0,
            .grouped = true,
            .own_values = true,
            .rows_before = rows_of(pre_kernel) + rows_of(post_kernel)};
  }
  Projections projections() const override {
    auto projections = BiasOptions::projections();
    projections.scale = scale;
    return projections;
  }
};

void init_truncated(Linear& linear, double std) {  // N(0, std) within 3 std
  at::NoGradGuard no_grad;
  const double edge = std::erf(3 / std::sqrt(2.0));
  linear->weight.uniform_(-edge, edge).erfinv_().mul_(std * std::sqrt(2.0));
}

Tensor hide(const Tensor& map, const Tensor& allowed) {
  return allowed.defined() ? map.masked_fill(allowed.logical_not(), 0) : map;
}

Tensor last_rows(const Tensor& map, int64_t n) {  // [B,H,T,.] -> [B,H,n,.]
  // The gradient of a part is written into zeros.
  return n == map.size(2) ? map : map.narrow(2, map.size(2) - n, n);
}

class Mta : public ProjectedHeads<MtaOptions> {
 public:
  // Kernels and mixings start as the identity.
  Mta(const HeadShape& s, const Options& options) : ProjectedHeads(s, options) {
    const int64_t H = s.heads, d = s.head_dim;
    if (!s.init_as_host)
      for (auto* linear : {&q_, &k_, &v_, &o_}) init_truncated(*linear, 1 / std::sqrt(s.d_model));
    conv_pre_ = kernel("conv_pre", options.pre_kernel);
    conv_post_ = kernel("conv_post", options.post_kernel);
    if (options.pre) pre_ = parameter("pre", at::eye(H), heads_along({0, 1}));
    // Heads of larger groups lie in two axes of it: sliced() knows them.
    if (const int64_t group = options.post; group > 0)
      post_ = parameter("post", at::eye(group).repeat({H / group, 1, 1}),
                        group == 1 ? heads_along({0}) : shared_by_heads());
    if (options.norm) {
      norm_ = register_module("norm", RmsNorm(at::IntArrayRef{d}, options.norm_eps));
      lay_out("norm.weight", shared_by_heads());
    }
    if (options.gate == "none") return;
    gate_ = projection("gate", d, options.gate == "head" ? 1 : d, true, shared_by_heads());
    init_input(gate_, s);
  }

  std::vector<Statistic> own_statistics() const override {
    auto all = traits().rows_sum_to_one ? std::vector<Statistic>{} : composed_statistics();
    const auto add = [&](const char* name, const char* long_name) {
      all.push_back(off_diagonal_statistic(name, long_name));
    };
    if (pre_.defined()) add("pre_off_diagonal", "share of the score mixing between heads");
    if (post_.defined()) add("post_off_diagonal", "share of the weight mixing between heads");
    return all;
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    double of_pair = 0;
    for (const auto& weight : {conv_pre_, conv_post_, pre_, post_})
      if (weight.defined()) of_pair += 2.0 * weight.numel();
    const double of_token = gate_ ? 2.0 * shape_.heads * gate_->weight.numel() : 0;
    return projected_flops(T, S, pairs) + of_pair * pairs + of_token * T;
  }

 private:
  Tensor kernel(const char* name, const Kernel& sizes) {
    if (sizes.empty()) return {};
    const auto w = at::zeros({shape_.heads, sizes[0], sizes[1]});
    w.select(1, sizes[0] - 1).select(1, sizes[1] / 2).fill_(1);
    return parameter(name, w, heads_along({0}));
  }

  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override {
    auto options = options_;
    if (options.post > 1 || plan.shape.heads == 0) options.post = plan.shape.heads;
    return build_heads<Mta>(plan.shape, options);
  }
  // What is left of several groups is one, whose heads meet those of their own group alone.
  Tensor sliced(const std::string& name, const Tensor& whole,
                const SlicePlan& plan) const override {
    if (name != "post" || options_.post == 1) return AttentionHeads::sliced(name, whole, plan);
    const auto rows = at::tensor(plan.rows, at::kLong).to(whole.device());
    return post_matrix(whole).index_select(0, rows).index_select(1, rows).unsqueeze(0);
  }

  static Tensor post_matrix(const Tensor& groups) {  // [H/ch,ch,ch] -> [H,H]
    return groups.defined() ? at::block_diag(groups.unbind(0)) : groups;
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    auto keeping = call;  // rows before the new ones see keys before theirs
    if (call.mask.window > 0) keeping.mask.window += traits().rows_before;
    const auto q = queries(x, call);                          // [B,H,T,d]
    const auto k = keys(x, keeping), v = values(x, keeping);  // [B,Hkv,S,d]
    const auto all_post = post_matrix(post_);                 // [H,H]
    const auto pre = Composition::by_matrix(pre_, {}, call.alive),
               post = Composition::by_matrix(all_post, {}, call.alive);
    auto heads = convolves(call) ? convolved(q, k, v, pre, post, call)
                                 : composed_attend(q, k, v, pre, post, call, scale()).out;
    if (call.observer && call.observer->wants_statistics()) {
      if (pre_.defined()) report_off_diagonal(*call.observer, "pre_off_diagonal", pre_, call.alive);
      if (post_.defined())
        report_off_diagonal(*call.observer, "post_off_diagonal", all_post, call.alive);
    }
    heads = exclude_own(heads, v, call);
    if (norm_ && shape_.heads > 0) heads = norm_(heads) * (1 - options_.lambda_init);
    if (!gate_ || shape_.heads == 0) return {.y = output(heads, call)};  // [B,T,D]
    const auto g = at::sigmoid(gate_(heads));                            // [B,H,T,1 or d]
    if (options_.gate == "element") return {.y = output(heads, call.with_gates(g))};
    const auto of_head = g.squeeze(3);  // [B,H,T]
    return {.y = output(heads, call.with_gates(of_head)), .gates = of_head.transpose(1, 2)};
  }

  // Without a kernel maps are composed as they stand, but where a head mixes in scores that it may
  // see and another may not.
  bool convolves(const HeadCall& call) const {
    const auto& allowed = call.mask.allowed;
    const bool by_head = allowed.defined() && allowed.dim() > 2 && allowed.size(-3) > 1;
    return shape_.heads > 0 &&
           (conv_pre_.defined() || conv_post_.defined() || (pre_.defined() && by_head));
  }

  // Behind the queries before them that their rows are made of: [B,H,T,d] -> [B,H,past+T,d].
  Tensor with_rows_before(const Tensor& q, const HeadCall& call) const {
    if (!call.cache || traits().rows_before == 0) return q;
    for (const auto* t : {&call.mask.allowed, &call.bias})
      TORCH_CHECK(!t->defined() || t->dim() < 2 || t->size(-2) == 1,
                  "mta with a kernel decodes with masks and biases of keys alone, not ",
                  t->sizes());
    return call.cache->append("q", q, traits().rows_before + 1);
  }

  // The last T rows of a map [B,H,.,S], 0 where it is not allowed, convolved: [B,H,T,S].
  Tensor convolution(const Tensor& map, const Tensor& allowed, const Tensor& kernel, int64_t T,
                     const HeadCall& call) const {
    if (!kernel.defined()) return last_rows(hide(map, allowed), T);
    const int64_t ck = kernel.size(2);
    const auto& pad = options_.pad_key;
    const int64_t before = pad == "both" ? (ck - 1) / 2 : pad == "left" ? ck - 1 : 0;
    return convolve_map(map, allowed, kernel, T, before, call.backend);
  }

  Tensor convolved(const Tensor& fresh, const Tensor& k, const Tensor& v, const Composition& pre,
                   const Composition& post, const HeadCall& call) const {
    require_maps(call.backend, "convolved maps");
    const int64_t T = fresh.size(2), S = k.size(2);
    const auto q = with_rows_before(fresh, call);  // [B,H,past+T,d]
    const auto allowed = [&](int64_t rows) { return allowed_keys(call.mask, rows, S, q.device()); };
    const int64_t rows = std::min(q.size(2), T + rows_of(options_.post_kernel));  // of weights
    const auto z = add_biases(pre(convolution(scaled_products(q, k, call, scale()),
                                              allowed(q.size(2)), conv_pre_, rows, call)),
                              call);                        // [B,H,rows,S]
    const auto weights = masked_softmax(z, allowed(rows));  // [B,H,rows,S]
    const auto p = last_rows(weights, T);                   // [B,H,T,S]
    const auto a = composed_weights(
        conv_post_.defined() ? hide(convolution(weights, {}, conv_post_, T, call), allowed(T)) : p,
        post, allowed(T));                           // [B,H,T,S]
    const auto heads = weighted_values(a, v, call);  // [B,H,T,d]
    if (call.observer)
      observe_weights({.scores = last_rows(z, T), .p = p, .a = a, .v = v, .out = heads}, call);
    return heads;
  }

  Tensor conv_pre_, conv_post_;  // [H,cq,ck]
  Tensor pre_, post_;            // index [from, to]: [H,H]; [H/ch,ch,ch]
  RmsNorm norm_{nullptr};
  Linear gate_{nullptr};
};

const RegisterHeads<Mta> registered("mta", "scores and weights convolved over queries and keys");

}  // namespace
}  // namespace headlab
