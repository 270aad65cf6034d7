// Blocks of rows of a convolved map: keys lie in vector lanes.
#include "core/kernels/products.h"
#include "variants/mta/convolution_rows.h"

namespace headlab::CPU_CAPABILITY {

// Rows of a map with zeros around them, and the columns begin .. end - 1 beyond which all are 0.
template <class T>
struct PaddedRows {
  T* at;
  int64_t width, begin, end;
  const T* row(int64_t r) const { return at + r * width; }
};

// Zeros where a key is not seen: most eights of keys are seen as a whole, or not at all.
template <class T>
void hide(const bool* seen, int64_t keys, T* row) {
  constexpr uint64_t all = 0x0101010101010101;
  int64_t j = 0;
  for (; j + 8 <= keys; j += 8) {
    uint64_t eight;
    __builtin_memcpy(&eight, seen + j, 8);
    if (eight == all) continue;
    for (int64_t c = j; c < j + 8; ++c)
      if (!seen[c]) row[c] = 0;
  }
  for (; j < keys; ++j)
    if (!seen[j]) row[j] = 0;
}

template <class T>
bool all_zero(const T* vector) {
  return Vec<T>::loadu(vector).zero_mask() == (1 << Vec<T>::size()) - 1;
}

// Row r of `count` is row first + r of x [B,H,n,keys], 0 where there is none or it is hidden.
template <class T>
PaddedRows<T> pad_rows(const View<const T>& x, const View<const bool>& allowed, int64_t b,
                       int64_t h, int64_t first, int64_t count, int64_t left, int64_t width,
                       T* room) {
  const int64_t keys = x.size[3];
  PaddedRows<T> padded{room, width, width, 0};
  for (int64_t r = 0; r < count; ++r) {
    T* to = room + r * width;
    for (int64_t j = 0; j < width; ++j) to[j] = 0;
    if (first + r < 0 || first + r >= x.size[2]) continue;
    const T* from = row_at(x, b, h, first + r);
    to += left;
    for (int64_t j = 0; j < keys; ++j) to[j] = from[j];
    if (const bool* seen = row_at(allowed, b, h, first + r)) hide(seen, keys, to);
    constexpr int64_t one = Vec<T>::size();  // behind the keys are zeros
    int64_t begin = 0, end = (keys + one - 1) / one * one;
    while (end > 0 && all_zero(to + end - one)) end -= one;  // where a mask hides
    while (begin < end && all_zero(to + begin)) begin += one;
    if (begin == end) continue;
    padded.begin = left + begin < padded.begin ? left + begin : padded.begin;
    padded.end = left + end > padded.end ? left + end : padded.end;
  }
  return padded;
}

// out[r,j] = sum_{a,c} w[a,c] x[r+a, j+c] for R rows and V vectors of j; w backwards if step < 0.
template <int R, int V, class T>
void slide_tile(const T* x, int64_t width, int64_t cq, int64_t ck, const T* w, int64_t step, T* out,
                int64_t row, int64_t columns) {
  using X = Vec<T>;
  X sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = X(T(0));
  for (int64_t a = 0; a < cq; ++a)
    for (int64_t c = 0; c < ck; ++c, w += step) {
      const X weight(*w);
      const T* from = x + a * width + c;
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v)
          sum[r][v] = at::vec::fmadd(weight, X::loadu(from + r * width + v * X::size()), sum[r][v]);
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      const int64_t left = columns - v * X::size();
      if (left >= X::size())
        sum[r][v].store(out + r * row + v * X::size());
      else
        sum[r][v].store(out + r * row + v * X::size(), static_cast<int>(left));
    }
}

// n rows of `keys` columns of that.
template <class T>
void slide(const PaddedRows<T>& x, int64_t cq, int64_t ck, const T* w, int64_t step, int64_t n,
           int64_t keys, T* out) {
  constexpr int64_t one = Vec<T>::size();
  const int64_t first = x.begin - ck + 1 > 0 ? (x.begin - ck + 1) / one : 0;
  const int64_t end = x.end < keys ? x.end : keys, last = end > 0 ? (end + one - 1) / one : 0;
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t j = 0; j < first * one && j < keys; ++j) out[r * keys + j] = 0;
    for (int64_t j = last * one; j < keys; ++j) out[r * keys + j] = 0;
  }
  in_tiles<2>(last - first, [&](int64_t tile, auto vectors) {
    const int64_t j = (first + tile) * one;
    in_tiles<4>(n, [&](int64_t r, auto rows) {
      slide_tile<rows, vectors>(x.row(r) + j, x.width, cq, ck, w, step, out + r * keys + j, keys,
                                keys - j);
    });
  });
}

