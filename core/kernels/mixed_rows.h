// The rows of a block and what mixes their heads: compositions by matrices and by factors of keys,
// and the norm behind them, forward and back. Written once for all teams (team.h).
#pragma once

#include "core/kernels/compose_rows.h"
#include "core/kernels/map_rows.h"
#include "core/kernels/team.h"

namespace headlab {

// Keys that are worked on together, so that what lies in the caches is used by all rows.
constexpr int64_t kKeyChunk = 64;

// Which heads of which example a task is of.
struct ComposeTask {
  int64_t b, head, slot;
};
template <class T>
static HEADLAB_DEVICE ComposeTask compose_task(const ComposeProblem<T>& p, int64_t task) {
  const int64_t groups = p.H / p.group, of_example = groups * p.slots;
  return {task / of_example, task % of_example / p.slots * p.group, task % p.slots};
}

// Maps of a block are [rows][group][padded]; only keys begin .. end - 1 of them are in use, whole
// vectors. Heads are numbered within the group.
template <class Team>
struct MixedRows {
  using T = typename Team::Number;
  using Lanes = typename Team::Lanes;
  using X = typename Lanes::X;
  using Problem = ComposeProblem<T>;
  using Side = ComposeSide<T>;
  const Team& team;
  const Problem& p;
  ComposeTask task;
  T* room;
  int64_t first, rows, begin, end, row_stride;

  HEADLAB_DEVICE MixedRows(const Team& of, const Problem& problem, const ComposeTask& part,
                           int64_t first_row, T* own_room)
      : team(of), p(problem), task(part), room(own_room), first(first_row) {
    row_stride = p.group * p.padded;
    rows = p.queries - first < Team::kRows ? p.queries - first : Team::kRows;
    begin = p.keys, end = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const KeySpan span = key_span(p, task.b, first + r);
      if (span.first < begin) begin = span.first;
      if (span.last >= end) end = span.last + 1;
    }
    if (begin > end) begin = end;
    begin = begin / kRowLanes * kRowLanes;
    end = (end + kRowLanes - 1) / kRowLanes * kRowLanes;
  }

  HEADLAB_DEVICE T* buffer(int64_t n) const { return room + n * Team::kRows * row_stride; }
  HEADLAB_DEVICE int64_t used() const { return end - begin; }
  HEADLAB_DEVICE int64_t keys() const { return end < p.keys ? used() : p.keys - begin; }
  HEADLAB_DEVICE T* row_of(T* map_of, int64_t h, int64_t r) const {
    return map_of + r * row_stride + h * p.padded + begin;
  }
  template <class U>
  HEADLAB_DEVICE RowMajor<U> rows_of(const View<U>& x, int64_t part, int64_t h, int64_t row) const {
    return {row_at(x, part * p.B + task.b, task.head + h, row), x.stride[2]};
  }
  template <class U>
  HEADLAB_DEVICE Strided<T> matrix_of(const View<U>& x, int64_t h, int64_t row) const {
    return {row_at(x, task.b, task.head + h, row), x.stride[2], 1};
  }
  // f(lanes, h, r) for each row of the block.
  template <class F>
  HEADLAB_DEVICE void each_row(const F& f) const {
    team.each(rows * p.group,
              [&](const Lanes& lanes, int64_t item) { f(lanes, item % p.group, item / p.group); });
    team.sync();
  }
  // f(lanes, j, n, r) for n keys from j on of each row, chunk by chunk.
  template <class F>
  HEADLAB_DEVICE void each_chunk(int64_t of_rows, const F& f) const {
    const int64_t chunks = (used() + kKeyChunk - 1) / kKeyChunk;
    team.each(chunks * of_rows, [&](const Lanes& lanes, int64_t item) {
      const int64_t j = begin + item / of_rows * kKeyChunk;
      f(lanes, j, end - j < kKeyChunk ? end - j : kKeyChunk, item % of_rows);
    });
    team.sync();
  }

  HEADLAB_DEVICE const T* matrix(const Side& side, int64_t r) const {
    return side.matrix + task.b * side.stride[0] + (first + r) * side.stride[1];
  }
  HEADLAB_DEVICE int64_t factors() const { return (2 * p.rank + 1) * row_stride; }

