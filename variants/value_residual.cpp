// Value residual: heads of any other kind attend to their values mixed with those of the first
// layer.
//
// Zhou et al., "Value Residual Learning" (ResFormer), arXiv 2410.17897; tied and sigmoid:
// KellerJordan/modded-nanogpt and openai/parameter-golf.
//   v <- a v1 + b v,   v1 the first layer's values as projected
//   fixed: (a, b) = lambda;  learned: parameters that begin there;  tied: (l, 1 - l);
//   sigmoid: (sigmoid(l), 1);  replace (SVFormer): (1, 0), without a projection of values
// The first layer, which offers v1, is the inner kind as it is. A layer outside of a model has its
// own values for v1.
#include "core/torch.h"
#include "core/wrapped_heads.h"

namespace headlab {
namespace {

class ValueResidual : public WrappedHeads {
 public:
  struct Options : WrapperOptions {
    std::string mix = "fixed";
    std::vector<double> lambda{0.5, 0.5};

    Options() : WrapperOptions("mha") {}
    void visit(Fields& f) override {
      f("inner", inner,
        "kind of the heads whose values are mixed, with its options; init_weights of "
        "value_residual is theirs, too");
      f("mix", mix,
        "shares of the first layer's values and of the own ones: fixed numbers, learned, one "
        "learned and the rest, a learned sigmoid and 1, or 1 and 0",
        one_of({"fixed", "learned", "tied", "sigmoid", "replace"}));
      f("lambda", lambda, "the shares (fixed), or those before training (learned, tied)");
    }
    HeadTraits traits() const override {
      auto traits = WrapperOptions::traits();
      traits.inputs = traits.inputs && mix != "replace";
      return traits;
    }
    LinkParts reads() const override {
      auto parts = WrapperOptions::reads();
      parts.first_values = true;
      return parts;
    }
    void check(const Complain& complain) const override {
      if (lambda.size() != 2)
        complain("lambda", "wants two numbers, of the first layer and its own");
      if (!WrapperOptions::traits().plain_projections)
        complain("inner", "'" + inner.kind() + "' heads have no plain projection of values to mix");
    }
  };

  ValueResidual(const HeadShape& shape, const Options& options)
      : WrappedHeads(inner_shape(shape, options), options), options_(options) {
    const bool learns = options.mix != "fixed" && options.mix != "replace";
    if (!learns || shape.offers.first_values) return;
    auto own = register_module("residual", std::make_shared<torch::nn::Module>("residual"));
    const auto start = options.mix == "sigmoid" ? at::zeros({1}) : at::tensor(options.lambda);
    lambda_ = own->register_parameter(
        "lambda", start.to(at::kFloat).narrow(0, 0, options.mix == "learned" ? 2 : 1).clone());
    lay_out("residual.lambda", shared_by_heads());
  }

  std::vector<Statistic> own_statistics() const override {
    auto own = WrappedHeads::own_statistics();
    if (!mixes()) return own;
    own.push_back(layer_statistic("lambda_first", "1", "share of the first layer's values", "a"));
    own.push_back(layer_statistic("lambda_own", "1", "share of the own values", "b"));
    own.push_back(layer_statistic("first_share", "1", "what is of the first layer's values",
                                  "|a v1| / (|a v1| + |b v|)"));
    return own;
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const double mixed = static_cast<double>(S * shape_.kv_heads * value_width());
    const bool adds = mixes() && options_.mix != "replace";
    return WrappedHeads::flops(T, S, pairs) + (adds ? 3 * mixed : 0);
  }

 private:
  // Not in the first layer, and without a projection of its own only with the first one's values.
  bool mixes() const {
    return !shape_.offers.first_values &&
           (shape_.offered.first_values || options_.mix != "replace");
  }

  // The first layer, or one alone, has values of its own in any case.
  static HeadShape inner_shape(HeadShape shape, const Options& options) {
    shape.values_given = options.mix == "replace" && shape.offered.first_values;
    return shape;
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    if (!mixes()) return run_inner(x, call);
    auto own = call;
    const bool watched = call.observer && call.observer->wants_statistics();
    Tensor first;  // [B,Hkv,S,e]; undefined in a layer alone, whose own values are the first
    if (shape_.offered.first_values) first = own_kv_heads(linked(call, &LayerLink::first_values));
    if (options_.mix == "replace") {
      own.shaping.values = cached(call, "v", [&] { return call.shaping.v(first); });
      if (watched) report(call, at::ones({}), at::zeros({}), first, first);
      return run_inner(x, own);
    }
    const auto [a, b] = shares(x);
    Affine mix;
    if (first.defined())
      mix.scale = b, mix.offset = a * first;
    else
      mix.scale = a + b;
    if (watched)
      mix.sees = [this, &call, a = a, b = b, first](const Tensor& v) {
        report(call, a, b, first.defined() ? first : v, v);
      };
    own.shaping.v = mix.before(call.shaping.v);
    return run_inner(x, own);
  }

  std::pair<Tensor, Tensor> shares(const Tensor& x) const {  // scalars
    if (!lambda_.defined()) {
      const auto of = [&](double share) { return at::full({}, share, x.options()); };
      return {of(options_.lambda[0]), of(options_.lambda[1])};
    }
    if (options_.mix == "learned") return {lambda_[0], lambda_[1]};
    if (options_.mix == "tied") return {lambda_[0], 1 - lambda_[0]};
    return {at::sigmoid(lambda_[0]), at::ones_like(lambda_[0])};
  }

  void report(const HeadCall& call, const Tensor& a, const Tensor& b, const Tensor& first,
              const Tensor& v) const {
    at::NoGradGuard no_grad;
    const auto one = at::ones({}, at::kDouble);
    const auto wide = [](const Tensor& t) { return t.detach().to(at::kDouble); };
    const auto of_first = (wide(a) * first.to(at::kDouble)).norm(),
               of_own = (wide(b) * v.to(at::kDouble)).norm();
    call.observer->report("lambda_first", wide(a), one);
    call.observer->report("lambda_own", wide(b), one);
    call.observer->report("first_share", of_first, of_first + of_own);
  }

  Options options_;
  Tensor lambda_;  // [2], [1]; undefined where the shares are numbers, and in the first layer
};

const RegisterHeads<ValueResidual> registered(
    "value_residual", "any other kind on values mixed with those of the first layer");

}  // namespace
}  // namespace headlab
