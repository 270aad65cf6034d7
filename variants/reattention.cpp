// Re-attention: the weights are mixed across heads behind the softmax, then normed.
//
// Zhou et al., "DeepViT: Towards Deeper Vision Transformer", arXiv 2103.11886, equation (3); norm
// `batch` is the authors' code, norm `layer` (over the heads of one pair) vit-pytorch's reading:
//   R_g = sum_h P_h theta[h,g] (+ theta_bias_g)
//   A = mask * norm(R) * (scale if transform_scale else 1)
#include <mutex>

#include "core/attention/composed/composition.h"
#include "core/attention/maps/map.h"
#include "core/attention/paths/paths.h"
#include "core/attention/precision.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kEps = 1e-5, kMomentum = 0.1;

// Of each head [H]: mean and variance of the `n` pairs that a batch has counted.
struct Moments {
  Tensor mean, variance, n;

  // Of its pairs and those of another batch together.
  void add(const Moments& more) {
    if (!n.defined()) return void(*this = more);
    const auto all = n + more.n;
    const auto apart = more.mean - mean, share = more.n.to(mean.scalar_type()) / all.clamp_min(1);
    mean = mean + share * apart;
    variance = variance + share * (more.variance - variance + (1 - share) * apart.square());
    n = all;
  }
};

struct Norm : torch::nn::Module {
  Tensor weight, bias;               // [H]
  Tensor running_mean, running_var;  // [H], undefined where statistics are of each pair

  Norm(int64_t H, bool batch) {
    weight = register_parameter("weight", at::ones({H}));
    bias = register_parameter("bias", at::zeros({H}));
    if (!batch) return;
    running_mean = register_buffer("running_mean", at::zeros({H}));
    running_var = register_buffer("running_var", at::ones({H}));
  }
};

Tensor by_head(const Tensor& of_head, const Tensor& map) {  // [H] -> [H,1,1], in the map's type
  return of_head.to(map.scalar_type()).view({-1, 1, 1});
}

struct ReattentionOptions : MappedOptions {
  std::string norm = "layer";
  bool theta_bias = false, transform_scale = false;

  void visit(Fields& f) override {
    MappedOptions::visit(f);
    f("norm", norm,
      "of the mixed weights: layer, over the heads of a query and key; batch, of each head over "
      "all allowed pairs of a batch, with running statistics in evaluation",
      one_of({"layer", "batch"}));
    f("theta_bias", theta_bias, "a bias for each head behind the mixing");
    f("transform_scale", transform_scale, "multiplies the normed weights by the score's scale");
  }
  std::optional<InitDifferences> init_differences() const override {
    return InitDifferences{{"theta", "identity + N(0, 0.02)", "identity"}};
  }
  HeadTraits traits() const override {
    return plain(
        map.options().limit({.independent = false, .rows_sum_to_one = false, .grouped = true}));
  }
  bool batch() const { return norm == "batch"; }
};

class Reattention : public ProjectedHeads<ReattentionOptions> {
 public:
  Reattention(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    const int64_t H = shape.heads;
    auto theta = at::eye(H);
    if (!shape.init_as_host) theta += at::randn({H, H}) * 0.02;
    theta_ = parameter("theta", theta, heads_along({0, 1}));
    if (options.theta_bias) theta_bias_ = parameter("theta_bias", at::zeros({H}), heads_along({0}));
    norm_ = register_module("norm", std::make_shared<Norm>(H, options.batch()));
    for (const char* of_head : {"weight", "bias", "running_mean", "running_var"})
      lay_out(std::string("norm.") + of_head, heads_along({0}));
  }

  std::vector<Statistic> own_statistics() const override {
    auto statistics = composed_statistics();
    statistics.push_back(
        off_diagonal_statistic("theta_off_diagonal", "share of the mixing between heads"));
    if (shape_.layer > 0)
      statistics.push_back(
          head_statistic("layer_cosine", "1", "likeness of the weights to those a layer before",
                         "mean over rows of cos(a', a' of the same head in the layer before)"));
    return statistics;
  }

  // Running statistics go on once an update, by the pairs of all its passes, where there was
  // something to count.
  void after_step() override {
    QkvHeads::after_step();
    at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    if (!counted_.n.defined()) return;
    const auto unbiased = counted_.variance * counted_.n / (counted_.n - 1).clamp_min(1);
    const auto move = [&](Tensor& running, const Tensor& now) {
      running += at::where(counted_.n > 1, kMomentum * (now - running), 0);
    };
    move(norm_->running_mean, counted_.mean);
    move(norm_->running_var, unbiased);
    counted_ = {};
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    TORCH_CHECK(
        !call.cache || !options_.batch() || !is_training(),
        "reattention with norm: batch decodes in eval mode only: in training its statistics "
        "are of the whole batch");
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    if (options_.batch()) return {.y = output(attend_whole(q, k, v, call), v, call)};  // [B,T,D]
    const auto [heads, maps] = composed_attend(q, k, v, {}, layer_norm(q, call), call, scale());
    if (maps.composed.defined()) observe(maps.composed, call);
    return {.y = output(heads, v, call)};  // [B,T,D]
  }

