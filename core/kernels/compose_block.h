// A block of query rows of attention (compose_rows.h), written once for all teams (team.h).
#pragma once

#include "core/kernels/mixed_rows.h"

namespace headlab {

template <class T>
static HEADLAB_ANYWHERE bool mixes(const ComposeProblem<T>& p) {
  return p.pre.matrix || p.post.matrix;
}
// Maps of a block: scores, those composed, and going back the gradients of weights, room to compose
// and drop, the weights of a traced map, what is normed and its factors.
template <class T>
static HEADLAB_ANYWHERE int64_t forward_maps(const ComposeProblem<T>& p) {
  return mixes(p) ? 2 : 1;
}
template <class T>
static HEADLAB_ANYWHERE int64_t backward_maps(const ComposeProblem<T>& p) {
  return 2 + (p.pre.matrix != nullptr) + (mixes(p) || p.dropout.below > 0) + p.traced +
         2 * (p.norm.weight != nullptr);
}
// Elements of room of a block beside its panels; behind the maps a number of each row.
template <class Team, class T>
HEADLAB_ANYWHERE int64_t block_room(const ComposeProblem<T>& p, int64_t maps) {
  return (maps * p.padded + 1) * Team::kRows * p.group;
}

template <class Team, class Map>
struct RowBlock : MixedRows<Team> {
  using Base = MixedRows<Team>;
  using T = typename Base::T;
  using Lanes = typename Base::Lanes;
  using Base::begin;
  using Base::each_row;
  using Base::end;
  using Base::first;
  using Base::keys;
  using Base::matrix_of;
  using Base::p;
  using Base::row_of;
  using Base::row_stride;
  using Base::rows;
  using Base::rows_of;
  using Base::task;
  using Base::team;
  using Base::used;
  const Map& map;

  HEADLAB_DEVICE RowBlock(const Team& of, const ComposeProblem<T>& problem, const Map& by,
                          const ComposeTask& part, int64_t first_row, T* own_room)
      : Base(of, problem, part, first_row, own_room), map(by) {}

  // Scores, or gradients of weights: rows [.., width] times a panel.
  HEADLAB_DEVICE void products(const View<const T>& left, const Panel<T>& right, T* out) const {
    const int64_t n = Team::kPadsPanels ? used() : keys();
    team.multiply(
        p.group, {rows, n, left.size[3]}, [&](int64_t h) { return matrix_of(left, h, first); },
        [&](int64_t h) { return right.of(h, begin); },
        [&](int64_t h) {
          return RowMajor<T>{row_of(out, h, 0), row_stride};
        },
        false);
    if (n < used())
      each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
        T* row = row_of(out, h, r);
        lanes.entries(n, used() - 1, [&](int64_t j) { row[j] = 0; });
      });
  }
  // out[row] = sum_j map[row,j] right[j].
  HEADLAB_DEVICE void weigh(T* a, const View<const T>& right, const View<T>& out) const {
    team.multiply(
        p.group, {rows, out.size[3], keys()},
        [&](int64_t h) {
          return Strided<T>{row_of(a, h, 0), row_stride, 1};
        },
        [&](int64_t h) { return matrix_of(right, h, begin); },
        [&](int64_t h) { return rows_of(out, 0, h, first); }, false);
  }
  // out[j] += sum_row map[row,j] right[row], in the part of the slot.
  HEADLAB_DEVICE void spread(T* a, const View<const T>& right, const View<T>& out) const {
    team.multiply(
        p.group, {keys(), out.size[3], rows},
        [&](int64_t h) {
          return Strided<T>{row_of(a, h, 0), 1, row_stride};
        },
        [&](int64_t h) { return matrix_of(right, h, first); },
        [&](int64_t h) { return rows_of(out, task.slot, h, begin); }, true);
  }

  // What dropout leaves of a.
  HEADLAB_DEVICE void drop(const T* a, T* kept) const {
    const T factor = static_cast<T>(p.dropout.factor);
    each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
      const auto of_row = p.dropout.row((task.b * p.H + task.head + h) * p.queries + first + r);
      const int64_t at = r * row_stride + h * p.padded + begin, from = begin;
      const T* in = a + at;
      T* out = kept + at;
      lanes.entries(0, used() - 1, [&](int64_t j) {
        out[j] = of_row.keeps(static_cast<uint32_t>(from + j)) ? in[j] * factor : T(0);
      });
    });
  }

  HEADLAB_DEVICE T number(int64_t h) const {
    return p.by_head ? p.by_head[task.head + h] : p.number;
  }
  HEADLAB_DEVICE T* saved(int64_t h, int64_t r) const {
    return p.of_rows + ((task.b * p.H + task.head + h) * p.queries + first + r) * p.saved;
  }
  HEADLAB_DEVICE void mask(const Lanes& lanes, T* z, int64_t h, int64_t r) const {
    mask_scores(lanes, p, task.b, task.head + h, first + r, begin, end, row_of(z, h, r) - begin);
  }
  // Scores z as weights, in place.
  HEADLAB_DEVICE void weigh_rows(T* z) const {
    each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
      mask(lanes, z, h, r);
      map.weigh({lanes, row_of(z, h, r), used()}, number(h), saved(h, r));
    });
  }
  // The same again, from what was saved of the rows, into `weights`: z itself, but of a traced map,
  // where z keeps the trace.
  HEADLAB_DEVICE void weigh_again(T* z, T* weights) const {
    each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
      mask(lanes, z, h, r);
      map.again({lanes, row_of(z, h, r), used()}, number(h), saved(h, r), row_of(weights, h, r));
    });
  }
  // Of the scores, in place of those of the weights `a`, which weigh_again() made of z. of_numbers:
  // room [rows,group].
  HEADLAB_DEVICE void weigh_backward(T* z, T* a, T* grad, T* of_numbers) const {
    each_row([&](const Lanes& lanes, int64_t h, int64_t r) {
      const T of_row = map.backward({lanes, row_of(grad, h, r), used()}, row_of(z, h, r),
                                    row_of(a, h, r), number(h), saved(h, r));
      if (lanes.leader()) of_numbers[r * p.group + h] = of_row;
    });
    if (!p.grad_by_head) return;
    team.each(p.group, [&](const Lanes& lanes, int64_t h) {
      if (!lanes.leader()) return;
      T& sum = p.grad_by_head[(task.slot * p.B + task.b) * p.H + task.head + h];
      for (int64_t r = 0; r < rows; ++r) sum += of_numbers[r * p.group + h];
    });
    team.sync();
  }
};

