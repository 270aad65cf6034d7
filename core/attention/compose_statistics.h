// What composed heads say of their composition: how much each part adds, how it mixes on average,
// how far its gates open, what it leaves of the heads' weights and how alike it makes them.
#pragma once

#include <string>
#include <vector>

#include "core/attention/compose.h"
#include "core/attention/observer.h"
#include "core/attention/statistic.h"

namespace headlab {

enum class ComposedSide { kPre, kPost };  // scores, weights

// What report_composition() reports of a composition that has these parts.
std::vector<Statistic> composition_statistics(ComposedSide side, bool fixed, bool query, bool key);
// `input` [B,H,T,S] is what is composed, `counted` bool [B,H,T,S] the pairs of heads that are there
// that count.
void report_composition(HeadObserver& observer, ComposedSide side, const Composition& composition,
                        const Tensor& input, const Tensor& counted, const HeadCall& call);

// What an observer finds of weights that heads mix behind the softmax.
const std::vector<Statistic>& composed_statistics();
// Of weights that the second composition has changed, beside these.
const std::vector<Statistic>& composed_map_statistics();
void report_composed_map(HeadObserver& observer, const ComposedMaps& maps, const Tensor& counted);

// The share of a mixing `w` [H,H] of the alive heads that leaves its head, by layer.
Statistic off_diagonal_statistic(const char* name, const char* long_name);
void report_off_diagonal(HeadObserver& observer, const std::string& name, const Tensor& weight,
                         const Tensor& alive);

}  // namespace headlab
