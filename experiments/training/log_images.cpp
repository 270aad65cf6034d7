#include "experiments/training/log_images.h"

#include "core/torch.h"

namespace headlab {

LogImages log_images(const at::Tensor& images, const ImageGrid& grid) {
  TORCH_CHECK(images.dim() == 4, "images [P,C,height,width], not ", images.sizes());
  const std::vector<int64_t> pixels{1, 2, 3};
  const auto x = images.to(at::kCPU, at::kDouble);
  const auto least = x.amin(pixels, /*keepdim=*/true), range = x.amax(pixels, true) - least;
  const auto bytes = ((x - least) * 255 / range.masked_fill(range == 0, 1))
                         .round()
                         .to(at::kByte)
                         .contiguous();  // [P,C,height,width]
  const auto* first = bytes.const_data_ptr<uint8_t>();
  return {.channels = bytes.size(1),
          .rows = bytes.size(2),
          .columns = bytes.size(3),
          .patch = static_cast<int64_t>(grid.patch),
          .cls_tokens = grid.cls_tokens,
          .pixels = {first, first + bytes.numel()}};
}

}  // namespace headlab
