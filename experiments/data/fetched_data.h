// Data that the repository does not hold: scripts/data puts them into configs/data/<name>.
#pragma once

#include "core/config/config.h"

namespace headlab {

// DataError naming scripts/data where a path among the options, wherever it stands, is a file in a
// folder of such data and is not there.
void require_fetched(const ConfigNode& options);
void require_fetched(const std::filesystem::path& path);  // likewise of one path

}  // namespace headlab