  // y = compose(x), or by the transposed matrices.
  HEADLAB_DEVICE void by_matrices(const T* x, const Side& side, bool transposed, T* y) const {
    team.multiply(
        rows, {p.group, used(), p.group},
        [&](int64_t r) {
          return transposed ? Strided<T>{matrix(side, r), p.group, 1}
                            : Strided<T>{matrix(side, r), 1, p.group};
        },
        [&](int64_t r) {
          return Strided<T>{x + r * row_stride + begin, p.padded, 1};
        },
        [&](int64_t r) {
          return RowMajor<T>{y + r * row_stride + begin, p.padded};
        },
        false);
  }
  HEADLAB_DEVICE void compose(const T* x, const Side& side, T* y) const {
    by_matrices(x, side, /*transposed=*/false, y);
    if (!side.key) return;
    const T* key = side.key + task.b * factors();
    each_chunk(rows, [&](const Lanes& lanes, int64_t from, int64_t n, int64_t r) {
      lanes.each(n, [&](int64_t in_chunk) {
        const int64_t j = from + in_chunk;
        by_key(x + r * row_stride + j, key + j, y + r * row_stride + j);
      });
    });
  }
  // Of one X of a row: y += g x + sum_w (w1 . x) w2.
  HEADLAB_DEVICE void by_key(const T* x, const T* key, T* y) const {
    const T* gates = key + 2 * p.rank * row_stride;
    for (int64_t n = 0; n < row_stride; n += p.padded)
      Lanes::store(y + n,
                   Lanes::fma(Lanes::load(x + n), Lanes::load(gates + n), Lanes::load(y + n)));
    for (int64_t w = 0; w < p.rank; ++w) {
      const X mixed = dot_heads(x, key + w * row_stride);
      const T* w2 = key + (p.rank + w) * row_stride;
      for (int64_t n = 0; n < row_stride; n += p.padded)
        Lanes::store(y + n, Lanes::fma(mixed, Lanes::load(w2 + n), Lanes::load(y + n)));
    }
  }
  HEADLAB_DEVICE X dot_heads(const T* x, const T* w) const {
    X sum(T(0));
    for (int64_t m = 0; m < row_stride; m += p.padded)
      sum = Lanes::fma(Lanes::load(x + m), Lanes::load(w + m), sum);
    return sum;
  }

  // dx of y = compose(x); adds to the gradients of the matrices and of the key's factors.
  HEADLAB_DEVICE void compose_backward(const T* x, const T* dy, const Side& side, T* dx) const {
    by_matrices(dy, side, /*transposed=*/true, dx);
    const int64_t tiles = (p.group + 3) / 4;
    team.each(rows * tiles * tiles, [&](const Lanes& lanes, int64_t item) {
      const int64_t r = item / (tiles * tiles);
      outer(lanes, x + r * row_stride, dy + r * row_stride, item / tiles % tiles * 4,
            item % tiles * 4,
            side.grad_matrix + (task.b * p.queries + first + r) * p.group * p.group);
    });
    team.sync();
    if (!side.key) return;
    const T* key = side.key + task.b * factors();
    T* grad = side.grad_key + (task.slot * p.B + task.b) * factors();
    each_chunk(1, [&](const Lanes& lanes, int64_t from, int64_t n, int64_t) {
      lanes.each(n, [&](int64_t in_chunk) {
        const int64_t j = from + in_chunk;
        key_backward(x + j, dy + j, key + j, dx + j, grad + j);
      });
    });
  }

  // g[m,n] = sum_j x[m,j] y[n,j] of at most 4 x 4 heads.
  HEADLAB_DEVICE void outer(const Lanes& lanes, const T* x, const T* y, int64_t m, int64_t n,
                            T* g) const {
    if (m + 4 <= p.group && n + 4 <= p.group) return outer_tile<4>(lanes, x, y, m, n, g);
    for (int64_t i = m; i < m + 4 && i < p.group; ++i)
      for (int64_t j = n; j < n + 4 && j < p.group; ++j) outer_tile<1>(lanes, x, y, i, j, g);
  }
  template <int kSize>
  HEADLAB_DEVICE void outer_tile(const Lanes& lanes, const T* x, const T* y, int64_t m, int64_t n,
                                 T* g) const {
    X sum[kSize][kSize];
    for (auto& of_row : sum)
      for (auto& s : of_row) s = X(T(0));
    lanes.each(used(), [&](int64_t in_use) {
      const int64_t j = begin + in_use;
      X right[kSize];
      for (int c = 0; c < kSize; ++c) right[c] = Lanes::load(y + (n + c) * p.padded + j);
      for (int l = 0; l < kSize; ++l) {
        const X left = Lanes::load(x + (m + l) * p.padded + j);
        for (int c = 0; c < kSize; ++c) sum[l][c] = Lanes::fma(left, right[c], sum[l][c]);
      }
    });
    for (int l = 0; l < kSize; ++l)
      for (int c = 0; c < kSize; ++c) {
        const T total = lanes.sum(sum[l][c]);
        if (lanes.leader()) g[(m + l) * p.group + n + c] = total;
      }
  }

