// The contract: a kind of attention heads is a module x -> y, registered under its name.
//
// AttentionHeads begins with what a caller asks of any layer. Then comes what a kind must do, what
// it may do, and what is there for wrappers (core/wrapped_heads.h) alone.
//
// B batch, T queries, S keys, D d_model, H heads as built, d head_dim, e width of a head's values.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/attention/attend.h"
#include "core/attention/call/cache.h"
#include "core/attention/call/context.h"
#include "core/attention/call/observer.h"
#include "core/attention/call/statistic.h"
#include "core/attention/layers.h"
#include "core/attention/positions/positions.h"

namespace headlab {

class AttentionHeads;
class KindBlock;
struct LearnedGates;
struct MapOptions;

// How a host initialises its projections: as GPT-2 (N(0, 0.02), what writes into the residual
// stream by residual_std), N(0, 0.02) alike (BERT, ViT), or Xavier uniform (torch's and fairseq's
// Transformer).
enum class Init { kGpt2, kPlain, kXavier };

// What every kind shares, written once under `model:` and handed down.
struct HeadShape {
  int64_t d_model = 0, heads = 0, head_dim = 0, kv_heads = 0;
  double dropout = 0;             // on the attention weights
  int64_t layer = 0, layers = 1;  // where in the stack: some kinds change with depth
  int64_t context = 0;            // longest sequence; 0: not known
  std::string site = "self";      // which attention of the model: its draws and its statistics
  Init init = Init::kGpt2;
  bool init_as_host = false;  // `init_weights: host`; of a layer that this one holds, too
  LinkParts offers = {};      // what the layer says to later ones
  LinkParts offered = {};     // what it reads that an earlier one says; a layer alone: nothing
  // Keys, values that the layer has no projection for: a wrapper gives them (Shaping).
  bool keys_given = false, values_given = false;
  // Set by slice() alone: what is left of the kind's own groups, and of the layer that is wrapped.
  std::map<std::string, int64_t> groups = {};
  std::shared_ptr<AttentionHeads> wrapped = nullptr;
};

// Masks that a kind takes: of any pair of query and key, or of keys, hidden from all queries alike.
enum class HeadMasks { kAny, kKeys };

// A name of an earlier version: what uses it does not compile, and is told what stands for it now.
struct GoneTokenMap {
  GoneTokenMap() = default;
  template <class T>
  GoneTokenMap(T) {  // NOLINT(google-explicit-constructor)
    static_assert(!sizeof(T),
                  "HeadTraits::token_map = false is now .map = HeadMap::kCompressed or "
                  "kNone, .windows = false, .biases = false, .masks = HeadMasks::kKeys");
  }
  template <class T>
  operator T() const {  // NOLINT(google-explicit-constructor)
    static_assert(!sizeof(T), "HeadTraits::token_map is now map, windows, biases and masks");
    return {};
  }
};

// What a kind promises. Read by tests, `describe`, check_layer() and forward()'s checks, and told
// to observers.
struct HeadTraits {
  bool independent = true;      // heads do not talk to each other: output gate 0 equals absence
  bool rows_sum_to_one = true;  // weights of a row that may attend sum to 1
  [[no_unique_address]] GoneTokenMap token_map = {};
  HeadMap map = HeadMap::kTokens;  // what weights are over
  bool windows = true;             // a window may hide keys
  bool biases = true;              // scores of two tokens may be biased
  HeadMasks masks = HeadMasks::kAny;
  bool causal = true, bidirectional = true;
  bool decodes = true, cross = true, grouped = false, rotary = true;
  bool plain_projections = false;  // q, k, v are one product each: a wrapper may shape them
  bool own_values = false;         // each token has a value of width e: a wrapper may exclude it
  bool inputs = true;              // q, k, v of each head, and the rest, from copies of their own
  // Weights of a row are made of this many rows before it too, each with its own mask: a window
  // hides what lies so much further back.
  int64_t rows_before = 0;
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

// What heads are made of, one by one, without biases, rotations and norms of queries and keys: the
// score of a pair is scale (q_h x_i)(k_h x_j), what head h adds to y is o_h times the weighted mean
// of v_h x_j.
struct HeadMatrices {
  Tensor q, k;  // [H,r,D]
  Tensor v, o;  // [H,e,D], [H,D,e]
};

// Groups of heads that parameters have entries for: the layer's heads, those of keys and values, or
// a group that the kind names by group_heads().
inline constexpr const char* kQueryHeads = "heads";
inline constexpr const char* kKvHeads = "kv";

// Where the heads lie along one dimension of a parameter: `repeat` runs of `count` heads, each head
// with as many entries as there is room for. A run has the group's heads from `first` on.
struct HeadAxis {
  int64_t dim = 0;
  std::string group = kQueryHeads;
  int64_t repeat = 1;
  int64_t first = 0;
  std::optional<int64_t> count = {};  // default: all that the group has
};
using HeadAxes = std::vector<HeadAxis>;  // none: all heads share the parameter

inline HeadAxes heads_along(std::initializer_list<int64_t> dims) {
  HeadAxes axes;
  for (int64_t dim : dims) axes.push_back({.dim = dim});
  return axes;
}
inline HeadAxes rows_of_heads() { return {{.dim = 0}}; }
inline HeadAxes rows_of_group(const char* group) { return {{.dim = 0, .group = group}}; }
inline HeadAxes rows_of_kv_heads() { return rows_of_group(kKvHeads); }
inline HeadAxes columns_of_heads() { return {{.dim = 1}}; }
inline HeadAxes shared_by_heads() { return {}; }

// What a slice keeps: alive heads by original index and by row among the layer's own; of each other
// group the rows that they still need, and of each alive head its row among these; and the shape
// that is left.
struct SlicePlan {
  struct Group {
    std::vector<int64_t> rows, of_head;
  };
  std::vector<int64_t> ids, rows;
  std::map<std::string, Group> groups;
  HeadShape shape;
  std::vector<bool> alive;  // of all original heads
};

class AttentionHeads : public torch::nn::Module {
 public:
  AttentionHeads(const HeadShape& shape, const HeadTraits& traits);

