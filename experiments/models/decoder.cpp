// A decoder-only language model, GPT-2 or LLaMA style by its options, hosting any kind of heads.
//
//     x = drop(E[ids] + positions);  blocks;  logits = norm(x) E^T, or W_head when not tied
//
// or, with head: bottleneck, the logits of all places from the state of the last one
// (bottleneck.h); with head: classes or values, one answer an example from the state of its last
// token.
//
// Radford et al. 2019 (GPT-2), Touvron et al., arXiv 2302.13971 (LLaMA); post-norm as the decoder
// of Vaswani et al., arXiv 1706.03762, which has no final norm.
#include "core/torch.h"
#include "experiments/models/bottleneck.h"

namespace headlab {
namespace {

class Decoder : public Model {
 public:
  struct Options : StackOptions {
    bool tie = true, causal = true;
    std::string head = "tokens";

    bool is_bottleneck() const { return head == "bottleneck"; }
    bool ends_in_norm() const override { return StackOptions::ends_in_norm() && !is_bottleneck(); }
    void visit(Fields& f) override {
      StackOptions::visit(f);
      f("head", head,
        "tokens: logits of each place from its own state; bottleneck: of all places from the state "
        "of the last, by weights that are never tied; classes, values: an answer for the example "
        "from the state of its last token",
        one_of({"tokens", "bottleneck", "classes", "values"}));
      f("tie", tie, "the output head is the token embedding");
      f("causal", causal, "a token sees no later one");
    }
    void check(const Complain& complain) const override {
      StackOptions::check(complain);
      if (is_bottleneck() && (d_model % 2 != 0 || d_model < 4))
        complain("d_model",
                 "must be even and at least 4 with head: bottleneck, whose places are "
                 "pairs of waves");
    }
    void check_data(const DataShape& data, const Complain& complain) const override {
      check_alone(data, complain);
      if (data.targets_are_ids && !is_bottleneck())
        complain("head",
                 "must be bottleneck: these data ask of each place the id that stands there, which "
                 "any other head copies from its input");
      if (data.targets_follow && is_bottleneck())
        complain("head",
                 "bottleneck shows each place what follows, and that is what it is asked; use "
                 "head: tokens");
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
      : options_(options),
        answers_(answers_of(options, data)),
        vocabulary_(data.vocabulary),
        context_(data.context),
        targets_follow_(data.targets_follow),
        pad_(data.pad) {
    require_data(vocabulary_ > 0, "a decoder reads tokens");
    auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    token_ = embedding_table(*embed, "token", vocabulary_, options.d_model, 0.02, pad_);
    stack_ = &add_stack(*embed, options, {}, context_);
    if (answers_ > 0) {
      head_ = register_module("head", Linear(options.d_model, answers_));
      init_normal(head_, 0.02);
    } else if (options.is_bottleneck()) {
      bottleneck_ = register_module("head", Bottleneck(options, vocabulary_));
    } else if (!options.tie) {
      head_ = register_module("head", Linear(options.d_model, vocabulary_, false));
      init_normal(head_, 0.02);
    }
    aim_at_heads();
  }

  Tensor embedding() const override { return token_; }
  Tensor unembedding() const override {
    if (bottleneck_ || answers_ > 0) return {};
    return head_ ? head_->weight : token_;
  }
  int64_t context() const override { return context_; }
  bool writes() const override { return !sees_whole_example(); }
  bool sees_whole_example() const override { return bottleneck_ || answers_ > 0; }
  double flops_per_token() const override {
    const double D = options_.d_model;
    const double head = bottleneck_    ? bottleneck_->flops_per_token()
                        : answers_ > 0 ? 2 * D * answers_ / static_cast<double>(context_)
                                       : 2 * D * vocabulary_;
    return head + stack_->flops(context_, 0, options_.causal) / static_cast<double>(context_);
  }

 private:
  // Numbers of an answer for an example; 0: the head is another.
  static int64_t answers_of(const Options& options, const DataShape& data) {
    require_answers(options.head, data);
    const std::string has = data.classes > 0 ? "classes" : "values";
    if (options.head == has) return data.answers();
    if (data.answers() > 0)
      throw ConfigError(fmt::format(
          "model.head: {} predicts tokens, and these data have an answer for an example; "
          "model.head={} predicts that",
          options.head, has));
    return 0;
  }

  // x [B,T,D] at the last token that is there, [B,D].
  static Tensor last_tokens(const Tensor& x, const Tensor& length) {
    if (!length.defined()) return x.select(1, -1);
    const auto last = (length - 1).view({-1, 1, 1}).expand({-1, 1, x.size(2)});
    return x.gather(1, last).squeeze(1);
  }

  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    TORCH_CHECK(batch.ids.defined() && batch.ids.dim() == 2, "a decoder reads ids [B,T]");
    const auto embed = [&](int64_t past) {
      const auto x = stack_->at_places(token_embedding(token_, batch.ids, pad_), past);  // [B,T,D]
      return drop_beside_blocks(x, is_training() ? options_.dropout : 0, ctx.rng);
    };
    const auto x = stack_->forward(embed, {.batch = batch, .causal = options_.causal}, ctx, aux);
    if (bottleneck_) return bottleneck_(x.select(1, -1), x.size(1));  // [B,T,V]
    if (answers_ > 0) return head_(last_tokens(x, batch.length));     // [B,classes], or [B,values]
    if (ctx.scored_only && few_are_scored(batch.targets))
      return project(scored_rows(x, batch.targets), unembedding());  // [n,V]
    return project(x, unembedding());                                // [B,T,V]
  }

  // Of a large vocabulary the logits are most of the work. Data that ask for next tokens ask for
  // most of them: to count these would make a GPU wait at every update.
  bool few_are_scored(const Tensor& targets) const {
    if (targets_follow_ || !targets.defined() || targets.dim() != 2) return false;
    return 4 * targets.ge(0).sum().item<int64_t>() <= targets.numel();
  }

  Options options_;
  int64_t answers_, vocabulary_, context_;
  bool targets_follow_;
  std::optional<int64_t> pad_;
  Tensor token_;
  Stack* stack_ = nullptr;
  Linear head_{nullptr};
  Bottleneck bottleneck_{nullptr};
};

const RegisterModel<Decoder> decoder_model("decoder", "decoder-only language model");

}  // namespace
}  // namespace headlab
