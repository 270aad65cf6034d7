// Attention through composed maps for one instruction set: keys, or features, lie in vector lanes.
#include "core/kernels/compose_rows.h"

#include <cmath>
#include <limits>

#include "core/kernels/isa.h"
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
      const auto [low, high] = span(r);
      if (low < begin) begin = low;
      if (high > end) end = high;
    }
    if (begin > end) begin = end;
    begin = begin / kComposeLanes * kComposeLanes;
    end = (end + kComposeLanes - 1) / kComposeLanes * kComposeLanes;
  }

  struct Span {
    int64_t low, high;  // the keys low .. high - 1 that a row may see, before the arbitrary mask
  };
  Span span(int64_t r) const {
    const KeySpan s = key_span(p, b, first + r);
    return {s.first, s.last + 1};
  }
  int64_t head(int64_t h) const { return b * p.H + h; }
  int64_t keys() const { return end < p.keys ? end - begin : p.keys - begin; }
  // Dense rows of head h, as the left or right side of a product.
  static Strided<T> dense(const T* at, int64_t width) { return {at, width, 1}; }
  const T* query_rows(const T* of, int64_t h, int64_t width) const {
    return of + (head(h) * p.queries + first) * width;
  }

  // Scores, or gradients of weights: rows [.., width] times [width, padded].
  void products(const T* left, const T* right, int64_t width, T* out) const {
    for (int64_t h = 0; h < p.H; ++h)
      multiply({rows, end - begin, width}, dense(query_rows(left, h, width), width),
               RowMajor<const T>{right + head(h) * width * p.padded + begin, p.padded},
               RowMajor<T>{out + h * p.padded + begin, row_stride});
  }
  // out[row] = sum_j map[row,j] right[j].
  void weigh(const T* map, const T* right, int64_t width, T* out) const {
    for (int64_t h = 0; h < p.H; ++h)
      multiply({rows, width, keys()}, {map + h * p.padded + begin, row_stride, 1},
               RowMajor<const T>{right + (head(h) * p.keys + begin) * width, width},
               RowMajor<T>{out + (head(h) * p.queries + first) * width, width});
  }
  // out[j] += sum_row map[row,j] right[row].
  void spread(const T* map, const T* right, int64_t width, T* out) const {
    for (int64_t h = 0; h < p.H; ++h)
      multiply({keys(), width, rows}, {map + h * p.padded + begin, 1, row_stride},
               RowMajor<const T>{query_rows(right, h, width), width},
               RowMajor<T>{out + (head(h) * p.keys + begin) * width, width}, /*add=*/true);
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
    int64_t m = 0;
    for (; m + 4 <= p.H; m += 4) outer_rows<4>(x, y, m, g);
    for (; m < p.H; ++m) outer_rows<1>(x, y, m, g);
  }
  template <int M>
  void outer_rows(const T* x, const T* y, int64_t m, T* g) const {
    int64_t n = 0;
    for (; n + 4 <= p.H; n += 4) outer_tile<M, 4>(x, y, m, n, g);
    for (; n < p.H; ++n) outer_tile<M, 1>(x, y, m, n, g);
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

  // Sets what the mask hides of a row.
  void hide(int64_t h, int64_t r, T* row, T value) const {
    const auto [from, to] = span(r);
    const bool* allowed = row_at(p.allowed, b, h, first + r);
    for (int64_t j = from; j < to; ++j)
      if (!allowed[j * p.allowed.stride[3]]) row[j] = value;
  }
  // Adds the bias to the scores of a row and hides what it may not see.
  void mask(int64_t h, int64_t r, T* z) const {
    const T low = -std::numeric_limits<T>::infinity();
    const auto [from, to] = span(r);
    for (int64_t j = begin; j < from && j < end; ++j) z[j] = low;
    for (int64_t j = to > begin ? to : begin; j < end; ++j) z[j] = low;
    if (p.distance_bias) {
      const T* by = p.distance_bias + h * (p.queries + p.keys - 1) + p.queries - 1 - first - r;
      for (int64_t j = from; j < to; ++j) z[j] += by[j];
    }
    if (p.bias.data) {
      const T* bias = row_at(p.bias, b, h, first + r);
      for (int64_t j = from; j < to; ++j) z[j] += bias[j * p.bias.stride[3]];
    }
    if (p.allowed.data) hide(h, r, z, low);
  }
  // Both compositions mix heads: what is hidden from a head must not come back from another one.
  void hide(T* map) const {
    if (!p.allowed.data || p.allowed.stride[1] == 0) return;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < p.H; ++h) hide(h, r, map + r * row_stride + h * p.padded, 0);
  }

  // Where a map finds room beside the scores, in whose place it puts the weights.
  struct MapRoom {
    T* weights;  // a block for those of a traced map in the backward pass
    T* kept;     // RowMap::kept numbers of every row
    T* scratch;
  };
  MapRoom map_room(T* scratch) const {
    if (!p.map) return {};
    const int64_t block = kComposeRows * row_stride;
    T* kept = scratch + (p.map->traced ? 5 : 4) * block;
    return {scratch + 4 * block, kept, kept + p.map->kept * kComposeRows * p.H};
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

  // A row of scores as weights a.
  void weigh_row(const MapRow<T>& z, int64_t h, int64_t r, T* a, const MapRoom& room) const {
    T* kept = room.kept + (r * p.H + h) * p.map->kept;
    p.row.weigh(z.z, z.n, p.map->numbers, a, kept, room.scratch);
  }
  // Scores as weights, in place.
  void weigh(T* z, const MapRoom& room) const {
    each_row([&](int64_t h, int64_t r) {
      const auto row = row_of(z, h, r);
      mask(h, r, row.z - begin);
      if (p.map)
        weigh_row(row, h, r, row.z, room);
      else
        lse(h, r) = row.softmax(p.sink ? p.sink[h] : MapRow<T>::kLow);
    });
  }
  // The same weights for the backward pass, which are returned; of a traced map z keeps the trace.
  T* weigh_again(T* z, const MapRoom& room) const {
    T* weights = p.map && p.map->traced ? room.weights : z;
    each_row([&](int64_t h, int64_t r) {
      const auto row = row_of(z, h, r);
      mask(h, r, row.z - begin);
      if (p.map)
        weigh_row(row, h, r, row_of(weights, h, r).z, room);
      else
        row.softmax_of(lse(h, r));
    });
    return weights;
  }
  // Of the scores, in place of those of the weights `a`, which weigh_again() made of z.
  void weigh_backward(T* z, T* a, T* grad, const MapRoom& room, int64_t slot) const {
    each_row([&](int64_t h, int64_t r) {
      const T* of = row_of(a, h, r).z;
      const auto row = row_of(grad, h, r);
      if (p.map) {
        const T* kept = room.kept + (r * p.H + h) * p.map->kept;
        return p.row.backward(row_of(z, h, r).z, of, row.n, p.map->numbers, kept, row.z);
      }
      const T mean = row.softmax_backward(of);
      if (p.sink) p.grad_sink[slot * p.B * p.H + head(h)] -= std::exp(p.sink[h] - lse(h, r)) * mean;
    });
  }
};