  // x [B,T,D] -> y [B,T,D]. Checks ranks, shapes, masks and traits, fills defaults, maps original
  // head indices to this layer's, then calls compute(). Throws c10::Error naming sizes.
  HeadOutput forward(const Tensor& x, HeadContext ctx = {});

  const HeadTraits& traits() const { return traits_; }
  const HeadShape& shape() const { return shape_; }
  const std::string& kind() const { return kind_; }  // as it is registered; "" where nobody said
  // Likewise of the map that its options choose by name; "" where they choose none.
  const std::string& map_kind() const { return map_kind_; }
  // What make_heads() made this layer of, before any head was sliced away: with these
  // restore_heads() builds it again. Null: it was made otherwise.
  const KindBlock* made_of() const { return made_of_.get(); }
  const HeadShape& whole_shape() const { return whole_shape_; }

  // The original indices: heads() of them, alive() says which are there. A sliced layer computes
  // the rows head_ids() only; everything outside it goes on counting in original indices.
  int64_t heads() const { return alive_.size(0); }
  std::vector<int64_t> head_ids() const;
  std::vector<bool> alive() const;

  // alive = all but these (and but those sliced away); {} restores. Saved as buffer `alive` [H].
  void mask_heads(const std::vector<int64_t>& heads);
  // The alive heads only: truly smaller, same function. Every parameter keeps its entries of these
  // heads, and whether it is trained. c10::Error for a layer that did not come from its kind's
  // make().
  std::shared_ptr<AttentionHeads> slice() const { return slice_to(alive()); }
  // Conversions leave the buffers of indices the integers they are.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  using torch::nn::Module::to;

 private:
  // What a kind must do: x -> y, in this layer's heads.
  virtual HeadOutput compute(const Tensor& x, const HeadCall& call) = 0;

