#include "experiments/models/stack.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>

#include "core/torch.h"

namespace headlab {
namespace {

Tensor places(int64_t past, int64_t count, const Tensor& like) {
  return at::arange(past, past + count, like.options().dtype(at::kLong));  // [count]
}

}  // namespace

Tensor embedding_table(torch::nn::Module& embed, const char* name, int64_t rows, int64_t width,
                       double std) {
  auto made = embed.register_module(name, torch::nn::Embedding(rows, width));
  torch::NoGradGuard no_grad;
  made->weight.normal_(0, std);
  return made->weight;
}

Stack::Stack(torch::nn::Module& model, torch::nn::Module& embed, const StackOptions& options,
             const StackInputs& inputs, int64_t context)
    : name_(options.name()),
      site_(options.site()),
      position_(options.position),
      inputs_(inputs),
      heads_(options.heads),
      context_(context) {
  if (position_->kind == "learned")
    places_weight_ = embedding_table(embed, "position", context, options.d_model, 0.02);
  if (position_->kind == "relative")  // serves every layer
    relative_weight_ = embedding_table(embed, "relative", position_->buckets, options.heads, 0.02);
  if (position_->kind == "rope")
    rotary_.emplace(position_->base,
                    position_->layout == "half" ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                    position_->fraction);
  auto blocks = model.register_module("blocks", std::make_shared<torch::nn::Module>("blocks"));
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    windows_.push_back(options.window_of(layer));
    blocks_.push_back(
        blocks->register_module(std::to_string(layer), TransformerBlock(options, layer, context)));
  }
  if (options.pre_norm) norm_ = model.register_module("norm", Norm(options));
}

Tensor Stack::at_places(const Tensor& embedded, int64_t past) const {
  const int64_t T = embedded.size(1), D = embedded.size(2);
  if (places_weight_.defined()) {
    TORCH_CHECK(past + T <= context_, "place ", past + T - 1, " is beyond the ", context_,
                " learned positions");
    return embedded + places_weight_.narrow(0, past, T);
  }
  if (position_->kind != "sinusoidal") return embedded;
  // As Vaswani et al.: sine and cosine alternate, and embeddings are scaled to match them.
  const auto waves = sinusoidal_interleaved(places(past, T, embedded), D);
  return embedded * std::sqrt(D) + waves.to(embedded.scalar_type());
}

HeadContext Stack::self_call(const StackCall& call, const ModelContext& ctx, int64_t past) const {
  const Tensor& tokens = call.batch.*inputs_.tokens;
  HeadContext heads;
  heads.mask.causal = call.causal;
  heads.mask.key_length = heads.mask.query_length = call.batch.*inputs_.length;
  if (tokens.defined()) heads.positions = places(past, tokens.size(1), tokens);
  heads.rotary = rotary_ ? &*rotary_ : nullptr;
  heads.rng = ctx.rng;
  heads.observer = ctx.observer;
  heads.backend = ctx.backend;
  return heads;
}

HeadContext Stack::cross_call(const StackCall& call, const ModelContext& ctx) const {
  HeadContext heads;
  if (!inputs_.memory_length) return heads;
  heads.memory = call.memory;
  heads.mask.query_length = call.batch.*inputs_.length;
  heads.mask.key_length = call.batch.*inputs_.memory_length;
  heads.rng = ctx.rng;
  heads.observer = ctx.observer;
  heads.backend = ctx.backend;
  return heads;
}

std::unique_ptr<PositionBias> Stack::position_bias(bool causal, const Tensor& like) const {
  if (position_->kind == "alibi") return std::make_unique<Alibi>(heads_, like.options());
  if (position_->kind == "relative")
    return std::make_unique<RelativeBias>(relative_weight_, position_->max_distance, causal);
  return nullptr;
}

Tensor Stack::forward(const Embed& embed, const StackCall& call, const ModelContext& ctx,
                      std::vector<AuxLoss>& aux) {
  // Only what sees no later token can be decoded.
  auto* caches = call.causal ? ctx.caches : nullptr;
  const int64_t past = caches && !caches->empty() ? caches->front().length() : 0;
  if (caches) caches->resize(blocks_.size());
  const auto going_on = ctx.first_block.find(name_);
  const bool from_start = going_on == ctx.first_block.end();
  const int64_t first = from_start ? 0 : going_on->second;
  auto x = from_start ? embed(past) : ctx.known->at(name_).at(first);  // [B,T,D]
  auto* hidden = ctx.hidden ? &(*ctx.hidden)[name_] : nullptr;
  if (hidden) *hidden = {x};

  auto self = self_call(call, ctx, past);
  const auto bias = position_bias(call.causal, x);
  self.position_bias = bias.get();
  const auto cross = cross_call(call, ctx);
  for (auto layer = first; layer < std::ssize(blocks_); ++layer) {
    self.mask.window = windows_[layer];
    self.cache = caches ? &(*caches)[layer] : nullptr;
    auto edited = self, edited_cross = cross;
    if (ctx.edit_heads) {
      ctx.edit_heads(site_, layer, edited);
      if (blocks_[layer]->cross()) ctx.edit_heads(kCrossSite, layer, edited_cross);
    }
    x = blocks_[layer]->forward(x, edited, edited_cross, aux);
    if (hidden) hidden->push_back(x);
  }
  return norm_ ? norm_(x) : x;  // [B,T,D]
}

std::vector<Site> Stack::sites() {
  std::vector<Site> sites{{.name = site_,
                           .stack = name_,
                           .queries = inputs_.tokens,
                           .keys = inputs_.tokens,
                           .query_length = inputs_.length,
                           .key_length = inputs_.length}};
  for (auto& block : blocks_) sites[0].layers.push_back(&block->attention());
  if (!blocks_.front()->cross()) return sites;
  sites.push_back({.name = kCrossSite,
                   .stack = name_,
                   .queries = inputs_.tokens,
                   .keys = inputs_.memory_tokens,
                   .query_length = inputs_.length,
                   .key_length = inputs_.memory_length});
  for (auto& block : blocks_) sites[1].layers.push_back(&block->cross());
  return sites;
}

std::string Stack::layer_path(const std::string& site, int64_t layer) const {
  return (name_.empty() ? "" : name_ + ".") + "blocks." + std::to_string(layer) +
         (site == site_ ? ".attention" : ".cross");
}

void Stack::exchange(const std::string& site, int64_t layer,
                     std::shared_ptr<AttentionHeads> heads) {
  auto& block = blocks_.at(layer);
  if (site == site_) return block->exchange_attention(std::move(heads));
  TORCH_CHECK(site == kCrossSite && block->cross(), "a stack of '", site_, "' has no site '", site,
              "'");
  block->exchange_cross(std::move(heads));
}

// Pairs of query and key that attend in a layer: about half when causal.
double Stack::attended_pairs(int64_t layer, int64_t length, bool causal) const {
  const auto T = static_cast<double>(length);
  const int64_t window = windows_.at(layer);
  const double W = window > 0 ? std::min<double>(window, T) : T;
  const double one_side = T * W - W * W / 2;
  return causal ? one_side : 2 * one_side;
}

double Stack::flops(int64_t T, int64_t S, bool causal) {
  double total = 0;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    auto& block = *blocks_[layer];
    const double pairs = attended_pairs(static_cast<int64_t>(layer), T, causal);
    total += block.attention()->flops(T, T, pairs);
    if (block.cross())
      total += block.cross()->flops(T, S, static_cast<double>(T) * static_cast<double>(S));
    total += block.mlp().flops_per_token() * static_cast<double>(T);
  }
  return total;
}

}  // namespace headlab
