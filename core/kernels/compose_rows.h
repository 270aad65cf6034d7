// Attention by blocks of query rows: through maps of rows (map_rows.h) and through composed heads
// (core/attention/composed/composition.h). No map is held, the backward pass computes its blocks
// again. Plain pointers, no torch and no std containers.
#pragma once

#include <cstdint>

#include "core/kernels/attention_rows.h"
#include "core/kernels/isa.h"
#include "core/kernels/row_map.h"

namespace headlab {

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

// A layer norm over heads behind `post`, HeadNorm of core/attention/composed/composition.h.
template <class T>
struct ComposeNorm {
  const T* weight = nullptr;  // [H]; null: none
  const T *bias = nullptr, *share = nullptr;
  T eps = 0;
  T* grad = nullptr;  // [B,T,2,H] of weight and bias, by query
};

// o[i,n] = sum_j a[n,i,j] v[j,n], a = drop(norm(post(p))), p = map(pre(q k^T) + bias) over allowed
// keys. Dense but for views, whose rows are; padded is padded_row(keys). q comes times the scale,
// and q, k and v with every head of theirs.
template <class T>
struct ComposeProblem : AttentionRows<T> {
  int64_t padded = 0, rank = 0;
  View<const T> v;  // [B,H,S,e]
  ComposeSide<T> pre, post;
  ComposeNorm<T> norm;
  int64_t group = 1;  // heads that a block takes together: all, where they are composed
  RowFunctions<T> row;
  int64_t saved = 0;           // numbers of a row that its map keeps
  bool traced = false;         // of that map
  T number = 0;                // of that map, where it is not one of each head,
  const T* by_head = nullptr;  // [H]
  Dropout dropout;
  bool coarse = false;  // products may round their factors as tensor cores do (tf32)
  View<T> output;       // [B,H,T,e]
  // [B,H,T,saved]: the forward pass writes them, the backward pass reads them.
  T* of_rows = nullptr;

  // The backward pass reads k, v, of_rows and
  View<const T> grad_output;  // [B,H,T,e]
  View<T> grad_q;             // [B,H,T,d]
  // adds, for each of `slots` that take turns with the blocks of an example (to grad_key as well)
  int64_t slots = 1;
  View<T> grad_k, grad_v;     // [slots B,H,S,d or e]
  T* grad_by_head = nullptr;  // [slots,B,H]; null: by_head does not learn
};
// Blocks of heads and of examples that threads, or blocks of a GPU, deal with apart.
template <class T>
static HEADLAB_ANYWHERE int64_t compose_tasks(const ComposeProblem<T>& p) {
  return p.B * (p.H / p.group) * p.slots;
}

template <class T>
struct ComposeKernels {
  void (*forward)(const ComposeProblem<T>&, int64_t task, T* scratch);
  void (*backward)(const ComposeProblem<T>&, int64_t task, T* scratch);
  int64_t (*scratch)(const ComposeProblem<T>&);  // elements
};
#define HEADLAB_DECLARE(isa)                 \
  namespace isa {                            \
  OfTypes<ComposeKernels> compose_kernels(); \
  RowMap softmax_rows();                     \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE
const RowMapOnCuda* softmax_on_cuda();  // of a build with CUDA
// Of the instruction set that was chosen.
template <class T>
ComposeKernels<T> compose_kernels() {
  return of_type(HEADLAB_OF_ISA(compose_kernels), T());
}

}  // namespace headlab
