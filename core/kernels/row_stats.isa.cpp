// The streamed row statistics for one instruction set (the equations are
// those of the streaming softmax, with the whole row of scores in the first-level cache).
#include "core/kernels/row_stats.h"

#include <cmath>
#include <limits>

#include "core/kernels/isa.h"
#include "core/kernels/lanes.h"

namespace headlab::CPU_CAPABILITY {

template <class T>
struct Rows {
  const RowProblem<T>& p;
  int64_t b, h, padded;
  T* kt;  // [d, padded] keys transposed, so that keys lie in vector lanes
  T* z;   // [4, padded] scores of four rows, then exp(z - max)

  Rows(const RowProblem<T>& problem, int64_t b_, T* scratch)
      : p(problem), b(b_), h(0), padded((problem.keys + 15) / 16 * 16) {
    kt = scratch;
    z = kt + p.d * padded;
  }

  int64_t length() const { return p.query_length ? p.query_length[b] : p.queries; }
  int64_t key_length() const { return p.key_length ? p.key_length[b] : p.keys; }
  int64_t place(int64_t i) const { return row_place(p, i); }
  KeySpan span(int64_t i) const { return key_span(p, b, i); }

  void load_keys(int64_t head) {
    h = head;
    const T* k = row_at(p.k, b, p.kv_head[h], 0);
    for (int64_t j = 0; j < p.keys; ++j)
      for (int64_t c = 0; c < p.d; ++c) kt[c * padded + j] = k[j * p.k.stride[2] + c];
    for (int64_t c = 0; c < p.d; ++c)
      for (int64_t j = p.keys; j < padded; ++j) kt[c * padded + j] = 0;
  }

  // z[r] = scale q k^T for rows i[0..3] of the loaded head, keys up to `last`.
  void dot(const int64_t (&i)[4], int64_t last) {
    const T* q[4];
    for (int r = 0; r < 4; ++r) q[r] = row_at(p.q, b, h, i[r]);
    const Vec<T> scale(static_cast<T>(p.scale));
    for (int64_t j = 0; j <= last; j += Vec<T>::size()) {
      Vec<T> acc[4] = {Vec<T>(0), Vec<T>(0), Vec<T>(0), Vec<T>(0)};
      for (int64_t c = 0; c < p.d; ++c) {
        const auto key = Vec<T>::loadu(kt + c * padded + j);
        for (int r = 0; r < 4; ++r) acc[r] = at::vec::fmadd(Vec<T>(q[r][c]), key, acc[r]);
      }
      for (int r = 0; r < 4; ++r) (acc[r] * scale).store(z + r * padded + j);
    }
  }

  // Adds biases to the scores of row i, hides what the mask hides and everything outside the span.
  // Returns how many keys the row may attend to.
  int64_t mask(int64_t i, const KeySpan& s, T* row) const {
    const T low = -std::numeric_limits<T>::infinity();
    if (p.distance_bias) {
      const T* by = p.distance_bias + h * (p.queries + p.keys - 1) + (p.keys - 1 - place(i));
      for (int64_t j = s.first; j <= s.last; ++j) row[j] += by[j];
    }
    if (p.bias.data) {
      const T* bias = row_at(p.bias, b, h, i);
      for (int64_t j = s.first; j <= s.last; ++j) row[j] += bias[j * p.bias.stride[3]];
    }
    int64_t n = s.last - s.first + 1;
    if (p.allowed.data) {
      const bool* allowed = row_at(p.allowed, b, h, i);
      for (int64_t j = s.first; j <= s.last; ++j)
        if (!allowed[j * p.allowed.stride[3]]) row[j] = low, --n;
    }
    const int64_t begin = s.first / Vec<T>::size() * Vec<T>::size();
    for (int64_t j = begin; j < s.first; ++j) row[j] = low;
    for (int64_t j = s.last + 1; j < padded && j % Vec<T>::size() != 0; ++j) row[j] = low;
    return n;
  }

  static T highest(const T* row, const KeySpan& s) {
    Vec<T> m(-std::numeric_limits<T>::infinity());
    for (int64_t j = s.first / Vec<T>::size() * Vec<T>::size(); j <= s.last; j += Vec<T>::size())
      m = at::vec::maximum(m, Vec<T>::loadu(row + j));
    return at::vec::vec_reduce_all<T>([](Vec<T>& x, Vec<T>& y) { return at::vec::maximum(x, y); },
                                      m);
  }
};

// Everything of one row that is a sum over keys, in one pass; e[j] = exp(z_j - max) replaces z.
template <class T>
struct RowSums {
  T Z = 0, zlog = 0, squares = 0, distance = 0, first = 0, second = 0, norm = 0;

