// Talking heads: the scores are mixed across heads before the softmax, the weights after it.
//
// Shazeer et al., "Talking-Heads Attention", arXiv 2003.02436, section 4, here with as many key,
// softmax and value heads as heads:
//   z'_g = sum_h z_h pre[h,g] (+ pre_bias_g), then biases, mask and softmax give P
//   A_g = mask * (sum_h P_h post[h,g] (+ post_bias_g))
#include "core/attention/composed/composition.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct TalkingOptions : MappedOptions {
  bool pre = true, post = true, mix_bias = false;

  void visit(Fields& f) override {
    MappedOptions::visit(f);
    f("pre", pre, "mixes the scores across heads before the softmax");
    f("post", post, "mixes the weights across heads after the softmax");
    f("mix_bias", mix_bias, "a bias for each head behind each mixing");
  }
  void check(const Complain& complain) const override {
    if (mix_bias && !pre && !post)
      complain("mix_bias", "there is no mixing to add it to; turn on pre or post");
  }
  HeadTraits traits() const override {
    return plain(map.options().limit(
        {.independent = !pre && !post, .rows_sum_to_one = !post, .grouped = true}));
  }
};

class Talking : public ProjectedHeads<TalkingOptions> {
 public:
  // The mixings start as the identity, the layer as plain multi-head attention.
  Talking(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    const int64_t H = shape.heads;
    if (options.pre) pre_ = parameter("pre", at::eye(H), heads_along({0, 1}));
    if (options.post) post_ = parameter("post", at::eye(H), heads_along({0, 1}));
    if (!options.mix_bias) return;
    if (options.pre) pre_bias_ = parameter("pre_bias", at::zeros({H}), heads_along({0}));
    if (options.post) post_bias_ = parameter("post_bias", at::zeros({H}), heads_along({0}));
  }

  std::vector<Statistic> own_statistics() const override {
    auto statistics = options_.post ? composed_statistics() : std::vector<Statistic>{};
    const auto add = [&](const char* name, const char* long_name) {
      statistics.push_back(off_diagonal_statistic(name, long_name));
    };
    if (options_.pre) add("pre_off_diagonal", "share of the score mixing between heads");
    if (options_.post) add("post_off_diagonal", "share of the weight mixing between heads");
    return statistics;
  }

 private:
  // Biases and masks act on mixed scores: a mixing of hidden ones would mix infinities.
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const auto pre = Composition::by_matrix(pre_, pre_bias_, call.alive),
               post = Composition::by_matrix(post_, post_bias_, call.alive);
    const auto heads = composed_attend(q, k, v, pre, post, call, scale()).out;  // [B,H,T,d]
    if (call.observer && call.observer->wants_statistics()) {
      if (options_.pre) report_off_diagonal(*call.observer, "pre_off_diagonal", pre_, call.alive);
      if (options_.post)
        report_off_diagonal(*call.observer, "post_off_diagonal", post_, call.alive);
    }
    return {.y = output(heads, v, call)};  // [B,T,D]
  }

  Tensor pre_, post_, pre_bias_, post_bias_;  // [H,H] index [from, to]; [H]
};

const RegisterHeads<Talking> registered("talking", "heads that mix their scores and weights");

}  // namespace
}  // namespace headlab