  // Of one X of all rows.
  HEADLAB_DEVICE void key_backward(const T* x, const T* dy, const T* key, T* dx, T* grad) const {
    const int64_t R = p.rank;
    const T* gates = key + 2 * R * row_stride;
    T* grad_gates = grad + 2 * R * row_stride;
    for (int64_t m = 0; m < row_stride; m += p.padded) {
      X sum = Lanes::load(grad_gates + m);
      const X gate = Lanes::load(gates + m);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = r * row_stride + m;
        const X slope = Lanes::load(dy + at);
        sum = Lanes::fma(Lanes::load(x + at), slope, sum);
        Lanes::store(dx + at, Lanes::fma(gate, slope, Lanes::load(dx + at)));
      }
      Lanes::store(grad_gates + m, sum);
    }
    for (int64_t w = 0; w < R; ++w) {
      const T *w1 = key + w * row_stride, *w2 = key + (R + w) * row_stride;
      T *grad1 = grad + w * row_stride, *grad2 = grad + (R + w) * row_stride;
      X in[Team::kRows], out[Team::kRows];
      for (int64_t r = 0; r < rows; ++r) {
        in[r] = dot_heads(x + r * row_stride, w1);
        out[r] = dot_heads(dy + r * row_stride, w2);
      }
      for (int64_t m = 0; m < row_stride; m += p.padded) {
        X sum1 = Lanes::load(grad1 + m), sum2 = Lanes::load(grad2 + m);
        const X from = Lanes::load(w1 + m);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = r * row_stride + m;
          sum1 = Lanes::fma(out[r], Lanes::load(x + at), sum1);
          sum2 = Lanes::fma(in[r], Lanes::load(dy + at), sum2);
          Lanes::store(dx + at, Lanes::fma(out[r], from, Lanes::load(dx + at)));
        }
        Lanes::store(grad1 + m, sum1), Lanes::store(grad2 + m, sum2);
      }
    }
  }

  // n = r / sqrt(sum_h share_h r_h^2 + eps) of composed weights r, in place, and a = weight n +
  // bias into a, or in place of n. The factors of n into factors (null: not wanted), at the first
  // head.
  HEADLAB_DEVICE void norm_heads(T* r_then_n, T* a, T* factors) const {
    each_chunk(rows, [&](const Lanes& lanes, int64_t from, int64_t n, int64_t r) {
      lanes.each(n, [&](int64_t in_chunk) {
        const int64_t at = r * row_stride + from + in_chunk;
        X square(p.norm.eps);
        for (int64_t h = 0; h < p.group; ++h) {
          const X value = Lanes::load(r_then_n + at + h * p.padded);
          square = Lanes::fma(value * value, X(p.norm.share[h]), square);
        }
        const X factor = X(T(1)) / Lanes::sqrt(square);
        for (int64_t h = 0; h < p.group; ++h) {
          T* value = r_then_n + at + h * p.padded;
          const X normed = Lanes::load(value) * factor;
          if (a != r_then_n) Lanes::store(value, normed);
          Lanes::store(a + at + h * p.padded,
                       Lanes::fma(normed, X(p.norm.weight[h]), X(p.norm.bias[h])));
        }
        if (factors) Lanes::store(factors + at, factor);
      });
    });
  }
  // The gradient of r, in place of that of a, from n and the factors of norm_heads().
  HEADLAB_DEVICE void norm_backward(T* n, T* factors, T* da) const {
    each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
      const Row<Lanes> of{lanes, row_of(da, h, r), used()};
      const T* normed = row_of(n, h, r);
      const T of_weight =
          of.sum([&](const X& g, int64_t j) { return g * Lanes::load(normed + j); });
      const T of_bias = of.sum([](const X& g, int64_t) { return g; });
      if (!lanes.leader()) return;
      T* grad = p.norm.grad + (task.b * p.queries + first + r) * 2 * p.group;
      grad[h] = of_weight, grad[p.group + h] = of_bias;
    });
    each_chunk(rows, [&](const Lanes& lanes, int64_t from, int64_t count, int64_t r) {
      lanes.each(count, [&](int64_t in_chunk) {
        const int64_t at = r * row_stride + from + in_chunk;
        const X factor = Lanes::load(factors + at);
        X along(T(0));
        for (int64_t h = 0; h < p.group; ++h)
          along = Lanes::fma(Lanes::load(da + at + h * p.padded) * X(p.norm.weight[h]),
                             Lanes::load(n + at + h * p.padded), along);
        for (int64_t h = 0; h < p.group; ++h) {
          T* g = da + at + h * p.padded;
          const X own = Lanes::load(g) * X(p.norm.weight[h]);
          const X back = Lanes::load(n + at + h * p.padded) * along * X(p.norm.share[h]);
          Lanes::store(g, (own - back) * factor);
        }
      });
    });
  }

  // Compositions mix heads, and a norm has a bias: what is hidden from a head must not come back.
  HEADLAB_DEVICE void hide(T* a) const {
    const bool by_head = p.allowed.data && p.allowed.stride[1] != 0;
    if (!by_head && !p.norm.weight) return;
    each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
      T* row = row_of(a, h, r) - begin;
      each_hidden(lanes, p, task.b, task.head + h, first + r, begin, end,
                  [&](int64_t j) { row[j] = 0; });
    });
  }
};

}  // namespace headlab