  // x counts keys from the heaviest one: offsets far from the query then do not cancel.
  RowSums(T* row, const KeySpan& s, T max, int64_t heaviest, int64_t place, const T* value_norm) {
    using V = Vec<T>;
    V vz(0), va(0), v2(0), vd(0), vx(0), vxx(0), vn(0);
    const V low(static_cast<T>(-80));
    for (int64_t j = s.first / V::size() * V::size(); j <= s.last; j += V::size()) {
      const auto t = V::loadu(row + j) - V(max);
      const auto e = t.exp();
      e.store(row + j);
      const auto x = V::arange(static_cast<T>(j - heaviest), static_cast<T>(1));
      const auto ex = e * x;
      vz = vz + e;
      va = at::vec::fmadd(e, at::vec::maximum(t, low), va);  // 0 * -inf of a hidden key
      v2 = at::vec::fmadd(e, e, v2);
      vx = vx + ex;
      vxx = at::vec::fmadd(ex, x, vxx);
      vd = at::vec::fmadd(e, (x + V(static_cast<T>(heaviest - place))).abs(), vd);
      if (value_norm) {
        const int64_t n = s.last + 1 - j < V::size() ? s.last + 1 - j : V::size();
        vn = at::vec::fmadd(e, V::loadu(value_norm + j, n), vn);
      }
    }
    Z = sum_lanes(vz), zlog = sum_lanes(va), squares = sum_lanes(v2), distance = sum_lanes(vd);
    first = sum_lanes(vx), second = sum_lanes(vxx), norm = sum_lanes(vn);
  }
};

struct Counter : RowTotals {
  void add(RowStatistic which, double value) const {
    sums[which] += value;
    counts[which] += 1;
  }
  void raise(RowMaximum which, double value) const {
    if (value > maxima[which]) maxima[which] = value;
  }
};

// Mass and largest weight of row i by class of the key; weights e / Z.
template <class T>
void count_classes(const Rows<T>& rows, int64_t i, const T* e, const KeySpan& s, double Z,
                   const Counter& out) {
  const auto& p = rows.p;
  const bool* allowed = row_at(p.allowed, rows.b, rows.h, i);
  const uint8_t* classes = p.classes + rows.b * p.keys;
  double mass[4] = {0, 0, 0, 0}, largest = -1;
  for (int64_t j = s.first; j <= s.last; ++j) {
    mass[classes[j] & 3] += e[j];
    const bool counts = classes[j] != 2 && (!allowed || allowed[j * p.allowed.stride[3]]);
    if (counts && e[j] > largest) largest = e[j];
  }
  out.add(kClsMass, mass[1] / Z);
  out.add(kSepMass, mass[2] / Z);
  out.add(kPunctuationMass, mass[3] / Z);
  if (largest >= 0) out.add(kConfidence, largest / Z);
}

// Keys that continue (induction) or repeat (duplicate_token) the query's token.
template <class T>
void count_matches(const RowProblem<T>& p, int64_t b, int64_t place, const T* e, const KeySpan& s,
                   double Z, const Counter& out) {
  const int64_t* tokens = p.tokens + b * p.keys;
  const int64_t mine = tokens[place];
  double after = 0, same = 0;
  bool any_after = false, any_same = false;
  for (int64_t j = 0; j <= place; ++j) {
    const T weight = j >= s.first && j <= s.last ? e[j] : T(0);
    if (j > 0 && tokens[j - 1] == mine) after += weight, any_after = true;
    if (j < place && tokens[j] == mine) same += weight, any_same = true;
  }
  if (any_after) out.add(kInduction, after / Z);
  if (any_same) out.add(kDuplicateToken, same / Z);
}

template <class T>
int32_t count_row(const Rows<T>& rows, int64_t i, T* row, const Counter& out) {
  const auto& p = rows.p;
  const KeySpan s = rows.span(i);
  if (s.last < s.first) return kNoRow;
  const int64_t n = rows.mask(i, s, row);
  const T max = Rows<T>::highest(row, s);
  if (!(max > -std::numeric_limits<T>::infinity())) return kNoRow;  // none allowed, or NaN
  int64_t heaviest = s.first;
  while (row[heaviest] != max) ++heaviest;
  const int64_t place = rows.place(i);
  const T* norms = p.value_norm ? p.value_norm + (rows.b * p.H + rows.h) * p.keys : nullptr;
  const RowSums<T> sum(row, s, max, heaviest, place, norms);
  const double Z = sum.Z, log_Z = std::log(Z), entropy = log_Z - sum.zlog / Z;
  auto weight = [&](int64_t j) { return j >= s.first && j <= s.last ? row[j] / Z : 0.0; };
  if (p.has_scores) out.add(kLse, max + log_Z), out.raise(kMaxLogit, max);
  out.add(kEntropy, entropy);
  if (n >= 2) out.add(kEntropyNormalized, entropy / std::log(static_cast<double>(n)));
  out.add(kMaxWeight, 1 / Z);
  out.add(kParticipationRatio, Z * Z / sum.squares);
  if (norms) out.add(kValueWeightedNorm, row_sum(p, rows.b, rows.h, i) * sum.norm / Z);
  if (p.classes)
    count_classes(rows, i, row, s, Z, out);
  else
    out.add(kConfidence, 1 / Z);
  if (p.cross) return 0;
  const double x = sum.first / Z, offset = x + static_cast<double>(heaviest - place);
  out.add(kMeanDistance, sum.distance / Z);
  out.add(kSignedOffset, offset);
  out.add(kOffsetVariance, sum.second / Z - x * x);
  out.add(kSelfToken, weight(place));
  out.add(kFirstToken, weight(0));
  if (place >= 1) out.add(kPrevToken, weight(place - 1));
  if (!p.causal && place + 1 < rows.key_length()) out.add(kNextToken, weight(place + 1));
  out.add(kArgmaxDistance, std::abs(static_cast<double>(heaviest - place)));
  if (p.matches && p.tokens) count_matches(p, rows.b, place, row, s, Z, out);
  return static_cast<int32_t>(heaviest - place);
}

template <class T>
void stats_slot(const RowProblem<T>& p, int64_t slot, const RowTotals& to, int32_t* offsets,
                T* scratch) {
  const int64_t blocks = (p.queries + kRowsPerSlot - 1) / kRowsPerSlot;
  const int64_t b = slot / (p.H * blocks), h = slot / blocks % p.H;
  const int64_t begin = slot % blocks * kRowsPerSlot;
  const int64_t end = begin + kRowsPerSlot < p.queries ? begin + kRowsPerSlot : p.queries;
  Rows<T> rows(p, b, scratch);
  rows.load_keys(h);
  const Counter out{to};
  for (int64_t i = begin; i < end; i += 4) {
    int64_t group[4], last = -1;
    for (int r = 0; r < 4; ++r) {
      group[r] = i + r < end ? i + r : end - 1;
      const KeySpan s = rows.span(group[r]);
      if (s.last > last) last = s.last;
    }
    rows.dot(group, last);
    for (int64_t r = 0; r < 4 && i + r < end; ++r) {
      const bool counted = i + r < rows.length();
      offsets[i + r - begin] =
          counted ? count_row(rows, i + r, rows.z + r * rows.padded, out) : kNoRow;
      if (!p.output.data || offsets[i + r - begin] == kNoRow) continue;
      const T* o = row_at(p.output, b, h, i + r);
      double square = 0;
      for (int64_t c = 0; c < p.e; ++c) square += static_cast<double>(o[c]) * o[c];
      out.add(kOutputNorm, std::sqrt(square));
    }
  }
}

// Weights of a row in place of its scores; returns its entropy, or -1 without an allowed key.
template <class T>
double normalise(const Rows<T>& rows, int64_t i, T* row) {
  const KeySpan s = rows.span(i);
  if (s.last < s.first) return -1;
  rows.mask(i, s, row);
  const T max = Rows<T>::highest(row, s);
  if (!(max > -std::numeric_limits<T>::infinity())) return -1;
  const RowSums<T> sum(row, s, max, s.first, rows.place(i), nullptr);
  const Vec<T> inverse(static_cast<T>(1 / sum.Z));
  for (int64_t j = s.first / Vec<T>::size() * Vec<T>::size(); j <= s.last; j += Vec<T>::size())
    (Vec<T>::loadu(row + j) * inverse).store(row + j);
  return std::log(static_cast<double>(sum.Z)) - sum.zlog / sum.Z;
}

// -sum m ln m of the mixture m = (p + q) / 2.
template <class T>
double mixture_entropy(const T* p, const T* q, const KeySpan& s) {
  using V = Vec<T>;
  V sum(0);
  const V half(static_cast<T>(0.5)), tiny(std::numeric_limits<T>::min());
  for (int64_t j = s.first / V::size() * V::size(); j <= s.last; j += V::size()) {
    const auto m = (V::loadu(p + j) + V::loadu(q + j)) * half;
    sum = at::vec::fmadd(m, at::vec::maximum(m, tiny).log(), sum);
  }
  return -static_cast<double>(sum_lanes(sum));
}

template <class T>
void divergence_slot(const RowProblem<T>& p, int64_t b, int64_t first, int64_t stride, double* sums,
                     double* counts, T* scratch) {
  Rows<T> rows(p, b, scratch);
  T* weights = rows.z + 4 * rows.padded;  // [H, kJsRowsPerSlot, padded]
  int64_t group[4];
  int64_t n = 0;
  const int64_t limit = rows.length() < p.queries ? rows.length() : p.queries;
  for (int64_t i = first; i < limit && n < kJsRowsPerSlot; i += stride) group[n++] = i;
  if (n == 0) return;
  for (int64_t r = n; r < kJsRowsPerSlot; ++r) group[r] = group[n - 1];
  constexpr int64_t kMostHeads = 1024;
  double entropy[kMostHeads][kJsRowsPerSlot];
  for (int64_t h = 0; h < p.H; ++h) {
    rows.load_keys(h);
    rows.dot(group, rows.padded - 1);
    for (int64_t r = 0; r < n; ++r) {
      T* row = weights + (h * kJsRowsPerSlot + r) * rows.padded;
      for (int64_t j = 0; j < rows.padded; ++j) row[j] = rows.z[r * rows.padded + j];
      entropy[h][r] = normalise(rows, group[r], row);
    }
  }
  for (int64_t h = 0; h < p.H; ++h)
    for (int64_t g = h; g < p.H; ++g)
      for (int64_t r = 0; r < n; ++r) {
        if (entropy[h][r] < 0 || entropy[g][r] < 0) continue;
        const T* x = weights + (h * kJsRowsPerSlot + r) * rows.padded;
        const T* y = weights + (g * kJsRowsPerSlot + r) * rows.padded;
        const double js = g == h ? 0
                                 : mixture_entropy(x, y, rows.span(group[r])) -
                                       (entropy[h][r] + entropy[g][r]) / 2;
        sums[h * p.H + g] += js;
        counts[h * p.H + g] += 1;
        if (g != h) sums[g * p.H + h] += js, counts[g * p.H + h] += 1;
      }
}

template <class T>
void value_norms(const RowProblem<T>& p, int64_t h, T* scratch) {
  using V = Vec<T>;
  const int64_t width = (p.e + 15) / 16 * 16;
  T* gram = scratch;              // [e, width]
  T* value = gram + p.e * width;  // [width]
  for (int64_t n = 0; n < p.e * width + width; ++n) scratch[n] = 0;
  for (int64_t row = 0; row < p.D; ++row) {
    const T* w = p.output_weight + row * p.output_weight_stride + h * p.e;
    for (int64_t c = 0; c < p.e; ++c) value[c] = w[c];
    for (int64_t c = 0; c < p.e; ++c)
      for (int64_t x = 0; x < width; x += V::size())
        at::vec::fmadd(V(w[c]), V::loadu(value + x), V::loadu(gram + c * width + x))
            .store(gram + c * width + x);
  }
  for (int64_t b = 0; b < p.B; ++b)
    for (int64_t j = 0; j < p.keys; ++j) {
      const T* v = row_at(p.v, b, p.kv_head[h], j);
      for (int64_t c = 0; c < p.e; ++c) value[c] = v[c];
      V square(0);
      for (int64_t x = 0; x < width; x += V::size()) {
        V image(0);
        for (int64_t c = 0; c < p.e; ++c)
          image = at::vec::fmadd(V(v[c]), V::loadu(gram + c * width + x), image);
        square = at::vec::fmadd(image, V::loadu(value + x), square);
      }
      const T norm2 = sum_lanes(square);
      p.value_norm[(b * p.H + h) * p.keys + j] = norm2 < 0 ? T(0) : std::sqrt(norm2);  // NaN stays
    }
}

OfTypes<RowStatsKernels> row_stats_kernels() {
  return {{stats_slot<float>, divergence_slot<float>, value_norms<float>},
          {stats_slot<double>, divergence_slot<double>, value_norms<double>}};
}

}  // namespace headlab::CPU_CAPABILITY