 protected:
  // What a kind must register: its parameters, and where its heads lie in each. A linear layer's
  // axes are those of its weight [out,in]; its bias [out] has the heads of the rows.
  Linear projection(const char* name, int64_t in, int64_t out, bool bias, const HeadAxes& axes);
  Tensor parameter(const char* name, const Tensor& value, const HeadAxes& axes);
  // The output projection `o` [D, width], head-major columns.
  Linear& output_projection(int64_t width, bool bias);
  // What one input of the heads is made of: make(x) [B,n,S,.], n a multiple of the layer's query
  // heads (kQuery) or key/value heads; of each head from its own copy where call.inputs has one.
  // With copies for keys or values both are of every query head: [B,H,S,.].
  enum class Input { kQuery, kKey, kValue };
  Tensor from_inputs(Input input, const Tensor& x, const HeadCall& call,
                     const std::function<Tensor(const Tensor&)>& make) const;
  // Applies the context's edits, joins and projects: o [B,H,T,e] -> [B,T,D]. With the values
  // v [B,Hkv,S,e] that o is made of: without the share of the own ones that a wrapper takes out, as
  // the trait own_values promises; a kind that changes o before calls exclude_own() itself.
  Tensor output(const Tensor& o, const HeadCall& call);
  Tensor output(const Tensor& o, const Tensor& v, const HeadCall& call);

  HeadShape shape_;
  Linear o_{nullptr};

 public:
  // What a kind may override. Matrices are of the layer's own heads, in the order of head_ids(),
  // without gradient; none for kinds whose scores are not of two tokens. Where heads are mixed,
  // routed or gated, these are what is mixed.
  virtual std::optional<HeadMatrices> matrices() const { return std::nullopt; }
  // Statistics beside those that every kind has: what compute() reports to the observer; and these
  // with what is reported of the layer's map of scores to weights.
  virtual std::vector<Statistic> own_statistics() const { return {}; }
  virtual std::vector<Statistic> statistics() const;
  // Names of the losses that compute() may return while training.
  virtual std::vector<std::string> aux_names() const { return {}; }
  virtual void parameter_groups(ParameterGroups&) {}
  // Gates that training opens and shuts (core/gate_target.h); here there are none.
  virtual LearnedGates learned_gates() const;
  // Behind every update: brings parameters that it moved out of their range back into it, and
  // takes over what the passes of the update have counted.
  virtual void after_step();
  virtual int64_t value_width() const { return shape_.head_dim; }  // e
  // The longest sequence that it reads; none: any.
  virtual std::optional<int64_t> longest() const { return std::nullopt; }
  virtual Tensor output_weight() const;  // [D, H*e]; undefined: no output projection
  // Forward floating-point operations of one example of T queries and S keys, `pairs` of which
  // attend (T S; causal: half of it). Here those that follow from what was registered: projections,
  // of S rows where they are of key/value heads; matrices that mix the heads of a pair; vectors
  // cost nothing; and flops_of_pair(). NaN, the kind does not say, where anything else is
  // registered.
  virtual double flops(int64_t T, int64_t S, double pairs) const;

 protected:
  // What it may register. What turns scores into weights, for attend() and its like
  // (core/head_kinds.h), with what the map learns; the softmax where nobody says.
  void set_map(const MapOptions& options);
  // Of a parameter or buffer that a submodule registers: "norm.weight".
  void lay_out(const std::string& name, const HeadAxes& axes);
  // A saved buffer of indices: conversions of type leave it as it is. Not cut by slice().
  Tensor index_buffer(const char* name, const Tensor& indices);
  // A group of `rows` heads of the kind's own, such as latents that several heads share: head h
  // belongs to row h / (H / rows). Registers the buffer `NAME_map` [H], the row of each head.
  // Returns the rows there are: in a sliced layer those that its heads still need.
  int64_t group_heads(const char* name, int64_t rows);
  // What the rows of such a group are, for each head: t [B,rows,...] -> [B,H,...].
  Tensor of_heads(const char* group, const Tensor& t) const;
  // Of each own head its row among the group's.
  std::vector<int64_t> group_rows(const std::string& group) const;

  // A part of the link that an earlier layer has offered: linked(call, &LayerLink::first_values).
  // c10::Error naming this layer where none has.
  const Tensor& linked(const HeadCall& call, Tensor LayerLink::*part) const;
  // Of what all key/value heads as built have, the part of those that this layer has: [B,Hkv,T,.].
  Tensor own_kv_heads(const Tensor& built) const;
  // Operations of a pair of query and key that attends, of all heads; NaN: the kind does not say.
  virtual double flops_of_pair() const;
  // For kinds whose options change when heads go: the smaller layer, with any weights. Here the
  // same options in the shape that is left.
  virtual std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const;
  // For kinds whose heads lie in no axis: what a slice keeps of the parameter or buffer `name`.
  // Here its entries by the axes it was registered with.
  virtual Tensor sliced(const std::string& name, const Tensor& whole, const SlicePlan& plan) const;
  SlicePlan slice_plan(const std::vector<bool>& alive) const;

