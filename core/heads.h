// The contract: a kind of attention heads is a module x -> y, registered under its name.
//
// B batch, T queries, S keys, D d_model, H heads as built, d head_dim, e width of a head's values.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/attention/attend.h"
#include "core/attention/cache.h"
#include "core/attention/linear.h"
#include "core/attention/positions.h"
#include "core/attention/random.h"
#include "core/config/config.h"

namespace headlab {

class HeadProbe;
struct GateTarget;
struct LearnedGates;
struct Statistic;

// What every kind shares, written once under `model:` and handed down.
struct HeadShape {
  int64_t d_model = 0, heads = 0, head_dim = 0, kv_heads = 0;
  double dropout = 0;             // on the attention weights
  int64_t layer = 0, layers = 1;  // where in the stack: some kinds change with depth
  int64_t context = 0;            // longest sequence; 0: not known
};

// head_dim defaults to d_model / heads, kv_heads to heads: complains where that cannot be.
void check_heads(int64_t d_model, int64_t heads, std::optional<int64_t> head_dim,
                 std::optional<int64_t> kv_heads, const Complain& complain);

// What a kind promises. Read by tests, `describe` and forward()'s checks; no other code asks.
struct HeadTraits {
  bool independent = true;      // heads do not talk to each other: output gate 0 equals absence
  bool rows_sum_to_one = true;  // weights of a row that may attend sum to 1
  bool token_map = true;        // weights are over tokens
  bool causal = true, decodes = true, cross = true, grouped = false, rotary = true;
};

// Everything of one call beside x. Undefined tensors and null pointers mean "none".
struct HeadContext {
  Tensor memory;  // [B,S,D] source of keys and values; undefined: x itself
  AttentionMask mask;
  const PositionBias* position_bias = nullptr;
  Tensor bias;                     // additive, broadcasts to [B,H,T,S]
  const Rotary* rotary = nullptr;  // rotates queries and keys
  Tensor positions;             // [T] of the queries; default 0.. (with a cache: where it stands)
  Tensor gates;                 // broadcasts to [B,H,T] or [B,H,T,e]: scales each head's output
  Tensor offset;                // broadcasts to [B,H,T,e]: added after the gates
  Tensor uniform;               // bool [H]: these heads weigh their allowed keys equally
  Tensor noise;                 // [H] uniform gate noise given from outside; else from rng
  CounterRng rng;               // (seed, step, layer)
  LayerCache* cache = nullptr;  // decoding
  HeadProbe* probe = nullptr;   // null: nothing is observed and nothing is paid
  Backend backend = Backend::kAuto;

  // Filled by forward(), for the functions of attend.h.
  Tensor head_ids, kv_map;  // [H] of a sliced layer: original head; its row among the kv heads,
                            // where the kind is grouped
  Tensor alive;  // bool [H], undefined: all. Dead heads' gates are 0 already; kinds whose heads
                 // talk to each other compute as if these had never been there
  double dropout = 0;  // rate now: 0 in eval mode
};

enum class OverLayers { kSum, kMean };
struct AuxLoss {
  std::string name;
  Tensor value;  // scalar, already weighted by the config
  OverLayers over = OverLayers::kSum;
};
struct HeadOutput {
  Tensor y;                       // [B,T,D]
  Tensor gates = {};              // [B,T,H] or undefined
  std::vector<AuxLoss> aux = {};  // often empty
};

// Sorts the parameters that want other treatment than the model's (own rate, no decay).
struct ParameterGroups {
  std::vector<Tensor> gates;        // rate train.gate_lr, no weight decay
  std::vector<Tensor> multipliers;  // gradient ascent at train.multiplier_lr
};

// Options of a kind: a plain struct with one `visit`.
struct HeadOptions : Block {
  void visit(Fields&) override {}
  virtual HeadTraits traits() const { return {}; }
  // What is wrong with the options in a layer of this shape.
  virtual void check_shape(const HeadShape&, const Complain&) const {}
  // A number of open heads that the layer asks of its model; null: none.
  virtual const GateTarget* gate_target() const { return nullptr; }
};

// What a model or a case asks of its layer.
struct HeadDemands {
  bool causal = false, window = false, rotary = false, bias = false, cross = false;
};
// Complains where the options do not fit the shape, or the kind's traits not the demands.
void check_layer(const KindBlock& block, const HeadShape& shape, const HeadDemands& demands,
                 const Complain& complain);

// What heads are made of, one by one, without biases, rotations and norms of queries and keys: the
// score of a pair is scale (q_h x_i)(k_h x_j), what head h adds to y is o_h times the weighted mean
// of v_h x_j.
struct HeadMatrices {
  Tensor q, k;  // [H,r,D]
  Tensor v, o;  // [H,e,D], [H,D,e]
};

class AttentionHeads : public torch::nn::Module {
 public:
  AttentionHeads(const HeadShape& shape, const HeadTraits& traits);

  // x [B,T,D] -> y [B,T,D]. Checks ranks, shapes, masks and traits, fills defaults, maps original
  // head indices to this layer's, then calls compute(). Throws c10::Error naming sizes.
  HeadOutput forward(const Tensor& x, HeadContext ctx = {});

  const HeadTraits& traits() const { return traits_; }
  const HeadShape& shape() const { return shape_; }

