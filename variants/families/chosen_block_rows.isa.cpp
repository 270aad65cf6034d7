// Rows over the blocks of keys that each has chosen, block after block: up to kChosenTileRows rows
// that see a block meet it at once and lie in vector lanes, or features do.
#include "variants/families/chosen_block_rows.h"

#include "core/kernels/products.h"

namespace headlab::CPU_CAPABILITY {

constexpr int64_t kLanes = kChosenTileRows;

// Some queries of (b, h) that see block c, ascending.
template <class T>
struct ChosenTile {
  const ChosenBlockRows<T>& p;
  int64_t b, h, c, at;  // at: of the block among those of all examples and key/value heads
  const int64_t* queries;
  int64_t count;

  int64_t row(int64_t r) const { return (b * p.H + h) * p.queries + queries[r]; }
  // How many of its keys a row sees; the last row sees the most.
  int64_t keys(int64_t r) const {
    const int64_t left = p.place[b * p.queries + queries[r]] - c * p.block + 1;
    return left < p.block ? left : p.block;
  }
  int64_t keys() const { return keys(count - 1); }
  // How many of its first keys lie too far back for a row; for the last row the most.
  int64_t behind(int64_t r) const {
    const int64_t first = p.place[b * p.queries + queries[r]] - p.back - c * p.block;
    return first > 0 ? first : 0;
  }
  const T* k() const { return p.k + at * p.block * p.wide_d; }
  const T* v() const { return p.v + at * p.block * p.wide_e; }
};

// work(tile) of all tiles of (b, h), which uses row g of the keys and values.
template <class T, class Work>
void each_tile(const ChosenBlockRows<T>& p, int64_t b, int64_t h, int64_t g, const Work& work) {
  for (int64_t c = 0; c < p.blocks; ++c) {
    const int64_t list = (b * p.H + h) * p.blocks + c, at = (b * p.kv_heads + g) * p.blocks + c;
    for (int64_t n = p.starts[list]; n < p.starts[list + 1]; n += kLanes) {
      const int64_t left = p.starts[list + 1] - n;
      work(ChosenTile<T>{p, b, h, c, at, p.seeing + n, left < kLanes ? left : kLanes});
    }
  }
}

// The tile's rows of x [B,H,T,width] as rows [count,width] and as columns [width,kLanes].
template <class T>
void gather(const ChosenTile<T>& tile, const T* x, int64_t width, T* rows, T* columns) {
  for (int64_t r = 0; r < tile.count; ++r)
    __builtin_memcpy(rows + r * width, x + tile.row(r) * width, width * sizeof(T));
  transpose(rows, width, tile.count, width, columns, kLanes);
}

// Products of the keys (or values) x [keys,width] with the rows: [keys,kLanes].
template <class T>
void meet(const ChosenTile<T>& tile, const T* x, int64_t width, const T* columns, T* products) {
  multiply<T>({tile.keys(), kLanes, width}, {x, width, 1}, {columns, kLanes, 1}, {products, kLanes},
              false);
}

// work(first lane) of each vector of rows.
template <class T, class Work>
void each_vector(const Work& work) {
  for (int64_t r = 0; r < kLanes; r += Vec<T>::size()) work(r);
}

// Products become scores, -infinity where a key is hidden from a row.
template <class T>
void score(const ChosenTile<T>& tile, T* z) {
  using Lanes = VectorLanes<T>;
  using X = Vec<T>;
  const int64_t keys = tile.keys(), of_all = tile.keys(0), behind = tile.behind(tile.count - 1);
  T ends[kLanes] = {}, begins[kLanes] = {};
  for (int64_t r = 0; r < tile.count; ++r)
    ends[r] = static_cast<T>(tile.keys(r)), begins[r] = static_cast<T>(tile.behind(r));
  const X scale(static_cast<T>(tile.p.scale)), hidden(kLowest<T>);
  each_vector<T>([&](int64_t r) {
    const X end = X::loadu(ends + r), begin = X::loadu(begins + r);
    const auto change = [&](int64_t first, int64_t last, const auto& to) {
      for (int64_t j = first; j < last; ++j) {
        T* at = z + j * kLanes + r;
        to(X::loadu(at), X(static_cast<T>(j))).store(at);
      }
    };
    change(0, keys, [&](const X& x, const X&) { return x * scale; });
    change(of_all, keys, [&](const X& x, const X& j) { return Lanes::where(end > j, x, hidden); });
    change(0, behind < keys ? behind : keys,
           [&](const X& x, const X& j) { return Lanes::where(begin > j, hidden, x); });
  });
}

// What rows have summed so far: their highest score, and the sum of exp(score - highest); and the
// factor of those sums when a block is added.
template <class T>
struct Running {
  T highest[kLanes] = {}, sum[kLanes] = {}, factor[kLanes] = {};
};

// Scores z [keys,kLanes] become exp(z - highest).
template <class T>
void weigh(T* z, int64_t keys, Running<T>& so_far) {
  using Lanes = VectorLanes<T>;
  using X = Vec<T>;
  each_vector<T>([&](int64_t r) {
    const X before = X::loadu(so_far.highest + r), lowest(kLowest<T>);
    X most = before, sum(T(0));
    for (int64_t j = 0; j < keys; ++j) most = Lanes::max(most, X::loadu(z + j * kLanes + r));
    const X base = Lanes::where(most > lowest, most, X(T(0)));
    for (int64_t j = 0; j < keys; ++j) {
      const X weight = Lanes::near_exp(X::loadu(z + j * kLanes + r) - base);
      weight.store(z + j * kLanes + r);
      sum = sum + weight;
    }
    const X factor = Lanes::near_exp(before - base);
    factor.store(so_far.factor + r);
    Lanes::fma(X::loadu(so_far.sum + r), factor, sum).store(so_far.sum + r);
    most.store(so_far.highest + r);
  });
}

template <class T>
void attend_tile(const ChosenTile<T>& tile, T* sums, T* room) {
  const auto& p = tile.p;
  const int64_t n = tile.count, wd = p.wide_d, we = p.wide_e, keys = tile.keys();
  T *z = room, *rows = z + p.block * kLanes, *columns = rows + kLanes * wd,
    *more = columns + kLanes * wd;
  gather(tile, p.q, wd, rows, columns);
  meet(tile, tile.k(), wd, columns, z);
  score(tile, z);
  Running<T> so_far;
  for (int64_t r = 0; r < n; ++r)
    so_far.highest[r] = p.lse[tile.row(r)], so_far.sum[r] = sums[tile.queries[r]];
  weigh(z, keys, so_far);
  multiply<T>({n, we, keys}, {z, 1, kLanes}, {tile.v(), we, 1}, {more, we}, false);
  for (int64_t r = 0; r < n; ++r) {
    p.lse[tile.row(r)] = so_far.highest[r], sums[tile.queries[r]] = so_far.sum[r];
    T* out = p.out + tile.row(r) * we;
    for (int64_t c = 0; c < we; ++c) out[c] = out[c] * so_far.factor[r] + more[r * we + c];
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
    const bool finite = lse < -kLowest<T>;
    for (int64_t c = 0; c < p.wide_e; ++c) out[c] = finite ? out[c] / sums[i] : lse * T(0);
    lse += std::log(sums[i]);
  }
}

// Scores z become the weights by the log-sum-exp of the rows, products of dOut and the values the
// gradients of the scores, p (dOut v^T - sum(dOut out)), times the scale.
template <class T>
void weigh_back(const ChosenTile<T>& tile, T* z, T* slopes) {
  using Lanes = VectorLanes<T>;
  using X = Vec<T>;
  const auto& p = tile.p;
  T lse[kLanes] = {}, drop[kLanes] = {};
  for (int64_t r = 0; r < tile.count; ++r)
    lse[r] = p.lse[tile.row(r)], drop[r] = p.drop[tile.row(r)];
  const X scale(static_cast<T>(p.scale));
  const int64_t keys = tile.keys();
  each_vector<T>([&](int64_t r) {
    const X of_rows = X::loadu(lse + r), less = X::loadu(drop + r);
    for (int64_t j = r; j < keys * kLanes; j += kLanes) {
      const X weight = Lanes::near_exp(X::loadu(z + j) - of_rows);
      weight.store(z + j);
      (weight * (X::loadu(slopes + j) - less) * scale).store(slopes + j);
    }
  });
}

template <class T>
void attend_tile_back(const ChosenTile<T>& tile, T* room) {
  const auto& p = tile.p;
  const int64_t n = tile.count, wd = p.wide_d, we = p.wide_e, keys = tile.keys();
  T *z = room, *slopes = z + p.block * kLanes, *q = slopes + p.block * kLanes,
    *columns = q + kLanes * wd, *g = columns + kLanes * wd, *g_columns = g + kLanes * we,
    *for_q = g_columns + kLanes * we;
  gather(tile, p.q, wd, q, columns);
  gather(tile, p.grad_out, we, g, g_columns);
  meet(tile, tile.k(), wd, columns, z);
  meet(tile, tile.v(), we, g_columns, slopes);
  score(tile, z);
  weigh_back(tile, z, slopes);
  multiply<T>({keys, wd, n}, {slopes, kLanes, 1}, {q, wd, 1},
              {p.grad_k + tile.at * p.block * wd, wd}, true);
  multiply<T>({keys, we, n}, {z, kLanes, 1}, {g, we, 1}, {p.grad_v + tile.at * p.block * we, we},
              true);
  multiply<T>({n, wd, keys}, {slopes, 1, kLanes}, {tile.k(), wd, 1}, {for_q, wd}, false);
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
