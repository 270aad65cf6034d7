// A decoder-only language model, GPT-2 or LLaMA style by its options, hosting any kind of heads.
//
//     x = drop(E[ids] + positions);  blocks;  logits = norm(x) E^T, or W_head when not tied
//
// Radford et al. 2019 (GPT-2), Touvron et al., arXiv 2302.13971 (LLaMA); post-norm as the decoder
// of Vaswani et al., arXiv 1706.03762, which has no final norm.
#include "core/torch.h"
#include "experiments/models/stack.h"

namespace headlab {
namespace {

class Decoder : public Model {
 public:
  struct Options : StackOptions {
    bool tie = true, causal = true;

    void visit(Fields& f) override {
      StackOptions::visit(f);
      f("tie", tie, "the output head is the token embedding");
      f("causal", causal, "a token sees no later one");
    }
    void check_data(const DataShape& data, const Complain& complain) const override {
      check_alone(data, complain);
      if (data.targets_follow && !causal)
        complain("causal", "false shows each token what follows, and that is what it is asked");
    }
    HeadDemands demands(int64_t layer) const override {
      auto demands = StackOptions::demands(layer);
      demands.causal = causal, demands.bidirectional = !causal;
      return demands;
    }
  };

  Decoder(const Options& options, const DataShape& data)
      : options_(options), vocabulary_(data.vocabulary), context_(data.context), pad_(data.pad) {
    require_data(vocabulary_ > 0, "a decoder reads tokens");
    auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    token_ = embedding_table(*embed, "token", vocabulary_, options.d_model, 0.02, pad_);
    stack_ = &add_stack(*embed, options, {}, context_);
    if (!options.tie) {
      head_ = register_module("head", Linear(options.d_model, vocabulary_, false));
      init_normal(head_, 0.02);
    }
    aim_at_heads();
  }

  Tensor embedding() const override { return token_; }
  Tensor unembedding() const override { return head_ ? head_->weight : token_; }
  int64_t context() const override { return context_; }
  bool writes() const override { return true; }
  double flops_per_token() const override {
    return 2.0 * options_.d_model * vocabulary_ +
           stack_->flops(context_, 0, options_.causal) / static_cast<double>(context_);
  }

 private:
  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    TORCH_CHECK(batch.ids.defined() && batch.ids.dim() == 2, "a decoder reads ids [B,T]");
    const auto embed = [&](int64_t past) {
      const auto x = stack_->at_places(token_embedding(token_, batch.ids, pad_), past);  // [B,T,D]
      auto rng = ctx.rng;
      rng.layer = -1;  // before the first layer
      return dropout(x, is_training() ? options_.dropout : 0, rng, CounterRng::kResidualDropout);
    };
    const auto x = stack_->forward(embed, {.batch = batch, .causal = options_.causal}, ctx, aux);
    return project(x, unembedding());  // [B,T,V]
  }

  Options options_;
  int64_t vocabulary_, context_;
  std::optional<int64_t> pad_;
  Tensor token_;
  Stack* stack_ = nullptr;
  Linear head_{nullptr};
};

const RegisterModel<Decoder> decoder_model("decoder", "decoder-only language model");

}  // namespace
}  // namespace headlab
