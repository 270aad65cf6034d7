// Exclusive self-attention: what heads of any other kind say, without the part that points along
// the token's own value.
//
// Zhai, arXiv 2603.09078; learned strength: KellerJordan/modded-nanogpt, pull request 264.
//   o_i <- o_i - s (o_i v_i) / max(|v_i|^2, eps) v_i,   v_i the own value as it is attended to
//   s = 1 (fixed), tanh(alpha_h) (learned), or a number
// Gates on the outputs come behind it. Masks play no part: a key that is hidden from its own query
// is taken out alike.
#include "core/config/alternatives.h"
#include "core/torch.h"
#include "core/wrapped_heads.h"

namespace headlab {
namespace {

class Xsa : public WrappedHeads {
 public:
  struct Options : WrapperOptions {
    WordOrNumber strength{{"fixed", "learned"}};
    double eps = 1e-8, init = 0;

    Options() : WrapperOptions("mha") {}
    void visit(Fields& f) override {
      f("inner", inner,
        "kind of the heads that are made exclusive, with its options; init_weights of xsa is "
        "theirs, too");
      f("strength", strength,
        "share that is taken out: fixed = 1, learned = tanh of a parameter of each head, or a "
        "number");
      f("eps", eps, "least square of a value that the share is of", above(0));
      f("init", init, "learned: the parameter before training; 0 leaves the heads as they are");
    }
    HeadTraits traits() const override {
      auto traits = WrapperOptions::traits();
      traits.cross = false;
      return traits;
    }
    void check(const Complain& complain) const override {
      if (!WrapperOptions::traits().own_values)
        complain("inner", "'" + inner.kind() +
                              "' heads have no value of each token that could be taken out");
    }
    bool learns() const { return !strength.number() && strength.word() == "learned"; }
  };

  Xsa(const HeadShape& shape, const Options& options)
      : WrappedHeads(shape, options), options_(options) {
    if (!options.learns()) return;
    auto own = register_module("xsa", std::make_shared<torch::nn::Module>("xsa"));
    alpha_ = own->register_parameter("alpha", at::full({shape.heads}, options.init));
    lay_out("xsa.alpha", heads_along({0}));
  }

  std::vector<Statistic> own_statistics() const override {
    auto own = WrappedHeads::own_statistics();
    own.push_back(head_statistic("self_cosine", "1", "cosine of output and own value",
                                 "mean over rows of cos(o_i, v_i), before v_i is taken out"));
    own.push_back(head_statistic("self_share", "1", "share of the output along the own value",
                                 "sum_i (o_i v_i)^2 / |v_i|^2 / sum_i |o_i|^2"));
    own.push_back(head_statistic("xsa_alpha", "1", "share that is taken out", "s_h"));
    return own;
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const double e = static_cast<double>(value_width());
    const auto H = static_cast<double>(shape_.heads), Hkv = static_cast<double>(shape_.kv_heads);
    return WrappedHeads::flops(T, S, pairs) + static_cast<double>(T) * (4 * H + 2 * Hkv) * e;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    TORCH_CHECK(!call.memory.defined(), "xsa: queries of a memory have no own value to take out");
    const auto share = strength(x);  // [H]
    auto own = call;
    auto& exclusion = own.shaping.exclusion;
    // What two wrappers leave is the product of what each leaves.
    const auto by_token = share.view({1, -1, 1});
    exclusion = exclusion.defined() ? 1 - (1 - by_token) * (1 - exclusion) : by_token;
    own.shaping.exclusion_eps = options_.eps;
    if (call.observer && call.observer->wants_statistics()) {
      call.observer->report("xsa_alpha", share.detach(), at::ones_like(share));
      own.shaping.excludes = [&call](const Tensor& o, const Tensor& v, const Tensor& along) {
        report_shares(o, v, along, call);
      };
    }
    return run_inner(x, own);
  }

  // How far outputs point along the own values, of the rows that count (Shaping::excludes).
  static void report_shares(const Tensor& o, const Tensor& v, const Tensor& along,
                            const HeadCall& call) {
    at::NoGradGuard no_grad;
    const auto squares = [](const Tensor& t) {
      return t.square().sum(-1).to(at::kDouble);  // [B,H,T]
    };
    const auto within = within_length(call.mask.query_length, o.size(2), o.device());  // [B,T]
    const auto counted = [&](const Tensor& t) {
      return (within.defined() ? t * within.unsqueeze(1) : t).sum(at::IntArrayRef({0, 2}));
    };
    const auto of_output = squares(o), of_own = squares(v);
    const auto there = (of_output > 0).logical_and(of_own > 0);
    const auto cosine = along.squeeze(-1).to(at::kDouble) * (of_own / of_output).sqrt();
    call.observer->report("self_cosine", counted(at::where(there, cosine, 0.0)),
                          counted(there.to(at::kDouble)));
    call.observer->report("self_share", counted(squares(along * v)), counted(of_output));
  }

  Tensor strength(const Tensor& x) const {
    if (alpha_.defined()) return at::tanh(alpha_);
    return at::full({shape_.heads}, options_.strength.number().value_or(1), x.options());
  }

  Options options_;
  Tensor alpha_;  // [H]; undefined where the strength is a number
};

const RegisterHeads<Xsa> registered("xsa", "any other kind without the part along the own value");

}  // namespace
}  // namespace headlab
