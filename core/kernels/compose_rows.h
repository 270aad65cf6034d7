// Attention through composed maps (core/attention/composed/composition.h) by blocks of query rows:
// no map is held, the backward pass computes its blocks again. Plain pointers, no torch and no std
// containers: the .isa.cpp file behind this is compiled once for every instruction set.
#pragma once

#include <cstdint>

#include "core/kernels/attention_rows.h"
#include "core/kernels/isa.h"
#include "core/kernels/row_map.h"

namespace headlab {

constexpr int64_t kComposeRows = 8;  // query rows of a block

// One of the two compositions of an example's maps.
template <class T>
struct ComposeSide {
  // What does not depend on the key: [H,H] index [from,to], strides over (b,i); null: the identity.
  const T* matrix = nullptr;
  int64_t stride[2] = {};
  const T* key = nullptr;    // [B,2R+1,H,padded] rows w1, rows w2, gates; null: none
  T* grad_matrix = nullptr;  // [B,T,H,H]
  T* grad_key = nullptr;     // [slots,B,2R+1,H,padded]
};

// o[i,n] = sum_j a[n,i,j] v[j,n], a = post(p), p = map(pre(q k^T) + bias) over allowed keys.
// Dense but for views, whose rows are; padded is `keys` rounded up to kRowLanes, and what lies
// beyond the keys is 0. q comes times the scale, and q and k with every head of theirs.
template <class T>
struct ComposeProblem : AttentionRows<T> {
  int64_t padded = 0, rank = 0;
  const T* k_t = nullptr;  // [B,H,d,padded]
  View<const T> v;         // [B,H,S,e]
  ComposeSide<T> pre, post;
  const RowMap* map = nullptr;  // null: the softmax
  RowFunctions<T> row;          // of the map
  const T* sink = nullptr;      // [H] of the softmax, or null
  View<T> output;               // [B,H,T,e]
  // [B,H,T] of the softmax: log sum exp of a row's scores; infinite without an allowed key
  T* lse = nullptr;

  // The backward pass reads lse, k, and
  const T* v_t = nullptr;     // [B,H,e,padded]
  View<const T> grad_output;  // [B,H,T,e]
  View<T> grad_q;             // [B,H,T,d]
  // adds, for each of `slots` that take turns with the blocks of an example (to grad_key as well)
  int64_t slots = 1;
  View<T> grad_k, grad_v;  // [slots B,H,S,d or e]
  T* grad_sink = nullptr;  // [slots,B,H]
};

constexpr int64_t kComposeBlocks = 5;  // of scratch, the last for the weights of a traced map

// Scratch elements of a call: blocks, what a map keeps of their rows, and its room for a row.
template <class T>
int64_t compose_scratch(const ComposeProblem<T>& p) {
  const int64_t kept = p.map ? p.map->kept : 0;
  return (kComposeBlocks * p.padded + kept) * kComposeRows * p.H + p.padded + kRowLanes;
}

template <class T>
struct ComposeKernels {  // blocks slot, slot + slots, ... of example b
  void (*forward)(const ComposeProblem<T>&, int64_t b, int64_t slot, T* scratch);
  void (*backward)(const ComposeProblem<T>&, int64_t b, int64_t slot, T* scratch);
};
#define HEADLAB_DECLARE(isa)                 \
  namespace isa {                            \
  OfTypes<ComposeKernels> compose_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE
// Of the instruction set that was chosen.
template <class T>
ComposeKernels<T> compose_kernels() {
  return of_type(HEADLAB_OF_ISA(compose_kernels), T());
}

}  // namespace headlab
