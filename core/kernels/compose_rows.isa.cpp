// Attention through composed maps for one instruction set: keys, or features, lie in vector lanes.
#include "core/kernels/compose_rows.h"

#include <cmath>

#include "core/kernels/products.h"
#include "core/kernels/row_vectors.h"

namespace headlab::CPU_CAPABILITY {

// A block of query rows of one example. Buffers are [rows][H][padded]; only keys begin .. end - 1
// of them are in use, whole vectors.
template <class T>
struct Block {
  using V = Vec<T>;
  const ComposeProblem<T>& p;
  int64_t b, first, rows, begin, end;
  int64_t row_stride = p.H * p.padded;

  Block(const ComposeProblem<T>& problem, int64_t example, int64_t first_row)
      : p(problem), b(example), first(first_row) {
    rows = p.queries - first < kComposeRows ? p.queries - first : kComposeRows;
    begin = p.keys, end = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const KeySpan span = key_span(p, b, first + r);
      if (span.first < begin) begin = span.first;
      if (span.last >= end) end = span.last + 1;
    }
    if (begin > end) begin = end;
    begin = begin / kRowLanes * kRowLanes;
    end = (end + kRowLanes - 1) / kRowLanes * kRowLanes;
  }

  int64_t head(int64_t h) const { return b * p.H + h; }
  int64_t keys() const { return end < p.keys ? end - begin : p.keys - begin; }
  // Rows from `row` on of head h of example `of`.
  template <class U>
  static RowMajor<U> rows_of(const View<U>& x, int64_t of, int64_t h, int64_t row) {
    return {row_at(x, of, h, row), x.stride[2]};
  }

  // Scores, or gradients of weights: rows [.., width] times [width, padded].
  void products(const View<const T>& left, const T* right, T* out) const {
    const int64_t width = left.size[3];
    for (int64_t h = 0; h < p.H; ++h) {
      const auto from = rows_of(left, b, h, first);
      multiply({rows, end - begin, width}, {from.at, from.row, 1},
               RowMajor<const T>{right + head(h) * width * p.padded + begin, p.padded},
               RowMajor<T>{out + h * p.padded + begin, row_stride});
    }
  }
  // out[row] = sum_j map[row,j] right[j].
  void weigh(const T* map, const View<const T>& right, const View<T>& out) const {
    for (int64_t h = 0; h < p.H; ++h)
      multiply({rows, out.size[3], keys()}, {map + h * p.padded + begin, row_stride, 1},
               rows_of(right, b, h, begin), rows_of(out, b, h, first));
  }
  // out[j] += sum_row map[row,j] right[row], in the part of `slot`.
  void spread(const T* map, const View<const T>& right, const View<T>& out, int64_t slot) const {
    for (int64_t h = 0; h < p.H; ++h)
      multiply({keys(), out.size[3], rows}, {map + h * p.padded + begin, 1, row_stride},
               rows_of(right, b, h, first), rows_of(out, slot * p.B + b, h, begin), /*add=*/true);
  }

  using Side = ComposeSide<T>;
  const T* matrix(const Side& side, int64_t r) const {
    return side.matrix + b * side.stride[0] + (first + r) * side.stride[1];
  }
  // The used keys of row r of a buffer: [H, end - begin].
  template <class U>
  RowMajor<U> used(U* buffer, int64_t r) const {
    return {buffer + r * row_stride + begin, p.padded};
  }
  int64_t factors() const { return (2 * p.rank + 1) * row_stride; }

  void compose(const T* x, const Side& side, T* y) const {
    for (int64_t r = 0; r < rows; ++r)
      multiply({p.H, end - begin, p.H}, {matrix(side, r), 1, p.H}, used(x, r), used(y, r));
    if (side.key) compose_by_key(x, side.key + b * factors(), y);
  }

  void compose_by_key(const T* x, const T* key, T* y) const {
    const int64_t R = p.rank;
    for (int64_t j = begin; j < end; j += V::size())
      for (int64_t r = 0; r < rows; ++r) {
        const T* from = x + r * row_stride + j;
        T* to = y + r * row_stride + j;
        const T* gates = key + 2 * R * row_stride + j;
        for (int64_t n = 0; n < row_stride; n += p.padded)
          at::vec::fmadd(V::loadu(from + n), V::loadu(gates + n), V::loadu(to + n)).store(to + n);
        for (int64_t w = 0; w < R; ++w) {
          const V mixed = dot_heads(from, key + w * row_stride + j);
          const T* w2 = key + (R + w) * row_stride + j;
          for (int64_t n = 0; n < row_stride; n += p.padded)
            at::vec::fmadd(mixed, V::loadu(w2 + n), V::loadu(to + n)).store(to + n);
        }
      }
  }
  V dot_heads(const T* x, const T* w) const {
    V sum(T(0));
    for (int64_t m = 0; m < row_stride; m += p.padded)
      sum = at::vec::fmadd(V::loadu(x + m), V::loadu(w + m), sum);
    return sum;
  }

