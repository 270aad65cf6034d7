// Sparse attention by a lightning indexer: a small scorer of queries and keys chooses the keys that
// all heads see.
//
// DeepSeek-V3.2, arXiv 2512.02556, section 2.1, equations (1) to (4), over multi-head attention.
// With HI heads of width DI, x' = x without gradient,
//   I_tj = sum_e w_te relu(DI^-0.5 qI_te . kI_j),   qI = x' index.q^T, kI = x' index.k^T,
//                                                   w = x' index.w^T
//   A = softmax(scale q k^T + biases) over the n allowed keys with the highest I_tj
//   loss = index_loss * mean over rows of KL(p || softmax of I),  p = mean over heads of A, fixed,
// both over the chosen keys. n >= T is multi-head attention, and the paper's warm-up of the
// indexer.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/attention/call/choice_observer.h"
#include "core/attention/precision.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/families/chosen_blocks.h"

namespace headlab {
namespace {

struct DsaOptions : MhaOptions, DerivedDefaults<HeadShape> {
  int64_t selected = 2048;
  std::optional<int64_t> index_heads, index_dim;
  double index_loss = 1;

  void visit(Fields& f) override {
    f("selected", selected, "keys that a query sees", at_least(1));
    f("index_heads", index_heads, "heads of the indexer (default: heads)", at_least(1));
    f("index_dim", index_dim, "width of a head of the indexer (default: head_dim)", at_least(1));
    f("index_loss", index_loss, "weight of the indexer's loss; 0: none, and it learns nothing",
      at_least(0));
    MhaOptions::visit(f);
  }
  void derive(const HeadShape& shape) override {
    index_heads = index_heads.value_or(shape.heads);
    index_dim = index_dim.value_or(shape.head_dim);
  }
  HeadTraits traits() const override { return plain({.cross = false, .grouped = true}); }
};

// Names the matrices as the cases do: index.q.weight [HI DI,D], index.k.weight [DI,D],
// index.w.weight [HI,D].
struct IndexerImpl : torch::nn::Module {
  Linear q{nullptr}, k{nullptr}, w{nullptr};

  IndexerImpl(int64_t D, int64_t heads, int64_t width)
      : q(register_module("q", Linear(D, heads * width, false))),
        k(register_module("k", Linear(D, width, false))),
        w(register_module("w", Linear(D, heads, false))) {}
};
TORCH_MODULE(Indexer);

class Dsa : public ProjectedHeads<DsaOptions> {
 public:
  Dsa(const HeadShape& s, const Options& options)
      : ProjectedHeads(s, options),
        heads_(options.index_heads.value_or(s.heads)),
        width_(options.index_dim.value_or(s.head_dim)),
        index_(register_module("index", Indexer(s.d_model, heads_, width_))) {
    for (auto* linear : {&index_->q, &index_->k, &index_->w}) init_input(*linear, s);
    for (const char* name : {"index.q.weight", "index.k.weight", "index.w.weight"})
      lay_out(name, shared_by_heads());
  }

  std::vector<std::string> aux_names() const override {
    return options_.index_loss > 0 ? std::vector<std::string>{"index"} : std::vector<std::string>{};
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto D = static_cast<double>(shape_.d_model), HI = static_cast<double>(heads_),
               DI = static_cast<double>(width_);
    const double indexer = 2.0 * D * (T * (HI * DI + HI) + S * DI) + 2 * pairs * HI * (DI + 1);
    return projected_flops(T, S, std::min(pairs, 1.0 * T * options_.selected)) + indexer;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const auto rest = rest_of(x, call).detach();
    const auto index_keys = cached(call, "index", [&] {
      return index_->k(rest_of_source(x, call).detach()).unsqueeze(1);  // [B,1,S,DI]
    });
    const int64_t B = x.size(0), T = x.size(1), S = k.size(2);
    const bool learns = is_training() && options_.index_loss > 0 && q.size(1) > 0;
    const bool chooses = options_.selected < S;
    auto* watched = choice_observer(call);
    Tensor scores, chosen;  // [B,T,S]
    if (chooses || learns) scores = index_scores(rest, index_keys);
    auto candidates = allowed_keys(call.mask, T, S, x.device());
    candidates = candidates.defined() ? of_any_head(candidates, call) : candidates;
    if (chooses || learns || watched) {
      chosen = candidates.defined() ? candidates.expand({B, T, S})
                                    : at::ones({B, T, S}, x.options().dtype(at::kBool));
      if (chooses) chosen = choose(scores, chosen);
      if (watched) watched->choice("keys", chosen.to(at::kByte));
    }
    Scope scope = call;
    if (chooses) scope.mask.allowed = both_allowed(call.mask.allowed, chosen.unsqueeze(1));
    const auto masked = call.within(scope);
    HeadOutput out{.y = output(attend(q, k, v, masked, scale()), v, call)};  // [B,T,D]
    if (is_training() && options_.index_loss > 0) {
      const auto value = learns ? loss(q, k, scores, chosen, masked) : no_gradient();
      out.aux.push_back({"index", value, OverLayers::kSum});
    } else if (at::GradMode::is_enabled()) {
      out.y = out.y + no_gradient().to(out.y.scalar_type());
    }
    return out;
  }

