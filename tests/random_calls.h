// Calls of layers drawn at random: a kind with options, in a shape, with everything that an
// experiment may ask of it beside x. The same kind and number always give the same call.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/random_options.h"

namespace headlab::testing {

// x and the tensors of a context in one type, of which gradients may be asked.
struct Inputs {
  Tensor x;
  HeadContext ctx;
  std::shared_ptr<Rotary> rotary = nullptr;
  std::shared_ptr<PositionBias> position_bias = nullptr;
  std::vector<std::pair<std::string, Tensor>> leaves = {};  // those with gradients
};

// What kinds promise, as far as calls are drawn by it.
inline bool weighs_tokens(const HeadTraits& t) { return t.map == HeadMap::kTokens; }
inline bool takes_windows(const HeadTraits& t) { return t.windows; }
inline bool takes_biases(const HeadTraits& t) { return t.biases; }
inline bool takes_any_mask(const HeadTraits& t) { return t.masks == HeadMasks::kAny; }

class RandomCall {
 public:
  RandomCall(const std::string& kind, uint64_t number)
      : kind_(kind), seed_(seed_of(kind, number)), draw_(seed_) {
    torch::manual_seed(seed_);
    draw_shape();
    options_ = accepted_options(draw_, kind, shape_);
    text_ = kind + options_ + " |" + text_ + (shape_.kv_heads < shape_.heads ? " kv_heads " : "");
    if (shape_.kv_heads < shape_.heads) text_ += std::to_string(shape_.kv_heads);
    const auto heads = layer(at::kDouble);
    traits_ = heads->traits();
    torch::manual_seed(seed_);
    draw_sizes();
    draw_mask();
    draw_biases();
    draw_edits(heads->value_width());
    cotangent = rounded(x_.sizes());
    for (int64_t h = 0; h < shape_.heads; ++h)
      if (draw_.coin(0.4)) gone.push_back(h);
  }

  const std::string& text() const { return text_; }
  const HeadTraits& traits() const { return traits_; }
  int64_t tokens() const { return x_.size(1); }
  int64_t number_of_layer() const { return shape_.layer; }
  bool is_cross() const { return ctx_.memory.defined(); }
  Draws& draws() { return draw_; }

  Tensor cotangent;           // [B,T,D]
  std::vector<int64_t> gone;  // heads to be masked and sliced away

  // A layer of its own for each use: a pass may change buffers.
  std::shared_ptr<AttentionHeads> layer(at::ScalarType type, bool training = false) const {
    const auto heads = drawn_layer(kind_, shape_, options_, seed_);
    heads->to(type);
    heads->train(training);
    return heads;
  }

  // y in float64 where x and the weights are rounded a little otherwise than to bfloat16.
  Tensor moved_a_little() const {
    at::NoGradGuard no_grad;
    const auto moved = [](const Tensor& t) {
      return t * (1 + (at::rand_like(t) - 0.5) * 0x1p-7);  // by up to half a unit in the last place
    };
    const auto heads = layer(at::kDouble);
    for (auto& p : heads->parameters()) p.copy_(moved(p));
    auto in = inputs(at::kDouble, /*gradients=*/false, at::kDouble);
    in.ctx.backend = Backend::kEager;
    return heads->forward(moved(in.x), in.ctx).y;
  }

  // `scores`: the type of biases, which a layer under autocast is given in float32.
  Inputs inputs(at::ScalarType type, bool gradients, at::ScalarType scores) const {
    Inputs in{x_.to(type), ctx_};
    const auto leaf = [&](const char* name, Tensor& t, at::ScalarType as) {
      if (!t.defined()) return;
      t = t.to(as).detach().clone();
      if (gradients) in.leaves.emplace_back(name, t.requires_grad_());
    };
    leaf("x", in.x, type);
    leaf("memory", in.ctx.memory, type);
    leaf("gates", in.ctx.gates, type);
    leaf("offset", in.ctx.offset, type);
    if (learns_bias_) leaf("bias", in.ctx.bias, scores);
    if (in.ctx.bias.defined()) in.ctx.bias = in.ctx.bias.to(scores);
    if (rope_) in.rotary = std::make_shared<Rotary>(*rope_);
    in.ctx.rotary = in.rotary.get();
    if (alibi_) in.position_bias = std::make_shared<Alibi>(shape_.heads, scores);
    if (relative_.defined()) {
      auto weight = relative_;
      leaf("relative bias", weight, scores);
      in.position_bias = std::make_shared<RelativeBias>(weight, 20, ctx_.mask.causal);
    }
    in.ctx.position_bias = in.position_bias.get();
    return in;
  }

 private:
  // Of the name by FNV-1a, so that no kind has the calls of another.
  static uint64_t seed_of(const std::string& kind, uint64_t number) {
    uint64_t name = 14695981039346656037U;
    for (const unsigned char letter : kind) name = (name ^ letter) * 1099511628211U;
    return mix_bits(name + number) >> 1;
  }
  static Tensor rounded(at::IntArrayRef sizes) {
    return random(sizes).to(at::kBFloat16).to(at::kDouble);
  }
  bool drawn(double chance, const std::string& what) {
    const bool asked = draw_.coin(chance);
    if (asked) text_ += " " + what;
    return asked;
  }
  int64_t batch_or_one() { return draw_.coin() ? x_.size(0) : 1; }