  // dx of y = compose(x); adds to the gradients of the matrices and of the key's factors.
  void compose_backward(const T* x, const T* dy, const Side& side, int64_t slot, T* dx) const {
    for (int64_t r = 0; r < rows; ++r) {
      multiply({p.H, end - begin, p.H}, {matrix(side, r), p.H, 1}, used(dy, r), used(dx, r));
      outer(x + r * row_stride, dy + r * row_stride,
            side.grad_matrix + (b * p.queries + first + r) * p.H * p.H);
    }
    if (side.key)
      key_backward(x, dy, side.key + b * factors(), dx,
                   side.grad_key + (slot * p.B + b) * factors());
  }

  // g[m,n] = sum_j x[m,j] y[n,j]
  void outer(const T* x, const T* y, T* g) const {
    in_tiles<4>(p.H, [&](int64_t m, auto M) {
      in_tiles<4>(p.H, [&](int64_t n, auto N) { outer_tile<M, N>(x, y, m, n, g); });
    });
  }
  template <int M, int N>
  void outer_tile(const T* x, const T* y, int64_t m, int64_t n, T* g) const {
    V sum[M][N];
    for (auto& row : sum)
      for (auto& s : row) s = V(T(0));
    for (int64_t j = begin; j < end; j += V::size()) {
      V right[N];
      for (int c = 0; c < N; ++c) right[c] = V::loadu(y + (n + c) * p.padded + j);
      for (int l = 0; l < M; ++l) {
        const V left = V::loadu(x + (m + l) * p.padded + j);
        for (int c = 0; c < N; ++c) sum[l][c] = at::vec::fmadd(left, right[c], sum[l][c]);
      }
    }
    for (int l = 0; l < M; ++l)
      for (int c = 0; c < N; ++c) g[(m + l) * p.H + n + c] = sum_lanes(sum[l][c]);
  }

  void key_backward(const T* x, const T* dy, const T* key, T* dx, T* grad) const {
    const int64_t R = p.rank;
    for (int64_t j = begin; j < end; j += V::size()) {
      const T* gates = key + 2 * R * row_stride + j;
      T* grad_gates = grad + 2 * R * row_stride + j;
      for (int64_t m = 0; m < row_stride; m += p.padded) {
        V sum = V::loadu(grad_gates + m);
        const V gate = V::loadu(gates + m);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = r * row_stride + m + j;
          const V slope = V::loadu(dy + at);
          sum = at::vec::fmadd(V::loadu(x + at), slope, sum);
          at::vec::fmadd(gate, slope, V::loadu(dx + at)).store(dx + at);
        }
        sum.store(grad_gates + m);
      }
      for (int64_t w = 0; w < R; ++w) {
        const T *w1 = key + w * row_stride + j, *w2 = key + (R + w) * row_stride + j;
        T *grad1 = grad + w * row_stride + j, *grad2 = grad + (R + w) * row_stride + j;
        V in[kComposeRows], out[kComposeRows];
        for (int64_t r = 0; r < rows; ++r) {
          in[r] = dot_heads(x + r * row_stride + j, w1);
          out[r] = dot_heads(dy + r * row_stride + j, w2);
        }
        for (int64_t m = 0; m < row_stride; m += p.padded) {
          V sum1 = V::loadu(grad1 + m), sum2 = V::loadu(grad2 + m);
          const V from = V::loadu(w1 + m);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = r * row_stride + m + j;
            sum1 = at::vec::fmadd(out[r], V::loadu(x + at), sum1);
            sum2 = at::vec::fmadd(in[r], V::loadu(dy + at), sum2);
            at::vec::fmadd(out[r], from, V::loadu(dx + at)).store(dx + at);
          }
          sum1.store(grad1 + m), sum2.store(grad2 + m);
        }
      }
    }
  }

  // Both compositions mix heads: what is hidden from a head must not come back from another one.
  void hide(T* map) const {
    if (!p.allowed.data || p.allowed.stride[1] == 0) return;
    each_row([&](int64_t h, int64_t r) {
      const auto [from, to] = key_span(p, b, first + r);
      const bool* allowed = row_at(p.allowed, b, h, first + r);
      T* row = row_of(map, h, r).z - begin;
      for (int64_t j = from; j <= to; ++j)
        if (!allowed[j * p.allowed.stride[3]]) row[j] = 0;
    });
  }

  MapRow<T> row_of(T* block, int64_t h, int64_t r) const {
    return {block + r * row_stride + h * p.padded + begin, end - begin};
  }
  template <class Work>
  void each_row(const Work& work) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < p.H; ++h) work(h, r);
  }
  T& lse(int64_t h, int64_t r) const { return p.lse[head(h) * p.queries + first + r]; }

  // What a map keeps of a row.
  T* kept(int64_t h, int64_t r, T* scratch) const {
    return scratch + kComposeBlocks * kComposeRows * row_stride + (r * p.H + h) * p.map->kept;
  }
  // Scores z as weights, which are returned: in place, but in the backward pass (`again`) of a
  // traced map, where z keeps the trace.
  T* weigh(T* z, T* scratch, bool again) const {
    const bool traced = again && p.map && p.map->traced;
    T* weights = traced ? scratch + (kComposeBlocks - 1) * kComposeRows * row_stride : z;
    T* row_room = p.map ? kept(0, kComposeRows, scratch) : nullptr;  // behind what is kept of rows
    each_row([&](int64_t h, int64_t r) {
      const auto row = row_of(z, h, r);
      mask_scores(p, b, h, first + r, begin, end, row.z - begin);
      if (p.map)
        p.row.weigh(row.z, row.n, p.map->numbers, row_of(weights, h, r).z, kept(h, r, scratch),
                    row_room);
      else if (again)
        row.softmax_of(lse(h, r));
      else
        lse(h, r) = row.softmax(p.sink ? p.sink[h] : MapRow<T>::kLow);
    });
    return weights;
  }
  // Of the scores, in place of those of the weights `a`, which weigh() made of z again.
  void weigh_backward(T* z, T* a, T* grad, T* scratch, int64_t slot) const {
    each_row([&](int64_t h, int64_t r) {
      const T* of = row_of(a, h, r).z;
      const auto row = row_of(grad, h, r);
      if (p.map)
        return p.row.backward(row_of(z, h, r).z, of, row.n, p.map->numbers, kept(h, r, scratch),
                              row.z);
      const T mean = row.softmax_backward(of);
      if (p.sink) p.grad_sink[slot * p.B * p.H + head(h)] -= std::exp(p.sink[h] - lse(h, r)) * mean;
    });
  }
};

