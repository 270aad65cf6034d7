// Where the patches of an image stand among the places of a model.
#pragma once

#include <cstdint>

namespace headlab {

// An image as rows x columns patches of side `patch` behind `cls_tokens` tokens that are no patch.
struct ImageGrid {
  int64_t rows = 0, columns = 0, cls_tokens = 0;
  double patch = 1;
};

}  // namespace headlab