template <class Team, class Map>
HEADLAB_DEVICE void forward_block(const RowBlock<Team, Map>& block,
                                  const Panel<typename Team::Number>& keys) {
  using T = typename Team::Number;
  const auto& p = block.p;
  T *s = block.buffer(0), *other = mixes(p) ? block.buffer(1) : nullptr;
  block.products(p.q, keys, s);
  T* u = s;
  if (p.pre.matrix) u = other, block.compose(s, p.pre, u);
  block.weigh_rows(u);
  T* a = u;
  if (p.post.matrix) {
    a = u == s ? other : s;
    block.compose(u, p.post, a);
    if (p.norm.weight) block.norm_heads(a, a, nullptr);
    block.hide(a);
  }
  if (p.dropout.below > 0) block.drop(a, a);
  block.weigh(a, p.v, p.output);
}

template <class Team, class Map>
HEADLAB_DEVICE void backward_block(const RowBlock<Team, Map>& block,
                                   const Panel<typename Team::Number>& keys,
                                   const Panel<typename Team::Number>& values) {
  using T = typename Team::Number;
  const auto& p = block.p;
  int64_t used = 0;
  T* s = block.buffer(used++);
  T* u = p.pre.matrix ? block.buffer(used++) : s;
  T* da = block.buffer(used++);
  T* other = mixes(p) || p.dropout.below > 0 ? block.buffer(used++) : nullptr;
  T* weights = p.traced ? block.buffer(used++) : u;
  T* normed = p.norm.weight ? block.buffer(used++) : nullptr;
  T* factors = p.norm.weight ? block.buffer(used++) : nullptr;
  block.products(p.q, keys, s);
  if (p.pre.matrix) block.compose(s, p.pre, u);
  block.weigh_again(u, weights);
  T* a = weights;
  if (p.post.matrix) {
    if (normed) {
      block.compose(weights, p.post, normed);
      block.norm_heads(normed, other, factors);
    } else {
      block.compose(weights, p.post, other);
    }
    block.hide(other);
    a = other;
  }
  if (p.dropout.below > 0) {
    block.drop(a, other);
    a = other;
  }
  block.spread(a, p.grad_output, p.grad_v);
  block.products(p.grad_output, values, da);
  if (p.dropout.below > 0) block.drop(da, da);
  T* du = da;
  if (p.post.matrix) {
    block.hide(da);
    if (normed) block.norm_backward(normed, factors, da);
    du = other;
    block.compose_backward(weights, da, p.post, du);
  }
  block.weigh_backward(u, weights, du, block.buffer(used));
  T* ds = du;
  if (p.pre.matrix) {
    ds = du == other ? da : other;
    block.compose_backward(s, du, p.pre, ds);
  }
  block.weigh(ds, p.k, p.grad_q);
  block.spread(ds, p.q, p.grad_k);
}

// The blocks of a task, one after the other.
template <class Team, class Map, class T>
HEADLAB_DEVICE void forward_task(const Team& team, const ComposeProblem<T>& p, const Map& map,
                                 int64_t task, T* room, T* panels) {
  const auto part = compose_task(p, task);
  const auto keys = team.panel(p.k, part.b, part.head, p.group, p.padded, panels);
  for (int64_t first = part.slot * Team::kRows; first < p.queries; first += p.slots * Team::kRows)
    forward_block(RowBlock<Team, Map>(team, p, map, part, first, room), keys);
}
template <class Team, class Map, class T>
HEADLAB_DEVICE void backward_task(const Team& team, const ComposeProblem<T>& p, const Map& map,
                                  int64_t task, T* room, T* panels) {
  const auto part = compose_task(p, task);
  const auto keys = team.panel(p.k, part.b, part.head, p.group, p.padded, panels);
  const auto values =
      team.panel(p.v, part.b, part.head, p.group, p.padded, panels + p.group * p.d * p.padded);
  for (int64_t first = part.slot * Team::kRows; first < p.queries; first += p.slots * Team::kRows)
    backward_block(RowBlock<Team, Map>(team, p, map, part, first, room), keys, values);
}

}  // namespace headlab