  // The original indices: heads() of them, alive() says which are there. A sliced layer computes
  // the rows head_ids() only; everything outside it goes on counting in original indices.
  int64_t heads() const { return alive_.size(0); }
  std::vector<int64_t> head_ids() const;
  std::vector<bool> alive() const;

  // alive = all but these (and but those sliced away); {} restores. Saved as buffer `alive` [H].
  void mask_heads(const std::vector<int64_t>& heads);
  // The alive heads only: truly smaller, same function.
  virtual std::shared_ptr<AttentionHeads> slice() const = 0;
  // Conversions leave the buffers of indices the integers they are.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  using torch::nn::Module::to;

  // Of the layer's own heads, in the order of head_ids(), without gradient. Nothing for kinds whose
  // scores are not of two tokens. Where heads are mixed, routed or gated, these are what is mixed.
  virtual std::optional<HeadMatrices> matrices() const { return std::nullopt; }

  // Statistics beside those that every kind has: what compute() reports to the probe.
  virtual std::vector<Statistic> own_statistics() const;
  // Names of the losses that compute() may return while training.
  virtual std::vector<std::string> aux_names() const { return {}; }
  virtual void parameter_groups(ParameterGroups&) {}
  // Gates that training opens and shuts (core/gate_target.h); here there are none.
  virtual LearnedGates learned_gates() const;
  virtual void after_step() {}
  virtual int64_t value_width() const { return shape_.head_dim; }  // e
  // Forward floating-point operations of one example of T queries and S keys, `pairs` of which
  // attend (T S; causal: half of it). Here those of plain attention with its four projections.
  virtual double flops(int64_t T, int64_t S, double pairs) const;

 protected:
  // What slice() keeps: alive heads by original index and by row among this layer's own; the kv
  // heads (rows) that they still need; the new kv row of each; and the shape that is left.
  struct Kept {
    std::vector<int64_t> ids, rows, kv_rows, kv_map;
    HeadShape shape;
  };
  Kept kept_heads() const;
  // Of each own head the row of its keys and values among the layer's own.
  std::vector<int64_t> kv_rows() const;
  // A layer built with fewer heads takes over type, device, mode and indices of the one it came
  // from.
  void adopt_indices(const AttentionHeads& from, const Kept& kept);

  // A linear layer registered under `name`.
  Linear projection(const char* name, int64_t in, int64_t out, bool bias);
  // A saved buffer of indices: conversions of type leave it as it is.
  Tensor index_buffer(const char* name, const Tensor& indices);
  // For kinds that hold a layer of another kind: its compute() in this layer's context.
  static HeadOutput compute_inner(AttentionHeads& inner, const Tensor& x, const HeadContext& ctx) {
    return inner.compute(x, ctx);
  }

  HeadShape shape_;

 private:
  void restore_indices();
  virtual HeadOutput compute(const Tensor& x, const HeadContext& ctx) = 0;
  void check(const Tensor& x, const HeadContext& ctx) const;
  void select_own_heads(HeadContext& ctx) const;
  bool lacks_heads() const;  // some of the own heads are masked

  HeadTraits traits_;
  Tensor alive_;              // [H original] uint8
  Tensor head_ids_, kv_map_;  // undefined until sliced
  std::vector<std::pair<Tensor, at::ScalarType>> indices_;
  mutable std::vector<bool> lives_;  // alive_ on the host, as of lives_version_
  mutable int64_t lives_version_ = -1;
};

// One registered kind.
struct HeadKind {
  std::string name, summary;
  std::function<std::shared_ptr<HeadOptions>()> options;
  std::function<std::shared_ptr<AttentionHeads>(const HeadShape&, const HeadOptions&)> make;
};

std::vector<std::string> head_names();               // sorted
const HeadKind& head_kind(const std::string& name);  // ConfigError with the nearest name
const KindRegistry& head_registry();                 // for `attention: {kind: ...}` in a config
void register_heads(HeadKind kind);

// Builds a layer of the kind and options in `block`; what check_layer() says is a ConfigError with
// place.
std::shared_ptr<AttentionHeads> make_heads(const KindBlock& block, const HeadShape& shape,
                                           const HeadDemands& demands = {});

// An object of this type in a variant's file registers it: Heads(shape, Heads::Options).
template <class Heads>
struct RegisterHeads {
  RegisterHeads(const char* name, const char* summary) {
    using Options = typename Heads::Options;
    register_heads({name, summary, [] { return std::make_shared<Options>(); },
                    [](const HeadShape& shape, const HeadOptions& options) {
                      return std::make_shared<Heads>(shape, dynamic_cast<const Options&>(options));
                    }});
  }
};

// Head-major weights: copies blocks of `width` rows (columns) of the given heads; biases whole for
// columns.
void copy_heads(Linear& to, const Linear& from, const std::vector<int64_t>& heads, int64_t width);
void copy_head_columns(Linear& to, const Linear& from, const std::vector<int64_t>& heads,
                       int64_t width);

// A parameter with an entry for each head along `dim` keeps those of the given rows.
void keep_heads(Tensor& to, const Tensor& from, const std::vector<int64_t>& rows, int64_t dim = 0);

// Initialisation of GPT-2: weight N(0, std), bias 0. std of the projections that write into the
// residual stream is residual_std(layers) = 0.02 / sqrt(2 layers), of the others 0.02.
void init_normal(Linear& linear, double std);
double residual_std(int64_t layers);

}  // namespace headlab
