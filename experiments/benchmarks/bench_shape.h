// The shape of a layer that is timed, as `headlab bench --shape` takes it.
#pragma once

#include <cstdint>
#include <string>

namespace headlab {

struct BenchShape {
  int64_t batch = 0, tokens = 0, width = 0, heads = 0;  // B, T, D, H; D is a multiple of H

  std::string text() const;  // "12x64x128x4"
};

// Of BATCHxTOKENSxWIDTHxHEADS, four whole numbers above 0. ConfigError says at which character the
// word stops being one, and how one is written.
BenchShape bench_shape(const std::string& word);

}  // namespace headlab
