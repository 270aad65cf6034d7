// Attention through composed maps (core/attention/compose.h) by blocks of query rows: no map is
// held, the backward pass computes its blocks again. Plain pointers, no torch and no std
// containers: the .isa.cpp file behind this is compiled once for every instruction set.
#pragma once

#include <cstdint>

#include "core/kernels/attention_rows.h"
#include "core/kernels/row_map.h"

namespace headlab {

constexpr int64_t kComposeLanes =
    kRowLanes;                       // widths with keys or features in lanes are multiples of it
constexpr int64_t kComposeRows = 8;  // query rows of a block

// One of the two compositions of an example's maps.
template <class T>
struct ComposeSide {
  // What does not depend on the key: [H,H] index [from,to], strides over (b,i); null: the identity.
  const T* matrix = nullptr;
  int64_t stride[2];
  const T* key = nullptr;  // [B,2R+1,H,padded] rows w1, rows w2, gates; null: none
  T* grad_matrix;          // [B,T,H,H]
  T* grad_key;             // [slots,B,2R+1,H,padded]
};

// o[i,n] = sum_j a[n,i,j] v[j,n], a = post(p), p = map(pre(q k^T) + bias) over allowed keys.
// All dense; n_ is `keys` rounded up to kComposeLanes, and what lies beyond the keys is 0.
// q comes times the scale; q and k have every head dense.
template <class T>
struct ComposeProblem : AttentionRows<T> {
  int64_t padded, e, rank;
  const T* k_t;  // [B,H,d,padded]
  const T* v;    // [B,H,S,e]
  ComposeSide<T> pre, post;
  const RowMap* map = nullptr;  // null: the softmax
  RowFunctions<T> row;          // of the map
  const T* sink;                // [H] of the softmax, or null
  T* output;                    // [B,H,T,e]
  T* lse;  // [B,H,T] of the softmax: log sum exp of a row's scores; infinite without an allowed key

  // The backward pass reads lse, k, and
  const T* v_t;          // [B,H,e,padded]
  const T* grad_output;  // [B,H,T,e]
  T* grad_q;             // [B,H,T,d]
  // adds, for each of `slots` that take turns with the blocks of an example (to grad_key as well)
  int64_t slots;
  T *grad_k, *grad_v;  // [slots,B,H,S,d or e]
  T* grad_sink;        // [slots,B,H]
};

// Scratch elements of a call.
template <class T>
int64_t compose_scratch(const ComposeProblem<T>& p) {
  const int64_t block = kComposeRows * p.H * p.padded;
  if (!p.map) return 4 * block;
  const int64_t kept = p.map->kept * kComposeRows * p.H;
  return (p.map->traced ? 5 : 4) * block + kept + p.padded + kRowLanes;
}

// Blocks slot, slot + slots, ... of example b.
template <class T>
using ComposeSlot = void (*)(const ComposeProblem<T>&, int64_t b, int64_t slot, T* scratch);

// The implementation for this processor.
template <class T>
ComposeSlot<T> compose_forward();
template <class T>
ComposeSlot<T> compose_backward();

}  // namespace headlab
