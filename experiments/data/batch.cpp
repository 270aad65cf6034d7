#include "experiments/data/batch.h"

#include "core/torch.h"

namespace headlab {

const Tensor& Batch::input() const {
  const Tensor& there = ids.defined() ? ids : image;
  TORCH_CHECK(there.defined(), "a batch has neither ids nor an image");
  return there;
}

int64_t Batch::tokens() const { return ids.defined() ? ids.numel() : examples(); }

Batch Batch::to(const at::Device& device) const {
  const auto moved = [&](const Tensor& t) {
    return t.defined() ? t.to(device, /*non_blocking=*/true) : t;
  };
  return {.ids = moved(ids),
          .targets = moved(targets),
          .length = moved(length),
          .segment = moved(segment),
          .image = moved(image),
          .source = moved(source),
          .source_length = moved(source_length)};
}

Batch empty_batch(int64_t count, int64_t context) {
  return {at::empty({count, context}, at::kLong), at::empty({count, context}, at::kLong)};
}

}  // namespace headlab
