// Attention of queries that choose by content which blocks of keys they see.
//
// B batch, T queries, S keys, H heads, Hkv heads of keys and values, d width of a query, e of a
// value, b tokens a block, N = ceil(S / b) blocks. A block is the tokens c b .. (c + 1) b - 1 of
// those that are visible (visible_tokens.h); query t's own block is the one that it stands in.
#pragma once

#include <vector>

#include "core/attention/call/statistic.h"
#include "variants/families/packed_keys.h"

namespace headlab {

// How a query chooses: `selected` blocks at most; the first ones and the last ones up to its own
// always, then those with the highest scores, of equal ones the lower.
struct BlockRules {
  int64_t block = 1, selected = 1, first_blocks = 0, local_blocks = 1;

  int64_t blocks(int64_t S) const { return (S + block - 1) / block; }
  bool chooses(int64_t S) const { return selected < blocks(S); }  // else a query sees all
};

// Indices of the n highest of the last dimension, the highest first and of equal ones the lower:
// [..,N] -> int64 [..,min(n,N)]. -1: of scores that are -infinity.
Tensor highest_scores(const Tensor& scores, int64_t n);

// scores [B,h,T,N] of the blocks -> [B,h,T,m] int64, the blocks that each query sees, none twice;
// -1: none. No gradient passes.
Tensor choose_blocks(const Tensor& scores, const BlockRules& rules, const PackedKeys& tokens);

// attend() where query t of head h sees, of the keys that the call allows, those of its blocks
// [B,H,T,m] (undefined: of all). q [B,H,T,d], k [B,Hkv,S,d], v [B,Hkv,S,e] -> [B,H,T,e]; 0 where
// a query is hidden. On a CPU by kernels that hold no map, without second derivatives; with biases,
// dropout, uniform heads, on a GPU and by the other backends by a mask of all pairs.
Tensor attend_to_chosen(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                        const BlockRules& rules, const PackedKeys& tokens, const HeadCall& call,
                        double scale);

// Whether attend_to_chosen() takes its kernels (chosen_block_kernels.h).
bool kernels_serve(const Tensor& q, const HeadCall& call);

// The call whose mask is that of attend_to_chosen(): bool [B,H,T,S].
HeadCall masked_to_chosen(const Tensor& blocks, const BlockRules& rules, const PackedKeys& tokens,
                          const HeadCall& call, int64_t T, int64_t S);

// Tells call.observer what was chosen, if it asks (choice_observer.h): blocks [B,.,T,m].
void observe_choice(const Tensor& blocks, const BlockRules& rules, int64_t S, const HeadCall& call);

// Statistics of the choice, and their report of the map of attend_to_chosen().
std::vector<Statistic> choice_statistics();
void report_choice(const Tensor& q, const Tensor& k, const Tensor& blocks, const BlockRules& rules,
                   const PackedKeys& tokens, const HeadCall& call, double scale);

}  // namespace headlab