template <class T>
void forward_block(const Block<T>& block, T* scratch) {
  const auto& p = block.p;
  T *s = scratch, *other = scratch + kComposeRows * block.row_stride;
  block.products(p.q.data, p.k_t, p.d, s);
  T* u = s;
  if (p.pre.matrix) u = other, block.compose(s, p.pre, u);
  block.weigh(u, block.map_room(scratch));
  T* a = u;
  if (p.post.matrix) {
    a = u == s ? other : s;
    block.compose(u, p.post, a);
    block.hide(a);
  }
  block.weigh(a, p.v, p.e, p.output);
}

template <class T>
void backward_block(const Block<T>& block, int64_t slot, T* scratch) {
  const auto& p = block.p;
  const int64_t size = kComposeRows * block.row_stride;
  T *s = scratch, *u = scratch + size, *da = scratch + 2 * size, *other = scratch + 3 * size;
  const int64_t per_key = slot * p.B * p.H * p.keys;
  block.products(p.q.data, p.k_t, p.d, s);
  if (p.pre.matrix)
    block.compose(s, p.pre, u);
  else
    u = s;
  const auto room = block.map_room(scratch);
  T* weights = block.weigh_again(u, room);
  const T* a = weights;
  if (p.post.matrix) {
    block.compose(weights, p.post, other);
    block.hide(other);
    a = other;
  }
  block.spread(a, p.grad_output, p.e, p.grad_v + per_key * p.e);
  block.products(p.grad_output, p.v_t, p.e, da);
  T* du = da;
  if (p.post.matrix) {
    block.hide(da);
    du = other;
    block.compose_backward(weights, da, p.post, slot, du);
  }
  block.weigh_backward(u, weights, du, room, slot);
  T* ds = du;
  if (p.pre.matrix) {
    ds = du == other ? da : other;
    block.compose_backward(s, du, p.pre, slot, ds);
  }
  block.weigh(ds, p.k.data, p.d, p.grad_q);
  block.spread(ds, p.q.data, p.d, p.grad_k + per_key * p.d);
}

template <class T, class Work>
void each_block(const ComposeProblem<T>& p, int64_t b, int64_t slot, const Work& work) {
  for (int64_t first = slot * kComposeRows; first < p.queries; first += p.slots * kComposeRows)
    work(Block<T>(p, b, first));
}

template <class T>
void forward(const ComposeProblem<T>& p, int64_t b, int64_t slot, T* scratch) {
  each_block(p, b, slot, [&](const Block<T>& block) { forward_block(block, scratch); });
}
template <class T>
void backward(const ComposeProblem<T>& p, int64_t b, int64_t slot, T* scratch) {
  each_block(p, b, slot, [&](const Block<T>& block) { backward_block(block, slot, scratch); });
}

OfTypes<ComposeKernels> compose_kernels() {
  return {{forward<float>, backward<float>}, {forward<double>, backward<double>}};
}

}  // namespace headlab::CPU_CAPABILITY
