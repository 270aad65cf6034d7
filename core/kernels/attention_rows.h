// A call of attention as kernels see it, and the one rule of which keys a row sees. No torch.
#pragma once

#include <cstdint>

// nvcc compiles what the kernels share for the device.
#ifdef __CUDACC__
#define HEADLAB_DEVICE __device__
#define HEADLAB_ANYWHERE __host__ __device__  // what a launch has to know, too
#else
#define HEADLAB_DEVICE
#define HEADLAB_ANYWHERE
#endif

namespace headlab {

constexpr int64_t kRowLanes = 16;  // rows of kernels are so many entries long, or a multiple
constexpr int64_t kUnlimited = INT64_MAX / 4;  // a place and this do not overflow

// A row sees the keys at the distances j - place in -back .. ahead, before lengths and any mask.
struct KeyReach {
  int64_t back, ahead;
};

// Elements of a row of keys. Rows that begin a multiple of 4 KiB apart would share a few lines of a
// cache.
static HEADLAB_ANYWHERE inline int64_t padded_row(int64_t keys) {
  const int64_t whole = (keys + kRowLanes - 1) / kRowLanes * kRowLanes;
  return whole % 64 == 0 ? whole + kRowLanes : whole;
}

// A window of W sees the last W keys, itself included, and as many ahead where it is not causal;
// 0: there is none. static, as all functions here: files of different instruction sets must not
// share a copy.
static constexpr KeyReach key_reach(bool causal, int64_t window) {
  const int64_t near = window > 0 ? window - 1 : kUnlimited;
  return {near, causal ? 0 : near};
}

// The keys a row may see, before the arbitrary mask: first .. last; none if last < first.
struct KeySpan {
  int64_t first, last;
};

// Of a row at `place` among `keys` keys.
static HEADLAB_DEVICE inline KeySpan key_span(const KeyReach& reach, int64_t place, int64_t keys) {
  const int64_t first = place - reach.back, last = place + reach.ahead;
  return {first > 0 ? first : 0, last < keys ? last : keys - 1};
}

// A tensor of four dimensions, or none. Strides in elements, 0 where it is broadcast.
template <class T>
struct View {
  T* data = nullptr;
  int64_t size[4] = {}, stride[4] = {};
};

// Where its row (b, h, i) begins; null without data.
template <class T>
static HEADLAB_DEVICE inline T* row_at(const View<T>& x, int64_t b, int64_t h, int64_t i) {
  return x.data ? x.data + b * x.stride[0] + h * x.stride[1] + i * x.stride[2] : nullptr;
}

// Mixes a counter into an independent 64-bit word (splitmix64, Steele et al. 2014).
static HEADLAB_ANYWHERE constexpr uint64_t mix_word(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Dropout of weights: weight j of a row is kept by a hash of (key, row, j), so that every path and
// device keeps the same ones and a backward pass finds them again.
struct Dropout {
  uint64_t key = 0;
  uint32_t below = 0;  // what hashes below it is dropped, a share of below / 2^32
  double factor = 1;   // of what is kept

  struct OfRow {
    uint32_t seed, salt, below;
    // murmur3's finalizer with a salt.
    HEADLAB_DEVICE bool keeps(uint32_t j) const {
      uint32_t x = seed + j * 0x9E3779B9u;
      x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
      x ^= salt;
      x = (x ^ (x >> 13)) * 0xC2B2AE35u;
      return (x ^ (x >> 16)) >= below;
    }
  };
  // row: (b H + h) T + i
  HEADLAB_DEVICE OfRow row(int64_t n) const {
    const uint64_t word = mix_word(key ^ mix_word(static_cast<uint64_t>(n)));
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), below};
  }
};

template <class T>
struct AttentionRows {
  int64_t B = 0, H = 0, queries = 0, keys = 0, d = 0;
  View<const T> q;                   // [B,H,T,d], the last dimension dense
  View<const T> k;                   // [B,Hkv,S,d] likewise
  const int64_t* kv_head = nullptr;  // [H]: row of k that query head h uses; null: each its own
  double scale = 1;
  KeyReach reach{kUnlimited, kUnlimited};
  bool cross = false;                     // places of queries and keys do not compare
  const int64_t* query_length = nullptr;  // [B] or null
  const int64_t* key_length = nullptr;    // [B] or null
  View<const bool> allowed;               // [B,H,T,S] or none
  View<const T> bias;                     // likewise
  const T* distance_bias = nullptr;       // [H, T+S-1] at j - i = -(S-1) .. , i a place; or null
};

// Where query i stands among the keys, and its span.
template <class T>
static HEADLAB_DEVICE int64_t row_place(const AttentionRows<T>& p, int64_t i) {
  return p.cross ? i : p.keys - p.queries + i;
}
template <class T>
static HEADLAB_DEVICE KeySpan key_span(const AttentionRows<T>& p, int64_t b, int64_t i) {
  return key_span(p.reach, row_place(p, i), p.key_length ? p.key_length[b] : p.keys);
}

}  // namespace headlab
