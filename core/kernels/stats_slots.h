// Statistics of the rows of a slot, and divergences between heads (row_stats.h), written once for
// all teams.
#pragma once

#include "core/kernels/row_count.h"
#include "core/kernels/row_finish.h"
#include "core/kernels/team.h"

namespace headlab {

// The keys of head h: all slots of a head read them, so that a CPU has transposed them before.
template <class Team, class T>
HEADLAB_DEVICE Panel<T> keys_of(const RowProblem<T>& p, int64_t b, int64_t h) {
  const int64_t head = p.kv_head ? p.kv_head[h] : h, padded = padded_keys(p);
  if constexpr (!Team::kPadsPanels) return panel_in_place(p.k, b, head);
  return {p.panels + (b * p.k.size[1] + head) * p.d * padded, p.d * padded, padded, 1};
}

// Rows `first`, first + stride, ... (`n` of them) of a head, their products with the keys in z
// [n,padded].
template <class Team, class T>
HEADLAB_DEVICE void multiply_keys(const Team& team, const RowProblem<T>& p, int64_t b, int64_t h,
                                  int64_t first, int64_t stride, int64_t n, const Panel<T>& keys,
                                  int64_t end, T* z) {
  const int64_t in_use = Team::kPadsPanels || end < p.keys ? end : p.keys;
  team.multiply(
      1, {n, in_use, p.d},
      [&](int64_t) {
        return Strided<T>{row_at(p.q, b, h, first), stride * p.q.stride[2], 1};
      },
      [&](int64_t) { return keys.of(0, 0); },
      [&](int64_t) {
        return RowMajor<T>{z, padded_keys(p)};
      },
      false);
}

// Elements of room of stats_slot() and of divergence_slot().
template <class Team, class T>
HEADLAB_ANYWHERE int64_t stats_room(const RowProblem<T>& p) {
  return Team::kRows * padded_keys(p) + kRowNumbers * kColumns;
}
template <class T>
static HEADLAB_ANYWHERE int64_t divergence_room(const RowProblem<T>& p) {
  return kJsRowsPerSlot * p.H * padded_keys(p);
}

// offsets [rows of the slot]: argmax_j a - i, or kNoRow.
template <class Team, class T>
HEADLAB_DEVICE void stats_slot(const Team& team, const RowProblem<T>& p, int64_t slot,
                               const RowTotals& to, int32_t* offsets, ColumnTotals& totals,
                               T* room) {
  using Lanes = typename Team::Lanes;
  static_assert(Team::kRows <= kColumns);
  const int64_t blocks = (p.queries + kRowsPerSlot - 1) / kRowsPerSlot, padded = padded_keys(p);
  const int64_t b = slot / (p.H * blocks), h = slot / blocks % p.H;
  const int64_t begin = slot % blocks * kRowsPerSlot, counted = counted_queries(p, b);
  const int64_t end = begin + kRowsPerSlot < counted ? begin + kRowsPerSlot : counted;
  T* numbers = room + Team::kRows * padded;
  team.each(kColumns, [&](const Lanes& lanes, int64_t r) {
    lanes.entries(0, kRowStatistics - 1,
                  [&](int64_t s) { totals.sums[s][r] = totals.counts[s][r] = 0; });
    lanes.entries(0, kRowMaxima - 1, [&](int64_t s) { totals.maxima[s][r] = kLowest<double>; });
  });
  team.each(kRowsPerSlot, [&](const Lanes& lanes, int64_t r) {
    if (lanes.leader()) offsets[r] = kNoRow;
  });
  const auto keys = keys_of<Team>(p, b, h);
  for (int64_t first = begin; first < end; first += Team::kRows) {
    const int64_t rows = end - first < Team::kRows ? end - first : Team::kRows;
    int64_t last = -1;
    for (int64_t r = 0; r < rows; ++r) {
      const KeySpan span = key_span(p, b, first + r);
      if (span.last > last) last = span.last;
    }
    const int64_t in_use = (last + kRowLanes) / kRowLanes * kRowLanes;
    multiply_keys(team, p, b, h, first, 1, rows, keys, in_use, room);
    team.each(kColumns, [&](const Lanes& lanes, int64_t r) {
      if (r >= rows) return to_column(lanes, numbers + r).set(kPeak, kLowest<T>);
      const int32_t offset =
          count_row(lanes, scored_row(p, b, h, first + r, room + r * padded), numbers + r);
      if (lanes.leader()) offsets[first - begin + r] = offset;
    });
    team.sync();
    team.each(1, [&](const Lanes& lanes, int64_t) {
      FinishedRows<Lanes, T>{p, b, h, first, rows, numbers, totals}.finish(lanes);
    });
    team.sync();
  }
  team.sync();
  team.each(int64_t{kRowStatistics} + int64_t{kRowMaxima}, [&](const Lanes& lanes, int64_t s) {
    if (!lanes.leader()) return;
    if (const int64_t of_maxima = s - kRowStatistics; of_maxima >= 0) {
      double highest = kLowest<double>;
      for (const double of_column : totals.maxima[of_maxima])
        if (of_column > highest) highest = of_column;
      to.maxima[of_maxima] = highest;
      return;
    }
    double sum = 0, count = 0;
    for (int64_t r = 0; r < kColumns; ++r) sum += totals.sums[s][r], count += totals.counts[s][r];
    to.sums[s] = sum, to.counts[s] = count;
  });
  team.sync();
}

// Jensen-Shannon divergence between all heads at query rows first, first + stride, ... (at most
// kJsRowsPerSlot of them) of example b, added to sums, counts [H,H]. entropy: room for kMostHeads x
// kJsRowsPerSlot.
template <class Team, class T>
HEADLAB_DEVICE void divergence_slot(const Team& team, const RowProblem<T>& p, int64_t b,
                                    int64_t first, int64_t stride, double* sums, double* counts,
                                    double* entropy, T* room) {
  using Lanes = typename Team::Lanes;
  const int64_t padded = padded_keys(p), counted = counted_queries(p, b);
  int64_t n = 0;
  while (n < kJsRowsPerSlot && first + n * stride < counted) ++n;
  const auto weights = [&](int64_t h, int64_t r) {  // [H,kJsRowsPerSlot,padded]
    return room + (h * kJsRowsPerSlot + r) * padded;
  };
  for (int64_t h = 0; n > 0 && h < p.H; ++h) {
    multiply_keys(team, p, b, h, first, stride, n, keys_of<Team>(p, b, h), padded, weights(h, 0));
  }
  team.each(p.H * n, [&](const Lanes& lanes, int64_t item) {
    const int64_t h = item / n, r = item % n;
    const double nats = weigh_keys(lanes, scored_row(p, b, h, first + r * stride, weights(h, r)));
    if (lanes.leader()) entropy[h * kJsRowsPerSlot + r] = nats;
  });
  team.sync();
  team.each(p.H * p.H, [&](const Lanes& lanes, int64_t pair) {
    const int64_t h = pair / p.H, g = pair % p.H;
    if (g < h) return;
    double sum = 0, count = 0;
    for (int64_t r = 0; r < n; ++r) {
      const double of_h = entropy[h * kJsRowsPerSlot + r], of_g = entropy[g * kJsRowsPerSlot + r];
      if (of_h < 0 || of_g < 0) continue;
      if (g != h)
        sum += mixture_entropy(lanes, weights(h, r), weights(g, r),
                               key_span(p, b, first + r * stride)) -
               (of_h + of_g) / 2;
      count += 1;
    }
    if (!lanes.leader()) return;
    sums[pair] += sum, counts[pair] += count;
    if (g != h) sums[g * p.H + h] += sum, counts[g * p.H + h] += count;
  });
  team.sync();
}

}  // namespace headlab
