// Rows over the blocks of keys that each has chosen, block after block: some of the rows that see a
// block meet it at once. The keys of a block, or features, lie in vector lanes.
#include "core/kernels/chosen_block_rows.h"

#include "core/kernels/products.h"

namespace headlab::CPU_CAPABILITY {

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

// work(tile) of all tiles of (b, h), which uses row g of the keys and values.
template <class T, class Work>
void each_tile(const ChosenBlockRows<T>& p, int64_t b, int64_t h, int64_t g, const Work& work) {
  for (int64_t c = 0; c < p.blocks; ++c) {
    const int64_t list = (b * p.H + h) * p.blocks + c, at = (b * p.kv_heads + g) * p.blocks + c;
    for (int64_t n = p.starts[list]; n < p.starts[list + 1]; n += kChosenTileRows) {
      const int64_t left = p.starts[list + 1] - n;
      work(ChosenTile<T>{p, b, h, c, at, p.seeing + n,
                         left < kChosenTileRows ? left : kChosenTileRows});
    }
  }
}

template <class T>
void gather(const ChosenTile<T>& tile, const T* rows, int64_t width, T* to) {
  for (int64_t r = 0; r < tile.count; ++r)
    __builtin_memcpy(to + r * width, rows + tile.row(r) * width, width * sizeof(T));
}

// z [count,padded] = q k^T.
template <class T>
void multiply_keys(const ChosenTile<T>& tile, const T* q, T* z) {
  const auto& p = tile.p;
  multiply<T>({tile.count, p.padded, p.d}, {q, p.wide_d, 1},
              {p.k_lanes + tile.at * p.d * p.padded, p.padded, 1}, {z, p.padded}, false);
}

// What a row has summed so far: its highest score, and the sum of exp(score - highest).
template <class T>
struct Running {
  T &highest, &sum;
};

// Products of a row become exp(scale z - highest), 0 where a key is hidden. Returns the factor of
// what was summed before.
template <class T>
T weigh_row(T* z, int64_t keys, int64_t padded, T scale, Running<T> so_far) {
  using Lanes = VectorLanes<T>;
  using X = Vec<T>;
  for (int64_t j = 0; j < keys; ++j) z[j] *= scale;
  for (int64_t j = keys; j < padded; ++j) z[j] = kLowest<T>;
  X most(so_far.highest);
  Lanes::each(padded, [&](int64_t j) { most = Lanes::max(most, Lanes::load(z + j)); });
  const T highest = Lanes::most(most), base = highest == kLowest<T> ? T(0) : highest;
  X sum(T(0));
  Lanes::each(padded, [&](int64_t j) {
    const X weight = Lanes::near_exp(Lanes::load(z + j) - X(base));
    Lanes::store(z + j, weight);
    sum = sum + weight;
  });
  const T factor = std::exp(so_far.highest - base);
  so_far.sum = so_far.sum * factor + Lanes::sum(sum);
  so_far.highest = highest;
  return factor;
}

template <class T>
void attend_tile(const ChosenTile<T>& tile, T* sums, T* room) {
  const auto& p = tile.p;
  const int64_t n = tile.count, we = p.wide_e;
  T *z = room, *q = z + n * p.padded, *more = q + n * p.wide_d, factors[kChosenTileRows];
  gather(tile, p.q, p.wide_d, q);
  multiply_keys(tile, q, z);
  for (int64_t r = 0; r < n; ++r)
    factors[r] = weigh_row(z + r * p.padded, tile.keys(r), p.padded, static_cast<T>(p.scale),
                           Running<T>{p.lse[tile.row(r)], sums[tile.queries[r]]});
  const int64_t keys = tile.keys(n - 1);  // queries ascend
  multiply<T>({n, we, keys}, {z, p.padded, 1}, {p.v_rows + tile.at * p.block * we, we, 1},
              {more, we}, false);
  for (int64_t r = 0; r < n; ++r) {
    T* out = p.out + tile.row(r) * we;
    for (int64_t c = 0; c < we; ++c) out[c] = out[c] * factors[r] + more[r * we + c];
  }
}

template <class T>
void attend_rows(const ChosenBlockRows<T>& p, int64_t task, T* room) {
  const int64_t b = task / p.H, h = task % p.H, first = task * p.queries;
  T* sums = room;
  for (int64_t i = 0; i < p.queries; ++i) sums[i] = 0, p.lse[first + i] = kLowest<T>;
  for (int64_t n = 0; n < p.queries * p.wide_e; ++n) p.out[first * p.wide_e + n] = 0;
  each_tile(p, b, h, p.kv_head[h],
            [&](const ChosenTile<T>& tile) { attend_tile(tile, sums, room + p.queries); });
  for (int64_t i = 0; i < p.queries; ++i) {
    T &lse = p.lse[first + i], *out = p.out + (first + i) * p.wide_e;
    if (lse == kLowest<T>) continue;
    // near_exp() may make numbers of NaN.
    const T by = lse < -kLowest<T> ? 1 / sums[i] : lse - lse;
    for (int64_t c = 0; c < p.wide_e; ++c) out[c] = by == by ? out[c] * by : by;
    lse += std::log(sums[i]);
  }
}

// z [count,padded] becomes the weights by the log-sum-exp of the rows, slopes the gradients of the
// scores, p (dOut v^T - sum(dOut out)); 0 where a key is hidden.
template <class T>
void weigh_back(const ChosenTile<T>& tile, T* z, T* slopes) {
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
  gather(tile, p.q, wd, q);
  gather(tile, p.grad_out, we, g);
  multiply_keys(tile, q, z);
  multiply<T>({n, p.padded, we}, {g, we, 1}, {p.v_lanes + tile.at * we * p.padded, p.padded, 1},
              {slopes, p.padded}, false);
  weigh_back(tile, z, slopes);
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
void attend_rows_back(const ChosenBlockRows<T>& p, int64_t task, T* room) {
  const int64_t g = task % p.kv_heads;
  for (int64_t h = 0; h < p.H; ++h)
    if (p.kv_head[h] == g)
      each_tile(p, task / p.kv_heads, h, g,
                [&](const ChosenTile<T>& tile) { attend_tile_back(tile, room); });
}

template <class T>
ChosenBlockKernels<T> chosen_block_kernels_of() {
  return {attend_rows<T>, attend_rows_back<T>};
}
OfTypes<ChosenBlockKernels> chosen_block_kernels() {
  return {chosen_block_kernels_of<float>(), chosen_block_kernels_of<double>()};
}

}  // namespace headlab::CPU_CAPABILITY
