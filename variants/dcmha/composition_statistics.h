// What composed heads say of their composition: how much each part adds, how it mixes on average,
// how far its gates open, what it leaves of the heads' weights and how alike it makes them.
#pragma once

#include <string>
#include <vector>

#include "core/attention/call/observer.h"
#include "core/attention/call/statistic.h"
#include "variants/dcmha/token_composition.h"

namespace headlab {

enum class ComposedSide { kPre, kPost };  // scores, weights

// What report_composition() reports of a composition that has these parts.
struct CompositionParts {
  bool fixed, query, key, gates;
};
std::vector<Statistic> composition_statistics(ComposedSide side, const CompositionParts& parts);
// The pairs of a call that count, of heads that are there.
struct CountedPairs {
  CountedPairs(const Tensor& map, const HeadCall& call);  // map [B,H,T,S]
  Tensor pairs;    // 1 or 0 [B,H,T,S], at least float32: what is finite is hidden by a product
  Tensor rows;     // bool [B,H,T]
  Tensor queries;  // bool [B,T]
};
// `input` [B,H,T,S] is what is composed; `tokens` made the composition.
void report_composition(HeadObserver& observer, ComposedSide side, const TokenComposition& tokens,
                        const Composition& composition, const Tensor& input,
                        const CountedPairs& counted, const HeadCall& call);

// Of weights that the second composition has changed, beside composed_statistics().
const std::vector<Statistic>& composed_map_statistics();
void report_composed_map(HeadObserver& observer, const ComposedMaps& maps,
                         const CountedPairs& counted);

}  // namespace headlab