  // The indexer is whose it was, however few heads are left.
  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override {
    auto options = options_;
    options.index_heads = heads_, options.index_dim = width_;
    return build_heads<Dsa>(plan.shape, options);
  }

  // 0, of which gradients of 0 reach the indexer: the choice passes none.
  Tensor no_gradient() const {
    const auto none = [](const Linear& linear) { return linear->weight.slice(0, 0, 0).sum(); };
    return none(index_->q) + none(index_->k) + none(index_->w);
  }

  // I [B,T,S], float32 or wider.
  Tensor index_scores(const Tensor& x, const Tensor& index_keys) {
    const auto q = split_heads(index_->q(x), heads_);                   // [B,HI,T,DI]
    const auto w = widened(index_->w(x).transpose(1, 2).unsqueeze(3));  // [B,HI,T,1]
    const WithoutAutocast exact;
    const auto wide_q = widened(q) * (1 / std::sqrt(static_cast<double>(width_)));
    const auto keys = widened(index_keys.squeeze(1)).mT();  // [B,DI,S]
    Tensor sum;
    for (int64_t e = 0; e < heads_; ++e) {  // one head's products at a time: [B,T,S]
      const auto of_head = at::relu(at::matmul(wide_q.select(1, e), keys)) * w.select(1, e);
      sum = sum.defined() ? sum + of_head : of_head;
    }
    return sum;
  }

  // A key is a candidate where any head may see it: [.,H or 1,T,S] -> [.,T,S]. Of heads that are
  // not alive nobody asks.
  static Tensor of_any_head(const Tensor& allowed, const HeadCall& call) {
    auto all = allowed;
    while (all.dim() < 4) all = all.unsqueeze(0);
    if (all.size(1) > 1 && call.alive.defined()) all = all & call.alive.view({-1, 1, 1});
    return all.size(1) == 1 ? all.squeeze(1) : all.any(1);
  }

  // Those of the candidates with the highest scores, of equal ones the lower: bool [B,T,S].
  Tensor choose(const Tensor& scores, const Tensor& candidates) const {
    const at::NoGradGuard no_grad;
    const auto z = scores.masked_fill(candidates.logical_not(), kHiddenScore);
    const auto keys = highest_scores(z, options_.selected);  // [B,T,n]
    const int64_t S = z.size(2);
    auto chosen = at::zeros({z.size(0), z.size(1), S + 1}, candidates.options());
    return chosen.scatter_(2, keys.masked_fill(keys < 0, S), true).narrow(2, 0, S);
  }

  // Means over the rows that count, of which gradients reach the indexer alone.
  Tensor loss(const Tensor& q, const Tensor& k, const Tensor& scores, const Tensor& chosen,
              const HeadCall& call) const {
    const auto lse = log_sum_exp(scores, chosen).unsqueeze(2);  // [B,T,1]
    Tensor p, counted;
    {
      const at::NoGradGuard no_grad;
      std::tie(p, counted) = mean_map(q, k, call);
      p = p.to(scores.scalar_type());
    }
    const auto log_q = (scores - lse).masked_fill(chosen.logical_not(), 0);
    const auto divergence = (at::xlogy(p, p) - p * log_q).sum(-1);  // [B,T]
    return options_.index_loss * divergence.masked_fill(counted.logical_not(), 0).sum() /
           counted.sum().clamp_min(1);
  }

  // The mean of the maps of the heads that are alive [B,T,S], and the rows that count in any, bool
  // [B,T]. One map is held at a time.
  std::pair<Tensor, Tensor> mean_map(const Tensor& q, const Tensor& k, const HeadCall& call) const {
    const int64_t H = q.size(1), T = q.size(2), S = k.size(2);
    const auto keys = repeat_kv(k, call.kv_map, H);  // [B,H,S,d]
    const auto alive =
        call.alive.defined() ? call.alive : at::ones({H}, q.options().dtype(at::kBool));
    Tensor sum, counted;
    for (int64_t h = 0; h < H; ++h) {
      const auto own = call.of_heads(h, 1, H);
      const auto z = headlab::scores(q.narrow(1, h, 1), keys.narrow(1, h, 1), own, scale());
      const auto allowed = allowed_keys(own.mask, T, S, q.device());
      const auto a = masked_softmax(z, allowed);  // [B,1,T,S]
      const auto rows = counted_pairs(a, allowed, own.mask).any(-1).squeeze(1);
      const auto of_head = a.squeeze(1) * alive[h];
      sum = sum.defined() ? sum + of_head : of_head;
      counted = counted.defined() ? counted | rows : rows;
    }
    return {sum / alive.sum().clamp_min(1), counted};
  }

  int64_t heads_, width_;  // HI, DI
  Indexer index_;
};

const RegisterHeads<Dsa> registered("dsa", "an indexer chooses the keys that all heads see");

}  // namespace
}  // namespace headlab
