// What composed heads say of their composition: how much each part adds, how far its gates open,
// what it leaves of the heads' weights and how alike it makes them (by head or by layer).
#pragma once

#include "core/attention/compose.h"
#include "core/observe/probe.h"

namespace headlab {

enum class ComposedSide { kPre, kPost };  // scores, weights

// What report_composition() reports of a composition that has these parts.
std::vector<Statistic> composition_statistics(ComposedSide side, bool fixed, bool query, bool key);
// `input` [B,H,T,S] is what is composed, `counted` bool broadcasts to it: the pairs that count.
void report_composition(HeadProbe& probe, ComposedSide side, const Composition& composition,
                        const Tensor& input, const Tensor& counted);

// Of weights that the second composition has changed, beside composed_statistics().
const std::vector<Statistic>& composed_map_statistics();
void report_composed_map(HeadProbe& probe, const Tensor& composed, const Tensor& counted);

}  // namespace headlab