  void draw_shape() {
    shape_ = small_shape();
    shape_.layer = draw_.pick(0, 2);
    shape_.kv_heads = draw_.one_of(std::array<int64_t, 5>{4, 4, 4, 2, 1});
    if (!is_accepted(kind_, shape_, "")) shape_.kv_heads = shape_.heads;
    const bool is_long = draw_.coin(0.06);
    tokens_ = is_long ? draw_.pick(256, 280) : draw_.pick(1, draw_.coin(0.2) ? 40 : 12);
    // What computes by blocks of keys draws its own: bigbird where a call is long.
    const bool by_blocks = is_long || kind_ == "chosen_blocks";
    shape_.dropout = !by_blocks && drawn(0.3, "dropout") ? 0.3 : 0;
    shape_.context = std::max<int64_t>(tokens_, 12);
  }

  void draw_sizes() {
    const int64_t B = tokens_ > 100 ? 1 : draw_.pick(1, 3);
    x_ = rounded({B, tokens_, shape_.d_model});
    keys_ = tokens_;
    text_ += " B " + std::to_string(B) + " T " + std::to_string(tokens_) + " layer " +
             std::to_string(shape_.layer);
    if (traits_.cross && draw_.coin(0.25)) {
      keys_ = draw_.pick(1, 11);
      ctx_.memory = rounded({B, keys_, shape_.d_model});
      text_ += " memory " + std::to_string(keys_);
    }
  }

  void draw_mask() {
    auto& mask = ctx_.mask;
    const int64_t B = x_.size(0);
    const bool may = traits_.causal && !is_cross();
    mask.causal = may && (!traits_.bidirectional || draw_.coin(0.7));
    if (mask.causal) text_ += " causal";
    if (takes_windows(traits_) && !is_cross() && draw_.coin(0.3)) {
      mask.window = draw_.pick(1, 6);
      text_ += " window " + std::to_string(mask.window);
    }
    if (drawn(0.3, "lengths")) {
      mask.key_length = at::randint(0, keys_ + 1, {B}, at::kLong);
      if (!is_cross()) mask.query_length = mask.key_length;
    }
    if (!drawn(0.3, "allowed")) return;
    const bool any = takes_any_mask(traits_);
    const int64_t H = any && draw_.coin(0.4) ? shape_.heads : 1,
                  T = any && draw_.coin(0.6) ? tokens_ : 1;
    mask.allowed = at::rand({batch_or_one(), H, T, keys_}) < 0.75;
    text_ += H > 1 ? " by head" : "";
  }

  void draw_biases() {
    if (traits_.rotary && !is_cross() && drawn(0.3, "rope"))
      rope_ = std::make_shared<Rotary>(10000,
                                       draw_.coin() ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                                       draw_.coin() ? 1 : 0.5);
    if (drawn(0.2, "positions"))
      ctx_.positions = at::arange(tokens_) * draw_.pick(1, 3) + draw_.pick(0, 9);
    if (!takes_biases(traits_)) return;
    if (drawn(0.3, "bias")) {
      ctx_.bias = rounded(
          {batch_or_one(), draw_.coin() ? shape_.heads : 1, draw_.coin(0.7) ? tokens_ : 1, keys_});
      learns_bias_ = drawn(0.3, "that learns");
      if (drawn(0.2, "that hides"))
        ctx_.bias.masked_fill_(at::rand(ctx_.bias.sizes()) < 0.2, kHiddenScore);
    }
    if (is_cross() || !drawn(0.3, "position bias")) return;
    alibi_ = drawn(0.5, "by alibi");
    if (alibi_) return;
    relative_ = rounded({8, shape_.heads});
    text_ += " relative";
  }

  void draw_edits(int64_t e) {
    const int64_t H = shape_.heads;
    if (drawn(0.3, "gates"))
      ctx_.gates = draw_.coin(0.7)
                       ? at::rand({batch_or_one(), H, draw_.coin() ? tokens_ : 1}, at::kDouble)
                       : at::rand({1, H, 1, e}, at::kDouble);
    if (drawn(0.15, "offset")) ctx_.offset = rounded({1, H, 1, e});
    if (drawn(0.15, "noise")) ctx_.noise = at::rand({H}, at::kDouble);
    if (takes_biases(traits_) && drawn(0.15, "uniform")) ctx_.uniform = at::rand({H}) < 0.5;
    ctx_.rng = {.seed = seed_, .step = 3};
  }

  std::string kind_, options_, text_;
  uint64_t seed_;
  Draws draw_;
  HeadShape shape_;
  HeadTraits traits_;
  int64_t tokens_ = 0, keys_ = 0;
  Tensor x_;
  HeadContext ctx_;  // in float64
  std::shared_ptr<Rotary> rope_;
  Tensor relative_;
  bool alibi_ = false, learns_bias_ = false;
};

}  // namespace headlab::testing
