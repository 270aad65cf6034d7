// Rows over the blocks of keys that each has chosen: the keys of a block, or features, lie in
// vector lanes.
#include "core/kernels/chosen_block_rows.h"

#include "core/kernels/products.h"

namespace headlab::CPU_CAPABILITY {

// Query i of head h of example b.
template <class T>
struct ChosenRow {
  const ChosenBlockRows<T>& p;
  int64_t b, h, i;

  int64_t row() const { return (b * p.H + h) * p.queries + i; }
  const T* q() const { return p.q + row() * p.wide_d; }
  // Of the blocks of its keys, counted over examples and key/value heads, block c.
  int64_t at(int64_t c) const { return (b * p.kv_heads + p.kv_head[h]) * p.blocks + c; }
  // work(slot, block, keys of it that the row sees), of each block that it sees.
  template <class Work>
  void each(const Work& work) const {
    const int64_t* chosen = p.chosen + row() * p.slots;
    const int64_t place = p.place[b * p.queries + i];
    for (int64_t s = 0; s < p.slots; ++s) {
      const int64_t c = chosen[s], left = place - c * p.block + 1;
      if (c >= 0 && left > 0) work(s, c, left < p.block ? left : p.block);
    }
  }
};

// c[x] (+)= sum_k a[k] b[k,x], n of x.
template <class T>
void multiply_row(const T* a, const Strided<T>& b, int64_t K, T* c, int64_t n, bool add) {
  constexpr int64_t one = Vec<T>::size();
  in_tiles<4>(n / one, [&](int64_t x, auto vectors) {
    multiply_tile<1, vectors>(K, Strided<T>{a, 0, 1}, Strided<T>{b.at + x * one, b.row, 1},
                              RowMajor<T>{c + x * one, 0}, add);
  });
}

// z [slots,padded]: the scores of the keys that a row sees, -infinity elsewhere.
template <class T>
void score_row(const ChosenRow<T>& row, T* z) {
  const auto& p = row.p;
  for (int64_t j = 0; j < p.slots * p.padded; ++j) z[j] = kLowest<T>;
  const T scale = static_cast<T>(p.scale);
  row.each([&](int64_t s, int64_t c, int64_t keys) {
    T* of = z + s * p.padded;
    multiply_row<T>(row.q(), {p.k_lanes + row.at(c) * p.d * p.padded, p.padded, 1}, p.d, of,
                    p.padded, false);
    for (int64_t j = 0; j < keys; ++j) of[j] *= scale;
    for (int64_t j = keys; j < p.padded; ++j) of[j] = kLowest<T>;
  });
}

template <class T>
void attend_row(const ChosenRow<T>& row, T* z) {
  using Lanes = VectorLanes<T>;
  using X = Vec<T>;
  const auto& p = row.p;
  T* out = p.out + row.row() * p.wide_e;
  for (int64_t c = 0; c < p.wide_e; ++c) out[c] = 0;
  score_row(row, z);
  const int64_t n = p.slots * p.padded;
  X top(kLowest<T>);
  Lanes::each(n, [&](int64_t j) { top = Lanes::max(top, Lanes::load(z + j)); });
  const T highest = Lanes::most(top);
  T& lse = p.lse[row.row()];
  lse = highest;
  if (highest == kLowest<T>) return;
  if (!(highest < -kLowest<T>)) {  // near_exp() may make numbers of NaN
    for (int64_t c = 0; c < p.wide_e; ++c) out[c] = highest - highest;
    return;
  }
  X sum(T(0));
  Lanes::each(n, [&](int64_t j) {
    const X weight = Lanes::near_exp(Lanes::load(z + j) - X(highest));
    Lanes::store(z + j, weight);
    sum = sum + weight;
  });
  const T Z = Lanes::sum(sum);
  lse = highest + std::log(Z);
  row.each([&](int64_t s, int64_t c, int64_t keys) {
    multiply_row<T>(z + s * p.padded, {p.v_rows + row.at(c) * p.block * p.wide_e, p.wide_e, 1},
                    keys, out, p.wide_e, true);
  });
  for (int64_t c = 0; c < p.wide_e; ++c) out[c] /= Z;
}

template <class T>
void attend_rows_of(const ChosenBlockRows<T>& p, int64_t task, T* room) {
  const int64_t tasks = chosen_row_tasks(p), head = task / tasks;
  const int64_t first = task % tasks * kChosenBlockRows, left = p.queries - first;
  const int64_t count = left < kChosenBlockRows ? left : kChosenBlockRows;
  for (int64_t i = first; i < first + count; ++i)
    attend_row<T>({p, head / p.H, head % p.H, i}, room);
}

// Some queries of (b, h) that see block c.
template <class T>
struct ChosenTile {
  const ChosenBlockRows<T>& p;
  int64_t b, h, c, at;  // at: of the block among those of all examples and key/value heads
  const int64_t* queries;
  int64_t count;

