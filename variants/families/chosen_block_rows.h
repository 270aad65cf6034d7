// Softmax attention of query rows each of which sees the blocks of keys that it has chosen, as the
// kernels of the CPU take it (variants/families/chosen_blocks.h). No torch and no std
// containers.
//
// B batch, T queries, H heads, d width of queries and keys, e of values, b tokens a block.
// A width is padded with zeros to a multiple of kRowLanes.
#pragma once

#include "core/kernels/attention_rows.h"
#include "core/kernels/isa.h"

namespace headlab {

constexpr int64_t kChosenTileRows = kRowLanes;  // that meet a block at once

template <class T>
struct ChosenBlockRows {
  int64_t B, H, kv_heads, queries;
  int64_t wide_d, wide_e, block, blocks;  // d and e padded, b, blocks of keys
  int64_t back;  // a row sees no key further back; kUnlimited: all before it
  double scale;
  const int64_t* kv_head;  // [H] the row of keys and values that a head uses
  const int64_t* place;    // [B,T] where queries stand among the keys; -1: it sees none
  // The queries of (b, h) that see block c, ascending: seeing[starts[n]] .. of n = (b H + h) blocks
  // + c. Each stands in the block or behind it.
  const int64_t *starts, *seeing;
  const T* q;      // [B,H,T,wide_d]
  const T *k, *v;  // [B,Hkv,blocks,b,wide_d], [B,Hkv,blocks,b,wide_e]
  T* out;          // [B,H,T,wide_e]
  T* lse;          // [B,H,T], -infinity in a row that sees no key

  // Backward.
  const T* grad_out;   // [B,H,T,wide_e]
  const T* drop;       // [B,H,T] sum of grad_out out
  T* grad_q;           // [B,H,T,wide_d]; 0 before, as are
  T *grad_k, *grad_v;  // as k and v
};

// Elements that a task needs. static: files of different instruction sets must not share a copy.
template <class T>
static int64_t chosen_block_room(const ChosenBlockRows<T>& p) {
  return p.queries + kChosenTileRows * (2 * p.block + 3 * p.wide_d + 3 * p.wide_e);
}

// A task is forward an example and head, b H + h, and backward all heads that share one row of
// keys, b Hkv + g.
template <class T>
struct ChosenBlockKernels {
  void (*forward)(const ChosenBlockRows<T>&, int64_t task, T* room);
  void (*backward)(const ChosenBlockRows<T>&, int64_t task, T* room);
};
#define HEADLAB_DECLARE(isa)                          \
  namespace isa {                                     \
  OfTypes<ChosenBlockKernels> chosen_block_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

}  // namespace headlab
