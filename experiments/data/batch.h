// Examples as a model takes them: named inputs, and what is asked about them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace headlab {

using at::Tensor;

constexpr int64_t kIgnored = -100;  // a target that is not scored

// B examples. What a model does not read is undefined.
struct Batch {
  Tensor ids = {};            // [B,T] int64
  Tensor targets = {};        // [B,T] int64, or [B] for one a whole example; negative: not scored
  Tensor length = {};         // [B] int64, positions of ids that are there; undefined: all
  Tensor segment = {};        // [B,T] int64
  Tensor image = {};          // [B,C,height,width]
  Tensor source = {};         // [B,S] int64, what is translated
  Tensor source_length = {};  // [B] int64

  const Tensor& input() const;  // the one that every example has: ids or image
  int64_t examples() const { return input().size(0); }
  int64_t tokens() const;  // what throughput counts: positions, or patches that are not cut yet: B
  Batch to(const at::Device& device) const;
};

// What the data ask of a model's shape. 0: the data have no such thing.
struct DataShape {
  int64_t vocabulary = 0, context = 0;                // of ids; T at most
  int64_t source_vocabulary = 0, source_context = 0;  // of source
  int64_t classes = 0;                                // of targets for whole examples
  int64_t channels = 0, height = 0, width = 0;        // of image
  std::optional<int64_t> pad = {};                    // the token that fills up ids and source
};

// Examples one behind the other; shorter ones end in `pad` (targets in kIgnored), and have lengths
// then. Every batch has the same inputs.
Batch joined(const std::vector<Batch>& batches, int64_t pad);

Batch empty_batch(int64_t count, int64_t context);  // [count, context], contiguous, on the CPU

}  // namespace headlab