  // Names of earlier versions.
  template <class... T>
  static HeadOutput compute_inner(T&&...) {
    static_assert(sizeof...(T) > 9,
                  "compute_inner() is now run_inner() of WrappedHeads: derive from it "
                  "(core/wrapped_heads.h)");
    return {};
  }
  template <class... T>
  static std::shared_ptr<AttentionHeads> slice_inner(T&&...) {
    static_assert(sizeof...(T) > 9,
                  "slice_inner() is gone: derive from WrappedHeads (core/wrapped_heads.h), which "
                  "slices the inner layer");
    return nullptr;
  }

 private:
  friend class WrappedHeads;  // runs, masks and slices the layer inside

 public:
  // What is set where a kind's make() builds the layer: how it is built with another shape, and
  // of what make_heads() made it. By then every parameter must have been registered by the
  // functions below; c10::Error names one that was not.
  using Maker = std::function<std::shared_ptr<AttentionHeads>(const HeadShape&)>;
  void set_maker(Maker make);
  void set_made_of(std::shared_ptr<const KindBlock> block, const HeadShape& shape);

 private:
  // What is last read of a small tensor of integers: on a GPU each reading waits for all work
  // queued there. Several threads may run one layer.
  class HostCopy {
   public:
    std::vector<int64_t> read(const Tensor& t);

   private:
    std::mutex mutex_;
    std::vector<int64_t> values_;
    int64_t version_ = -1;
  };
  struct OwnGroup {
    int64_t rows = 0;
    Tensor of_head;  // [H]
  };

  MapPtr map() const;
  std::shared_ptr<AttentionHeads> slice_to(const std::vector<bool>& alive) const;
  void check(const Tensor& x, const HeadContext& ctx) const;
  void check_inputs(const Tensor& x, const HeadContext& ctx) const;
  void check_shaping(const Shaping& shaping) const;
  void select_own_heads(HeadCall& call) const;
  void adopt_indices(const AttentionHeads& from, const SlicePlan& plan);
  void restore_indices();
  void check_axes() const;
  bool is_inner(const std::string& name) const;
  int64_t heads_in(const std::string& group) const;
  double registered_flops(const std::string& name, const Tensor& parameter, int64_t T, int64_t S,
                          double pairs) const;

  HeadTraits traits_;
  MapPtr map_ = plain_softmax();  // without what it learns,
  Tensor learned_of_map_;         // [H]; undefined: nothing
  std::string kind_, map_kind_;
  std::shared_ptr<const KindBlock> made_of_;
  HeadShape whole_shape_;
  Maker make_;
  std::map<std::string, HeadAxes> axes_;  // by full name
  std::set<std::string> projections_;     // full names of the weights of projection()
  std::map<std::string, OwnGroup> own_groups_;
  Tensor alive_;                                                      // [H original] uint8
  Tensor head_ids_, kv_map_;                                          // undefined until sliced
  std::map<std::string, std::pair<Tensor, at::ScalarType>> indices_;  // buffers by name
  mutable HostCopy alive_on_host_, head_ids_on_host_;
};

// The numbers of a small tensor of integers.
std::vector<int64_t> to_vector(const Tensor& integers);

// Initialisation of the host's choice: of q, k, v and their like; and of what writes into the
// residual stream. Biases 0.
void init_input(Linear& linear, const HeadShape& shape);
void init_output(Linear& linear, const HeadShape& shape);
// Of all projections, in the order in which plain heads draw: `inputs`, then `output`.
void init_projections(std::initializer_list<Linear*> inputs, Linear& output,
                      const HeadShape& shape);

// Weight N(0, std), bias 0. residual_std(layers) = 0.02 / sqrt(2 layers): GPT-2's for what writes
// into the residual stream.
void init_normal(Linear& linear, double std);
double residual_std(int64_t layers);

}  // namespace headlab
