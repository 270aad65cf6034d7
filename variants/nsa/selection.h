// The compressed branch of native sparse attention: what queries make of compressed blocks, and how
// their weights point to the blocks that they then see in full.
//
// B batch, T queries, H heads, Hkv heads of keys and values, C compressed blocks of l tokens, one
// every s tokens, N blocks of b tokens.
#pragma once

#include "core/attention/attend.h"
#include "variants/families/packed_keys.h"

namespace headlab {

struct CompressedSizes {
  int64_t tokens, stride;  // l, s
  CacheRate rate() const { return {stride, tokens - stride}; }
};

// Softmax attention to the compressed blocks that end at or before each query: q [B,H,T,d],
// k, v [B,Hkv,C,d] -> [B,H,T,d], 0 in rows that see none.
Tensor attend_to_compressed(const Tensor& q, const Tensor& k, const Tensor& v,
                            CompressedSizes sizes, const PackedKeys& tokens, const HeadCall& call,
                            double scale);

// Softmax attention to the last `window` visible tokens, the query included: k, v [B,Hkv,S',.] of
// the last S' tokens, all that are still seen.
Tensor attend_to_window(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                        const PackedKeys& tokens, const HeadCall& call, double scale);
// The call whose mask is that of this attention.
HeadCall windowed(const HeadCall& call, const PackedKeys& tokens, int64_t window, int64_t kept,
                  int64_t T);

// score_j = sum over the alive heads of a group and over c of p_hc m(c,j): p the weights of that
// attention, m(c,j) the number of chunks of s tokens that compressed block c and block j of b
// tokens share. [B,Hkv,T,N], of the blocks up to the query's own; no gradient passes.
Tensor block_scores(const Tensor& q, const Tensor& k, CompressedSizes sizes, int64_t b, int64_t N,
                    const PackedKeys& tokens, const HeadCall& call, double scale);

}  // namespace headlab
