// Everything of one call of a layer beside x: what its caller says, and what the layer makes of it.
//
// B batch, T queries, S keys, D d_model, H heads as built, e width of a head's values. Undefined
// tensors and null pointers mean "none".
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>

#include "core/attention/call/masks.h"
#include "core/attention/maps/map.h"
#include "core/attention/random.h"

namespace headlab {

class AttentionHeads;
class HeadObserver;
class LayerCache;
class PositionBias;
class Rotary;

// A path of attention (core/attention/paths/paths.h), or the fastest.
enum class Backend { kAuto, kEager, kSdpa, kFlash, kRows };

// What layers of one pass say to later ones of their stack and site. The model makes one a pass;
// layers that are told to offer (HeadShape.offers) write it, others read it by
// AttentionHeads::linked(). Gradients pass through it.
struct LayerLink {
  Tensor first_values = {};  // [B,Hkv,T,e] of the first layer as built, as projected
  // [B,Hkv,S,.] as the last layer that offered them attended to them.
  Tensor keys = {}, values = {};
  Tensor state = {};  // [B,T,D] the residual stream behind the last layer that offered it
};
// Parts of it that a layer offers, or reads.
struct LinkParts {
  bool first_values = false, keys_values = false, state = false;
  bool any() const { return first_values || keys_values || state; }
};

// What projections read.
struct Source {
  Tensor memory;     // [B,S,D] source of keys and values; undefined: x itself
  Tensor positions;  // [T] or [B,T] of the queries; default 0.. (with a cache: where it stands)
  const Rotary* rotary = nullptr;  // rotates queries and keys
  LayerCache* cache = nullptr;     // decoding
  LayerLink* link = nullptr;       // what earlier layers of this pass offered
};

// Who sees whom, and with what bias.
struct Scope {
  AttentionMask mask = {};
  Tensor bias = {};  // additive, broadcasts to [B,H,T,S]; -infinity hides the key
  const PositionBias* position_bias = nullptr;  // by the distance of key and query
  bool places = true;  // queries and keys stand in one sequence; never where there is a memory
};

// Copies of x [B,T,D] (of the memory [B,S,D]) for one input each: by original head what its q, k or
// v is made of, k and v of each query head its own also where heads share them; and what else of
// the layer reads its input (routers, gates, generators of mixings), of all heads. What is not here
// reads x and the memory themselves.
struct HeadInputs {
  std::map<int64_t, Tensor> q = {}, k = {}, v = {};
  Tensor rest = {}, rest_of_memory = {};
};

// What an experimenter changes of what heads do, in original heads.
struct Edits {
  Tensor gates;    // broadcasts to [B,H,T] or [B,H,T,e]: scales each head's output
  Tensor offset;   // broadcasts to [B,H,T,e]: added after the gates
  Tensor uniform;  // bool [H]: these heads weigh their allowed keys equally
  Tensor noise;    // [H] uniform gate noise given from outside; else from rng
  const HeadInputs* inputs = nullptr;  // not together with a cache
  // Gives what takes the place of the outputs after gates and offset: [B,H,T,e] -> the same sizes.
  std::function<Tensor(const Tensor&)> outputs = {};
};

// The caller's.
struct HeadContext : Source, Scope, Edits {
  // (seed, step), and the layer adds its site and number; neither: each pass draws anew.
  CounterRng rng;
  HeadObserver* observer = nullptr;  // null: nothing is observed and nothing is paid
  Backend backend = Backend::kAuto;
};

// y scale + offset, of what broadcasts to y; undefined: 1 and 0.
struct Affine {
  Tensor scale = {}, offset = {};
  std::function<void(const Tensor&)> sees = {};  // y before

  Tensor operator()(const Tensor& y) const;
  Affine before(const Affine& outer) const;  // outer(this(y)) as one
};

// What a wrapper asks of the layer inside it, in that layer's heads.
struct Shaping {
  // On projections with their biases, before norm, rotation and cache: q [B,H,T,d], k, v
  // [B,Hkv,T,.]. Of two wrappers the inner one's come first.
  Affine q = {}, k = {}, v = {};
  // [B,Hkv,S,.] as they are attended to, for a layer without projections of them
  // (HeadShape.keys_given, values_given).
  Tensor keys = {}, values = {};
  // Broadcasts to [B,H,T]: the share of a head's output along its own value, of at least
  // exclusion_eps in square, that is taken out before gates and offset.
  Tensor exclusion = {};
  double exclusion_eps = 1e-8;
  // Is told outputs o and own values v [B,H,T,e], and o v / max(|v|^2, eps) [B,H,T,1].
  std::function<void(const Tensor& o, const Tensor& v, const Tensor& along)> excludes = {};

  bool projections() const;  // whether it changes any
};

// The layer's: AttentionHeads::forward() alone makes one, with every field in this layer's heads.
struct HeadCall : HeadContext {
  Tensor head_ids, kv_map;  // [H] of a sliced layer: original head; its row among the kv heads,
                            // where the kind is grouped
  Tensor alive;  // bool [H], undefined: all. Dead heads' gates are 0 already; kinds whose heads
                 // talk to each other compute as if these had never been there
  double dropout = 0;            // rate now: 0 in eval mode
  Shaping shaping;               // a wrapper's; of a layer that stands alone nothing
  MapPtr map = plain_softmax();  // turns scores into weights; holds numbers of this layer's heads

  // The same call where other keys may be seen; that nobody watches; with dropout of its own; with
  // these gates beside the context's.
  HeadCall within(const Scope& scope) const;
  HeadCall unobserved() const;
  HeadCall with_seed(uint64_t index) const;
  HeadCall with_gates(const Tensor& gates) const;
  // A part of it, that nobody watches: `count` of the H heads, with keys and values of their own;
  // or heads that a kind makes up (tiles), likewise.
  HeadCall of_heads(int64_t first, int64_t count, int64_t H) const;
  HeadCall for_made_up_heads(const Scope& scope) const;
  // For what computes weights without a layer: the context as it stands.
  static HeadCall from_context(const HeadContext& context);

 private:
  friend class AttentionHeads;
  explicit HeadCall(const HeadContext& context) : HeadContext(context) {
    places = places && !memory.defined();
    hide_by_bias(bias, mask.allowed);
  }
};

}  // namespace headlab