template <class T>
void forward_block(const Block<T>& block, int64_t, T* scratch) {
  const auto& p = block.p;
  T *s = scratch, *other = scratch + kComposeRows * block.row_stride;
  block.products(p.q, p.k_t, s);
  T* u = s;
  if (p.pre.matrix) u = other, block.compose(s, p.pre, u);
  block.weigh(u, scratch, /*again=*/false);
  T* a = u;
  if (p.post.matrix) {
    a = u == s ? other : s;
    block.compose(u, p.post, a);
    block.hide(a);
  }
  block.weigh(a, p.v, p.output);
}

template <class T>
void backward_block(const Block<T>& block, int64_t slot, T* scratch) {
  const auto& p = block.p;
  const int64_t size = kComposeRows * block.row_stride;
  T *s = scratch, *u = scratch + size, *da = scratch + 2 * size, *other = scratch + 3 * size;
  block.products(p.q, p.k_t, s);
  if (p.pre.matrix)
    block.compose(s, p.pre, u);
  else
    u = s;
  T* weights = block.weigh(u, scratch, /*again=*/true);
  const T* a = weights;
  if (p.post.matrix) {
    block.compose(weights, p.post, other);
    block.hide(other);
    a = other;
  }
  block.spread(a, p.grad_output, p.grad_v, slot);
  block.products(p.grad_output, p.v_t, da);
  T* du = da;
  if (p.post.matrix) {
    block.hide(da);
    du = other;
    block.compose_backward(weights, da, p.post, slot, du);
  }
  block.weigh_backward(u, weights, du, scratch, slot);
  T* ds = du;
  if (p.pre.matrix) {
    ds = du == other ? da : other;
    block.compose_backward(s, du, p.pre, slot, ds);
  }
  block.weigh(ds, p.k, p.grad_q);
  block.spread(ds, p.q, p.grad_k, slot);
}

// The blocks of a slot, one after the other.
template <class T, auto work>
void each_block(const ComposeProblem<T>& p, int64_t b, int64_t slot, T* scratch) {
  for (int64_t first = slot * kComposeRows; first < p.queries; first += p.slots * kComposeRows)
    work(Block<T>(p, b, first), slot, scratch);
}

template <class T>
ComposeKernels<T> kernels_of() {
  return {each_block<T, forward_block<T>>, each_block<T, backward_block<T>>};
}
OfTypes<ComposeKernels> compose_kernels() { return {kernels_of<float>(), kernels_of<double>()}; }

}  // namespace headlab::CPU_CAPABILITY
