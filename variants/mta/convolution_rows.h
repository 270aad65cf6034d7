// The kernels of convolve_map() (map_convolution.h). Plain pointers, no torch and no std
// containers.
#pragma once

#include "core/kernels/attention_rows.h"
#include "core/kernels/isa.h"

namespace headlab {

constexpr int64_t kConvolvedRows = 8;  // of a task

template <class T>
struct MapConvolution {
  int64_t H, rows, made, keys;  // H, N, T, S
  int64_t cq, ck, before;
  View<const T> map;         // [B,H,N,S], keys dense
  View<const bool> allowed;  // likewise, keys dense; or none
  const T* kernel;           // [H,cq,ck]
  T* out;                    // [B,H,T,S]
  View<const T> grad_out;    // [B,H,T,S], keys dense
  T* grad_map;               // [B,H,N,S]
  T* grad_kernel;            // [B,H,blocks,cq,ck]
};

// static: files of different instruction sets must not share a copy.
template <class T>
static int64_t convolved_blocks(const MapConvolution<T>& p) {
  return (p.rows + kConvolvedRows - 1) / kConvolvedRows;
}
// Of a row with zeros before and behind it, as far as the last vector reads.
template <class T>
static int64_t convolved_width(const MapConvolution<T>& p) {
  return ((p.keys + kRowLanes - 1) / kRowLanes + (p.ck + kRowLanes - 2) / kRowLanes) * kRowLanes;
}
// Elements that a task needs.
template <class T>
static int64_t convolution_room(const MapConvolution<T>& p) {
  return 2 * (kConvolvedRows + p.cq - 1) * convolved_width(p);
}

// A task is a block of rows of one (b, h): (b H + h) blocks + block.
template <class T>
struct ConvolutionKernels {
  void (*forward)(const MapConvolution<T>&, int64_t task, T* room);
  void (*backward)(const MapConvolution<T>&, int64_t task, T* room);
};
#define HEADLAB_DECLARE(isa)                         \
  namespace isa {                                    \
  OfTypes<ConvolutionKernels> convolution_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

}  // namespace headlab
