// Images for the log, of what a model gets.
#pragma once

#include <ATen/core/Tensor.h>

#include "experiments/logs/run_log.h"
#include "experiments/models/image_grid.h"

namespace headlab {

// images: [P,C,height,width]. Each becomes bytes from 0, its least pixel, to 255, its greatest:
// what its data scaled and shifted looks as it was. One whose pixels are all the same becomes 0.
LogImages log_images(const at::Tensor& images, const ImageGrid& grid);

}  // namespace headlab
