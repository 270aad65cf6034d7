// Softmax attention of query rows each of which sees the blocks of keys that it has chosen, as the
// kernels of the CPU take it (core/attention/tiles/chosen_blocks.h). No torch and no std
// containers.
//
// B batch, T queries, H heads, d width of queries and keys, e of values, b tokens a block, m blocks
// that a row has chosen at most. A width is padded with zeros to a multiple of kRowLanes.
#pragma once

#include "core/kernels/attention_rows.h"
#include "core/kernels/isa.h"

namespace headlab {

constexpr int64_t kChosenBlockRows = 64;  // rows of a task of the forward pass
constexpr int64_t kChosenTileRows = 16;   // rows that meet a block at once in the backward pass

template <class T>
struct ChosenBlockRows {
  int64_t B, H, kv_heads, queries;
  int64_t d, wide_d, wide_e;             // wide: padded
  int64_t block, padded, blocks, slots;  // b, b padded, blocks of keys, m
  double scale;
  const int64_t* kv_head;  // [H] the row of keys and values that a head uses
  const int64_t* place;    // [B,T] where queries stand among the keys; -1: it sees none
  const int64_t* chosen;   // [B,H,T,m] blocks, none twice; -1: none
  const T* q;              // [B,H,T,wide_d]
  // Each block with its keys in lanes [B,Hkv,blocks,.,padded], and with its features there
  // [B,Hkv,blocks,b,.].
  const T *k_lanes, *k_rows;  // d; wide_d
  const T *v_lanes, *v_rows;  // wide_e; wide_e
  T* out;                     // [B,H,T,wide_e]
  T* lse;                     // [B,H,T], -infinity in a row that sees no key

  // Backward: the queries of (b, h) that see block c, seeing[starts[n]] .. of n = (b H + h) blocks
  // + c; and gradients.
  const int64_t *starts, *seeing;
  const T* grad_out;   // [B,H,T,wide_e]
  const T* drop;       // [B,H,T] sum of grad_out out
  T* grad_q;           // [B,H,T,wide_d]; 0 before, as are
  T *grad_k, *grad_v;  // as k_rows and v_rows
};

// static: files of different instruction sets must not share a copy.
template <class T>
static int64_t chosen_row_tasks(const ChosenBlockRows<T>& p) {  // of a head of an example
  return (p.queries + kChosenBlockRows - 1) / kChosenBlockRows;
}
// Elements that a task needs, forward and backward.
template <class T>
static int64_t chosen_block_room(const ChosenBlockRows<T>& p) {
  return p.slots * p.padded;
}
template <class T>
static int64_t chosen_tile_room(const ChosenBlockRows<T>& p) {
  return kChosenTileRows * (2 * p.padded + 2 * p.wide_d + p.wide_e);
}

// A task is forward some rows of one (b, h), (b H + h) chosen_row_tasks + n, and backward all
// blocks of one row of keys and the heads that share it, b Hkv + g.
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
