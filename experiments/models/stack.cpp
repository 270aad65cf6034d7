#include "experiments/models/stack.h"

#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/position_kinds.h"
#include "experiments/models/trained_parameters.h"
#include "experiments/system/memory.h"

namespace headlab {
namespace {

Tensor places(int64_t past, int64_t count, const Tensor& like) {
  return at::arange(past, past + count, like.options().dtype(at::kLong));  // [count]
}

HeadContext plain_call(const ModelContext& ctx) {
  HeadContext heads;
  heads.rng = ctx.rng;
  heads.observer = ctx.observer;
  heads.backend = ctx.backend;
  return heads;
}

}  // namespace

Tensor embedding_table(torch::nn::Module& embed, const char* name, int64_t rows, int64_t width,
                       double std, std::optional<int64_t> pad) {
  auto made = embed.register_module(name, torch::nn::Embedding(rows, width));
  torch::NoGradGuard no_grad;
  made->weight.normal_(0, std);
  if (pad) made->weight[*pad].zero_();
  return made->weight;
}

Tensor token_embedding(const Tensor& table, const Tensor& ids, std::optional<int64_t> pad) {
  return at::embedding(table, ids, pad.value_or(-1));
}

Tensor drop_beside_blocks(const Tensor& x, double p, CounterRng rng, int64_t layer) {
  rng.layer = layer;
  return dropout(x, p, rng, CounterRng::kResidualDropout);
}

Tensor scored_rows(const Tensor& x, const Tensor& targets) {
  TORCH_CHECK(targets.defined() && targets.dim() == 2, "scored rows need targets [B,T]");
  return x.flatten(0, 1).index_select(0, targets.flatten().ge(0).nonzero().squeeze(1));
}

Tensor mean_embedding(const Tensor& x, const Tensor& length) {
  const auto rows = within_length(length, x.size(1), x.device());
  const auto there = (rows.defined() ? rows.to(x.scalar_type()) : at::ones_like(x.select(2, 0)))
                         .unsqueeze(2);                              // [B,T,1]
  const auto mean = (x * there).sum(1) / there.sum(1).clamp_min(1);  // [B,D]
  return mean / mean.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
}

void require_data(bool there, const std::string& reads) {
  if (!there) throw ConfigError("model.kind: " + reads + ", which these data have not");
}

void require_answers(const std::string& head, const DataShape& data) {
  if ((head == "classes" && data.classes == 0) || (head == "values" && data.values == 0))
    throw ConfigError(fmt::format("model.head: {}: these data have none", head));
}

Stack::Stack(torch::nn::Module& model, torch::nn::Module& embed, const StackOptions& options,
             const StackInputs& inputs, int64_t context)
    : name_(options.name()),
      site_(options.site()),
      position_(options.position),
      inputs_(inputs),
      scales_(options.scales_embedding()),
      heads_(options.heads),
      context_(context) {
  if (position_->kind == "learned")
    places_weight_ = embedding_table(embed, "position", context, options.d_model, 0.02);
  if (position_->kind == "relative")  // serves every layer
    relative_weight_ = embedding_table(embed, "relative", position_->buckets, options.heads, 0.02);
  auto blocks = model.register_module("blocks", std::make_shared<torch::nn::Module>("blocks"));
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    windows_.push_back(options.window_of(layer));
    const auto& position = options.position_of(layer);
    auto& rotary = rotary_.emplace_back();
    if (position.kind == "rope")
      rotary.emplace(position.base,
                     position.layout == "half" ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                     position.fraction);
    biased_.push_back(position.kind == position_->kind);
    blocks_.push_back(
        blocks->register_module(std::to_string(layer), TransformerBlock(options, layer, context)));
    if (layer == 0)
      require_memory(parameter_bytes(*blocks_[0]) * static_cast<double>(options.layers - 1),
                     fmt::format("the weights of {} layers", options.layers));
  }
  if (options.ends_in_norm()) norm_ = model.register_module("norm", Norm(options));
}

std::optional<int64_t> Stack::learned_places() const {
  return places_weight_.defined() ? std::optional(places_weight_.size(0)) : std::nullopt;
}

Tensor Stack::at_places(const Tensor& tokens, int64_t past) const {
  const int64_t T = tokens.size(1), D = tokens.size(2);
  const auto embedded = scales_ ? tokens * std::sqrt(D) : tokens;
  if (places_weight_.defined()) {
    TORCH_CHECK(past + T <= context_, "place ", past + T - 1, " is beyond the ", context_,
                " learned positions");
    return embedded + places_weight_.narrow(0, past, T);
  }
  if (position_->kind != "sinusoidal") return embedded;
  return embedded + sinusoidal(places(past, T, embedded), D).to(embedded.scalar_type());
}