  int64_t row(int64_t r) const { return (b * p.H + h) * p.queries + queries[r]; }
  int64_t keys(int64_t r) const {
    const int64_t left = p.place[b * p.queries + queries[r]] - c * p.block + 1;
    return left < p.block ? left : p.block;
  }
};

// z [count,padded] becomes the weights by the log-sum-exp of the rows, slopes the gradients of the
// scores, p (dOut v^T - sum(dOut out)); 0 where a key is hidden.
template <class T>
void weigh_tile(const ChosenTile<T>& tile, T* z, T* slopes) {
  using Lanes = VectorLanes<T>;
  using X = Vec<T>;
  const auto& p = tile.p;
  const X scale(static_cast<T>(p.scale));
  for (int64_t r = 0; r < tile.count; ++r) {
    T *weights = z + r * p.padded, *of = slopes + r * p.padded;
    const X lse(p.lse[tile.row(r)]), drop(p.drop[tile.row(r)]);
    Lanes::each(p.padded, [&](int64_t j) {
      const X weight = Lanes::near_exp(Lanes::load(weights + j) * scale - lse);
      Lanes::store(weights + j, weight);
      Lanes::store(of + j, weight * (Lanes::load(of + j) - drop) * scale);
    });
    for (int64_t j = tile.keys(r); j < p.padded; ++j) weights[j] = of[j] = 0;
  }
}

template <class T>
void attend_tile_back(const ChosenTile<T>& tile, T* room) {
  const auto& p = tile.p;
  const int64_t n = tile.count, wd = p.wide_d, we = p.wide_e, first = tile.at * p.block;
  T *z = room, *slopes = z + n * p.padded, *q = slopes + n * p.padded, *for_q = q + n * wd,
    *g = for_q + n * wd;
  for (int64_t r = 0; r < n; ++r) {
    __builtin_memcpy(q + r * wd, p.q + tile.row(r) * wd, wd * sizeof(T));
    __builtin_memcpy(g + r * we, p.grad_out + tile.row(r) * we, we * sizeof(T));
  }
  multiply<T>({n, p.padded, p.d}, {q, wd, 1}, {p.k_lanes + tile.at * p.d * p.padded, p.padded, 1},
              {z, p.padded}, false);
  multiply<T>({n, p.padded, we}, {g, we, 1}, {p.v_lanes + tile.at * we * p.padded, p.padded, 1},
              {slopes, p.padded}, false);
  weigh_tile(tile, z, slopes);
  multiply<T>({p.block, wd, n}, {slopes, 1, p.padded}, {q, wd, 1}, {p.grad_k + first * wd, wd},
              true);
  multiply<T>({p.block, we, n}, {z, 1, p.padded}, {g, we, 1}, {p.grad_v + first * we, we}, true);
  multiply<T>({n, wd, p.block}, {slopes, p.padded, 1}, {p.k_rows + first * wd, wd, 1}, {for_q, wd},
              false);
  for (int64_t r = 0; r < n; ++r) {
    T* to = p.grad_q + tile.row(r) * wd;
    for (int64_t c = 0; c < wd; ++c) to[c] += for_q[r * wd + c];
  }
}

template <class T>
void attend_blocks_back(const ChosenBlockRows<T>& p, int64_t task, T* room) {
  const int64_t b = task / p.kv_heads;
  for (int64_t h = 0; h < p.H; ++h) {
    if (p.kv_head[h] != task % p.kv_heads) continue;
    for (int64_t c = 0; c < p.blocks; ++c) {
      const int64_t list = (b * p.H + h) * p.blocks + c;
      for (int64_t n = p.starts[list]; n < p.starts[list + 1]; n += kChosenTileRows) {
        const int64_t left = p.starts[list + 1] - n;
        attend_tile_back<T>({p, b, h, c, task * p.blocks + c, p.seeing + n,
                             left < kChosenTileRows ? left : kChosenTileRows},
                            room);
      }
    }
  }
}

template <class T>
ChosenBlockKernels<T> chosen_block_kernels_of() {
  return {attend_rows_of<T>, attend_blocks_back<T>};
}
OfTypes<ChosenBlockKernels> chosen_block_kernels() {
  return {chosen_block_kernels_of<float>(), chosen_block_kernels_of<double>()};
}

}  // namespace headlab::CPU_CAPABILITY
