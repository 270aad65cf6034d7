// The statistics of routed heads (core/attention/routes.h) without a layer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/attention/routes.h"

namespace headlab {

// The statistics of one pass by name, [H] or [1]. `routes` count heads as the result does.
std::map<std::string, std::vector<double>> route_values(const Routes& routes,
                                                        const Tensor& query_length);

}  // namespace headlab