HeadContext Stack::self_call(const StackCall& call, const ModelContext& ctx,
                             const Tensor& positions) const {
  auto heads = plain_call(ctx);
  heads.mask.causal = call.causal;
  heads.mask.key_length = heads.mask.query_length = call.batch.*inputs_.length;
  heads.positions = positions;
  return heads;
}

HeadContext Stack::cross_call(const StackCall& call, const ModelContext& ctx) const {
  if (!inputs_.memory_length) return {};
  auto heads = plain_call(ctx);
  heads.memory = call.memory;
  heads.mask.query_length = call.batch.*inputs_.length;
  heads.mask.key_length = call.batch.*inputs_.memory_length;
  return heads;
}

std::unique_ptr<PositionBias> Stack::position_bias(bool causal, const Tensor& like) const {
  if (position_->kind == "alibi") return std::make_unique<Alibi>(heads_, like.options());
  if (position_->kind == "relative")
    return std::make_unique<RelativeBias>(relative_weight_, position_->max_distance, causal);
  return nullptr;
}

// As the link stood before block `first` in the pass that this one goes on from.
StackLinks Stack::known_links(const ModelContext& ctx, int64_t first) const {
  const auto found = ctx.known->links.find(name_);
  return found == ctx.known->links.end() ? StackLinks() : found->second.at(first);
}

Tensor Stack::forward(const Embed& embed, const StackCall& call, const ModelContext& ctx,
                      std::vector<AuxLoss>& aux) {
  // Only what sees no later token can be decoded.
  auto* caches = call.causal ? ctx.caches : nullptr;
  const int64_t past = caches && !caches->empty() ? caches->front().length() : 0;
  const auto layers = std::ssize(blocks_);
  const bool crosses = blocks_.front()->cross() != nullptr;
  if (caches) caches->resize(crosses ? 2 * layers : layers);
  const auto going_on = ctx.first_block.find(name_);
  const bool from_start = going_on == ctx.first_block.end();
  const int64_t first = from_start ? 0 : going_on->second;
  auto x = from_start ? embed(past) : ctx.known->at(name_).at(first);  // [B,T,D]
  StackLinks links;
  if (!from_start) links = known_links(ctx, first);
  if (ctx.hidden) (*ctx.hidden)[name_].clear(), ctx.hidden->links[name_].clear();
  const auto keep = [&] {
    if (!ctx.hidden) return;
    (*ctx.hidden)[name_].push_back(x);
    ctx.hidden->links[name_].push_back(links);
  };
  keep();

  auto self = self_call(call, ctx, places(past, x.size(1), x));
  const auto bias = position_bias(call.causal, x);
  self.link = &links.self;
  auto cross = cross_call(call, ctx);
  cross.link = &links.cross;
  for (auto layer = first; layer < layers; ++layer) {
    self.mask.window = windows_[layer];
    self.rotary = rotary_[layer] ? &*rotary_[layer] : nullptr;
    self.position_bias = biased_[layer] ? bias.get() : nullptr;
    self.cache = caches ? &(*caches)[layer] : nullptr;
    auto edited = self, edited_cross = cross;
    // Heads that keep nothing read the memory anew at each step: it stays as it is.
    if (crosses && caches && blocks_[layer]->cross()->traits().decodes)
      edited_cross.cache = &(*caches)[layers + layer];
    if (ctx.edit_heads) {
      ctx.edit_heads(site_, layer, edited);
      if (crosses) ctx.edit_heads(kCrossSite, layer, edited_cross);
    }
    x = blocks_[layer]->forward(x, edited, edited_cross, aux);
    if (blocks_[layer]->attention()->shape().offers.state) links.self.state = x;
    keep();
  }
  if (!norm_) return x;
  x = norm_(x);
  if (ctx.normed) (*ctx.normed)[name_] = x;
  return x;  // [B,T,D]
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
  auto& block = *blocks_.at(layer);
  const bool self = site == site_;
  TORCH_CHECK(self || (site == kCrossSite && block.cross()), "a stack of '", site_,
              "' has no site '", site, "'");
  (self ? block.attention() : block.cross()) =
      block.replace_module(self ? "attention" : "cross", std::move(heads));
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