// of[t] = sum_{r,j} g[r,j] x[r + t / ck, j + t % ck] for `taps` of t, from a first one on.
template <int taps, class T>
void tap_tile(const PaddedRows<T>& x, const PaddedRows<T>& g, int64_t left, int64_t n, int64_t ck,
              int64_t first, T* of) {
  using X = Vec<T>;
  const T* from[taps];
  for (int t = 0; t < taps; ++t) from[t] = x.row((first + t) / ck) + (first + t) % ck;
  X sum[taps];
  for (int t = 0; t < taps; ++t) sum[t] = X(T(0));
  // Whole vectors from g's first column on: what they read beyond its last is 0.
  for (int64_t r = 0; r < n; ++r)
    for (int64_t j = (g.begin - left) / X::size() * X::size(); j < g.end - left; j += X::size()) {
      const auto grad = X::loadu(g.row(r) + left + j);
      for (int t = 0; t < taps; ++t)
        sum[t] = at::vec::fmadd(grad, X::loadu(from[t] + r * x.width + j), sum[t]);
    }
  for (int t = 0; t < taps; ++t) of[first + t] = VectorLanes<T>::sum(sum[t]);
}

// Where the rows of a task stand.
struct ConvolvedBlock {
  int64_t b, h, first, count;
};
template <class T>
ConvolvedBlock convolved_block(const MapConvolution<T>& p, int64_t task) {
  const int64_t blocks = convolved_blocks(p), map = task / blocks;
  const int64_t first = task % blocks * kConvolvedRows, left = p.rows - first;
  return {map / p.H, map % p.H, first, left < kConvolvedRows ? left : kConvolvedRows};
}

template <class T>
void convolve_block(const MapConvolution<T>& p, int64_t task, T* room) {
  auto [b, h, first, count] = convolved_block(p, task);
  const int64_t unmade = p.rows - p.made;
  if (first < unmade) count -= unmade - first, first = unmade;
  if (count <= 0) return;
  const auto x = pad_rows(p.map, p.allowed, b, h, first - p.cq + 1, count + p.cq - 1, p.before,
                          convolved_width(p), room);
  T* out = p.out + ((b * p.H + h) * p.made + first - unmade) * p.keys;
  slide(x, p.cq, p.ck, p.kernel + h * p.cq * p.ck, 1, count, p.keys, out);
}

template <class T>
void convolve_block_back(const MapConvolution<T>& p, int64_t task, T* room) {
  const auto block = convolved_block(p, task);
  const int64_t b = block.b, h = block.h, first = block.first, count = block.count;
  const int64_t width = convolved_width(p), taps = p.cq * p.ck, left = p.ck - 1 - p.before;
  const auto x =
      pad_rows(p.map, p.allowed, b, h, first - p.cq + 1, count + p.cq - 1, p.before, width, room);
  const auto g = pad_rows(p.grad_out, {}, b, h, first - (p.rows - p.made), count + p.cq - 1, left,
                          width, room + convolution_room(p) / 2);
  T* of_map = p.grad_map + ((b * p.H + h) * p.rows + first) * p.keys;
  slide(g, p.cq, p.ck, p.kernel + (h + 1) * taps - 1, -1, count, p.keys, of_map);
  if (p.allowed.data)
    for (int64_t r = 0; r < count; ++r) {
      const bool* seen = row_at(p.allowed, b, h, first + r);
      T* row = of_map + r * p.keys;
      for (int64_t j = 0; j < p.keys; ++j) row[j] = seen[j * p.allowed.stride[3]] ? row[j] : T(0);
    }
  in_tiles<8>(taps, [&](int64_t t, auto tile) {
    tap_tile<tile>(x, g, left, count, p.ck, t, p.grad_kernel + task * taps);
  });
}

template <class T>
ConvolutionKernels<T> convolution_kernels_of() {
  return {convolve_block<T>, convolve_block_back<T>};
}
OfTypes<ConvolutionKernels> convolution_kernels() {
  return {convolution_kernels_of<float>(), convolution_kernels_of<double>()};
}

}  // namespace headlab::CPU_CAPABILITY