  // Means are over whole maps: [B,H,T,d].
  Tensor attend_whole(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call) {
    require_maps(call.backend, "heads that are normed over a batch");
    const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), q.device());
    const auto z = scores(q, k, call, scale());          // [B,H,T,S]
    const auto p = weights_of(z, allowed, call);         // [B,H,T,S]
    auto a = batch_normed(p, allowed, call) * factor();  // [B,H,T,S]
    // The norm's bias would land on hidden keys.
    if (allowed.defined()) a = a * allowed.to(a.scalar_type());
    const auto heads = weighted_values(a, v, call);  // [B,H,T,d]
    if (call.observer) {
      observe_weights({.scores = z, .p = p, .a = a, .v = v, .out = heads}, call);
      observe(a, call);
    }
    return heads;
  }

  double factor() const { return options_.transform_scale ? scale() : 1; }

  // Over the alive heads of each pair. The mean over heads is taken out of theta instead of R: R
  // then comes centred, and its variance is its mean square.
  Composition layer_norm(const Tensor& like, const HeadCall& call) const {
    const auto type = like.options().dtype(at_least_float(like));
    const auto of = [&](const Tensor& t) { return t.to(type); };
    const auto alive = call.alive.defined() ? of(call.alive) : at::ones({shape_.heads}, type);
    const auto share = alive / alive.sum().clamp_min(1);  // [H]
    const WithoutAutocast exact;
    const auto centred = [&](const Tensor& t) {  // over the heads that a mixing ends in
      return t.defined() ? of(t) - at::matmul(of(t), share).unsqueeze(-1) : t;
    };
    const auto mixing = Composition::by_matrix(centred(theta_), centred(theta_bias_), call.alive);
    return mixing.normed({of(norm_->weight) * factor(), of(norm_->bias) * factor(), share, kEps});
  }

  // Of each head over the pairs that count.
  Tensor batch_normed(const Tensor& p, const Tensor& allowed, const HeadCall& call) {
    const auto r = Composition::by_matrix(theta_, theta_bias_, call.alive)(p);  // [B,H,T,S]
    auto mean = norm_->running_mean, variance = norm_->running_var;
    if (is_training()) {
      const auto counted = counted_pairs(p, allowed, call.mask);
      const auto n = counted.sum(at::IntArrayRef({0, 2, 3}));  // [H]
      const auto average = [&](const Tensor& map) {
        return at::where(counted, map, 0).sum(at::IntArrayRef({0, 2, 3})) / n.clamp_min(1);  // [H]
      };
      mean = average(r);
      variance = average((r - by_head(mean, p)).square());
      // Passes without gradient, to measure, are followed by no update.
      if (at::GradMode::is_enabled()) remember({mean.detach(), variance.detach(), n}, call.alive);
    }
    const auto scaled = (variance.to(p.scalar_type()) + kEps).rsqrt() * norm_->weight;
    return (r - by_head(mean, p)) * by_head(scaled, p) + by_head(norm_->bias, p);
  }

  void remember(Moments pass, const Tensor& alive) {
    if (alive.defined()) pass.n = pass.n * alive;  // heads that are not there have counted nothing
    const std::lock_guard lock(mutex_);
    counted_.add(pass);
  }

  void observe(const Tensor& a, const HeadCall& call) const {
    auto& observer = *call.observer;
    if (!observer.wants_statistics()) return;
    at::NoGradGuard no_grad;
    report_off_diagonal(observer, "theta_off_diagonal", theta_, call.alive);
    const auto before = observer.map_before(a);  // [B,H,T,S]
    if (!before.defined()) return;
    const auto allowed = allowed_keys(call.mask, a.size(2), a.size(3), a.device());
    const auto norms = a.norm(2, -1) * before.norm(2, -1);                            // [B,H,T]
    const auto counted = counted_pairs(a, allowed, call.mask).any(-1) & (norms > 0);  // [B,H,T]
    report_rows(observer, "layer_cosine", (a * before).sum(-1) / norms, counted);
  }

  Tensor theta_, theta_bias_;  // [H,H] index [from, to]; [H]
  std::shared_ptr<Norm> norm_;
  std::mutex mutex_;  // several threads may run one layer
  Moments counted_;   // since the last update
};

const RegisterHeads<Reattention> registered("reattention",
                                            "re-attention: weights mixed across heads and normed");

}  // namespace
}  // namespace headlab
