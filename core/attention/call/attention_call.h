// One call of attention, as every path, kernel and observer of it reads it.
//
// B batch, T queries, S keys, H query heads, d width of queries and keys, e width of values.
// Undefined tensors: none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/attention/call/context.h"
#include "core/attention/composed/composition.h"
#include "core/attention/weight_dropout.h"
#include "core/kernels/attention_rows.h"

namespace headlab {

using at::Tensor;
struct ChosenRows;

struct AttentionCall {
  // Of any floating type.
  Tensor q, k, v;  // [B,H,T,d], [B,Hkv,S,d], [B,Hkv,S,e]
  double scale = 1;

  // Which keys a row sees.
  KeyReach reach{kUnlimited, kUnlimited};
  bool causal = false;              // of the reach: no key lies ahead of any row
  bool places = true;               // queries and keys stand in one sequence
  Tensor key_length, query_length;  // [B] int64
  Tensor allowed;                   // bool, broadcasts to [B,H,T,S]: of the mask, and where a bias
                                    // is not -infinity

  // Added to the scores, in score_type().
  Tensor bias;           // broadcasts to [B,H,T,S], not -infinity
  Tensor distance_bias;  // [H,S+T-1] at the distances j - i = 1-S .. T-1

  Tensor kv_map;          // [H] the row of k and v that a head uses; undefined: h // (H / Hkv)
  Tensor uniform;         // bool [H]: heads whose scores are all equal
  Composition pre, post;  // of the scores before biases; of the weights
  MapPtr map = plain_softmax();

  double dropout = 0;
  CounterRng rng;
  Tensor row_places;                 // [B,H,T] int64 where queries stand; undefined: one behind the
  int64_t first_place = 0;           // other from first_place on, whatever keys a window let go of
  const ChosenRows* rows = nullptr;  // then q is [N,d], of these rows alone
  bool wants_lse = false;            // AttendedRows::lse
  Backend backend = Backend::kAuto;

  AttentionCall() = default;
  AttentionCall(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                double scale);
  // Without q, k and v: who sees whom, with what bias (as it stands), of T queries and S keys of
  // the type and device of `like`.
  AttentionCall(const HeadCall& call, int64_t T, int64_t S, const Tensor& like);

  bool is_composed() const { return !pre.is_identity() || !post.is_identity(); }
  // The softmax of scores that heads do not mix.
  bool is_plain() const { return !is_composed() && map->is_softmax(); }
  Dropout dropped() const { return weight_dropout(dropout, rng); }
  at::ScalarType score_type() const;  // float64 for queries of it, else float32
  Tensor keys() const;                // k and v of each query head: [B,H,S,.]
  Tensor values() const;
  Tensor allowed_keys() const;  // with reach and lengths; undefined where every key is allowed
  Tensor products() const;      // scale q k^T [B,H,T,S] in score_type(), under autocast too
  Tensor biased(const Tensor& z) const;  // z [B,H,T,S] of uniform heads equal, with both biases
  Tensor scores() const { return biased(pre(products())); }
  AttentionMask mask() const;  // of the pairs that count
  // What an autograd function keeps of it.
  AttentionCall without_inputs() const;
};

// The row of keys and values of each of H heads, [H] int64: kv_map, or of `groups` alike where it
// is undefined. And those rows: [B,Hkv,S,d] -> [B,H,S,d].
Tensor kv_heads(const Tensor& kv_map, int64_t H, int64_t groups, const at::Device& device);
Tensor repeat_kv(const Tensor& kv, const Tensor& kv_map, int64_t heads);

struct AttendedRows {
  Tensor out;  // [B,H,T,e]; 0 in rows that see no key
  Tensor lse;  // [B,H,T] natural logarithm of the sum of exp(score); -infinity in such rows
};

Tensor dense_rows(const Tensor& x);  // x itself where its last dimension is dense, else a copy

// A call as kernels see it, of type T on a device; `held` keeps what it points to.
template <class T>
AttentionRows<T> kernel_rows(const AttentionCall& call, at::Device device,
                             std::vector<Tensor>& held);
template <class T>
View<const T> view(const Tensor& t);  // of a tensor that is held; none: undefined

}  // namespace headlab
