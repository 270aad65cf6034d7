// The statistics that a kind makes of arrays which a pass has left, without a layer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/head_kinds.h"

namespace headlab {

// Those of HeadKind::recorded of one pass of H heads, by name: [H] or [1]. `recorded` counts heads
// as the result does.
std::map<std::string, std::vector<double>> recorded_values(
    const std::string& kind, int64_t heads, const std::map<std::string, Tensor>& recorded);

}  // namespace headlab
