// A decoder-only language model, GPT-2 or LLaMA style by its options, hosting any kind of heads.
//
//     x = drop(E[ids] + positions);  blocks;  logits = norm(x) E^T, or W_head when not tied
//
// Radford et al. 2019 (GPT-2), Touvron et al., arXiv 2302.13971 (LLaMA); post-norm as the decoder
// of Vaswani et al., arXiv 1706.03762, which has no final norm.
#include <torch/nn/modules/embedding.h>

#include <cmath>

#include "core/torch.h"
#include "experiments/models/gate_target.h"
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
    HeadDemands demands(int64_t layer) const override {
      auto demands = StackOptions::demands(layer);
      demands.causal = causal;
      return demands;
    }
  };

  Decoder(const Options& options, const DataShape& data)
      : options_(options), vocabulary_(data.vocabulary), context_(data.context) {
    make_embeddings();
    auto blocks = register_module("blocks", std::make_shared<torch::nn::Module>("blocks"));
    for (int64_t layer = 0; layer < options.layers; ++layer)
      blocks_.push_back(blocks->register_module(std::to_string(layer),
                                                TransformerBlock(options, layer, context_)));
    if (options.pre_norm) norm_ = register_module("norm", Norm(options));
    if (!options.tie) {
      head_ = register_module("head", Linear(options.d_model, vocabulary_, false));
      init_normal(head_, 0.02);
    }
    if (options.aims_at_heads()) gate_target_ = register_module(kGateTarget, GateTargetLoss());
  }

  ModelOutput forward(const Batch& batch, const ModelContext& ctx) override {
    const Tensor& ids = batch.ids;
    TORCH_CHECK(ids.defined() && ids.dim() == 2, "a decoder reads ids [B,T]");
    const int64_t past = ctx.caches && !ctx.caches->empty() ? ctx.caches->front().length() : 0;
    if (ctx.caches) ctx.caches->resize(blocks_.size());

    HeadContext heads;
    heads.mask.causal = options_.causal;
    heads.mask.key_length = heads.mask.query_length = batch.length;
    heads.positions = places(past, ids);
    const auto bias = position_bias();
    heads.position_bias = bias.get();
    heads.rotary = rotary_ ? &*rotary_ : nullptr;
    heads.rng = ctx.rng;
    heads.observer = ctx.observer;
    heads.backend = ctx.backend;

    ModelOutput out;
    auto x = ctx.input.defined() ? ctx.input : embed(ids, past, ctx.rng);  // [B,T,D]
    if (ctx.hidden) *ctx.hidden = {x};
    for (auto layer = static_cast<size_t>(ctx.first_block); layer < blocks_.size(); ++layer) {
      heads.mask.window = options_.window_of(layer);
      heads.cache = ctx.caches ? &(*ctx.caches)[layer] : nullptr;
      auto edited = heads;
      if (ctx.edit_heads) ctx.edit_heads("self", static_cast<int64_t>(layer), edited);
      x = blocks_[layer]->forward(x, edited, out.aux);
      if (ctx.hidden) ctx.hidden->push_back(x);
    }
    out.aux = combine_aux(out.aux);
    if (gate_target_ && is_training())
      for (auto& loss : gate_target_(all_heads(*this), ctx.update)) out.aux.push_back(loss);
    if (norm_) x = norm_(x);
    out.logits = project(x, unembedding());  // [B,T,V]
    return out;
  }

  std::map<std::string, std::vector<std::shared_ptr<AttentionHeads>*>> sites() override {
    std::vector<std::shared_ptr<AttentionHeads>*> layers;
    for (auto& block : blocks_) layers.push_back(&block->attention());
    return {{"self", layers}};
  }

  std::string layer_path(const std::string&, int64_t layer) const override {
    return "blocks." + std::to_string(layer) + ".attention";
  }
  void exchange(const std::string& site, int64_t layer,
                std::shared_ptr<AttentionHeads> heads) override {
    TORCH_CHECK(site == "self", "a decoder has no site ", site);
    blocks_.at(layer)->exchange(std::move(heads));
  }

  void parameter_groups(ParameterGroups& groups) override {
    Model::parameter_groups(groups);
    if (gate_target_) gate_target_->parameter_groups(groups);
  }
  std::set<std::string> aux_names() override {
    auto names = Model::aux_names();
    if (gate_target_) names.insert(kGateTarget);
    return names;
  }

  Tensor embedding() const override { return token_->weight; }
  Tensor unembedding() const override { return head_ ? head_->weight : token_->weight; }

  int64_t context() const override { return context_; }

  double flops_per_token() const override {
    const double T = static_cast<double>(context_);
    double total = 2.0 * options_.d_model * vocabulary_;
    for (size_t layer = 0; layer < blocks_.size(); ++layer) {
      const auto& block = *blocks_[layer];
      total += block.attention().flops(context_, context_, attended_pairs(layer)) / T;
      total += block.mlp().flops_per_token();
    }
    return total;
  }

 private:
  void make_embeddings() {
    auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    auto table = [&](const char* name, int64_t rows, int64_t width) {
      auto made = embed->register_module(name, torch::nn::Embedding(rows, width));
      torch::NoGradGuard no_grad;
      made->weight.normal_(0, 0.02);
      return made;
    };
    token_ = table("token", vocabulary_, options_.d_model);
    const auto& position = options_.position;
    if (position->kind == "learned") position_ = table("position", context_, options_.d_model);
    if (position->kind == "relative")
      relative_ = table("relative", position->buckets, options_.heads);  // serves every layer
    if (position->kind == "rope")
      rotary_.emplace(position->base,
                      position->layout == "half" ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                      position->fraction);
  }

  static Tensor places(int64_t past, const Tensor& ids) {
    return at::arange(past, past + ids.size(1), ids.options().dtype(at::kLong));  // [T]
  }

  Tensor embed(const Tensor& ids, int64_t past, CounterRng rng) const {
    const int64_t T = ids.size(1);
    auto x = at::embedding(token_->weight, ids);  // [B,T,D]
    if (position_) {
      TORCH_CHECK(past + T <= context_, "place ", past + T - 1, " is beyond the ", context_,
                  " learned positions");
      x = x + position_->weight.narrow(0, past, T);
    }
    if (options_.position->kind == "sinusoidal") {
      // As Vaswani et al.: sine and cosine alternate, and embeddings are scaled to match them.
      const auto waves = sinusoidal_interleaved(places(past, ids), options_.d_model);
      x = x * std::sqrt(options_.d_model) + waves.to(x.scalar_type());
    }
    rng.layer = -1;  // before the first layer
    return dropout(x, is_training() ? options_.dropout : 0, rng, CounterRng::kResidualDropout);
  }

  std::unique_ptr<PositionBias> position_bias() const {
    const auto& position = options_.position;
    if (position->kind == "alibi")
      return std::make_unique<Alibi>(options_.heads, token_->weight.options());
    if (position->kind == "relative")
      return std::make_unique<RelativeBias>(relative_->weight, position->max_distance,
                                            options_.causal);
    return nullptr;
  }

  // Pairs of query and key that attend in a layer at full context: about half when causal.
  double attended_pairs(int64_t layer) const {
    const double T = static_cast<double>(context_);
    const int64_t window = options_.window_of(layer);
    const double W = window > 0 ? std::min<double>(window, T) : T;
    const double one_side = T * W - W * W / 2;
    return options_.causal ? one_side : 2 * one_side;
  }

  Options options_;
  int64_t vocabulary_, context_;
  torch::nn::Embedding token_{nullptr}, position_{nullptr}, relative_{nullptr};
  std::optional<Rotary> rotary_;
  std::vector<TransformerBlock> blocks_;
  Norm norm_{nullptr};
  Linear head_{nullptr};
  GateTargetLoss gate_target_{nullptr};  // where layers aim at a number of heads
};

const RegisterModel<Decoder> decoder_model("decoder", "decoder-only language model");

}  // namespace
}  // namespace headlab
