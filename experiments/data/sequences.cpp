#include "experiments/data/sequences.h"

#include "core/torch.h"

namespace headlab {

Batch SequenceSource::made_of(int64_t count, const WriteExample& write) const {
  Batch batch = empty_batch(count, context_);
  int64_t *ids = batch.ids.data_ptr<int64_t>(), *targets = batch.targets.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) write(i, ids + i * context_, targets + i * context_);
  return batch;
}

Batch SequenceSource::train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const {
  TORCH_CHECK(step >= 0 && first >= 0 && count >= 0, "no batch of ", count, " examples from ",
              first, " of step ", step);
  return made_of(count, [&](int64_t i, int64_t* ids, int64_t* targets) {
    train_example(example_bits(seed, step, first + i), ids, targets);
  });
}

Batch SequenceSource::eval_batch(Split split, int64_t first, int64_t count) const {
  TORCH_CHECK(first >= 0 && count >= 0 && count <= examples(split) - first, "no ", count,
              " examples from ", first, " in split ", split_name(split), " of ", examples(split));
  return made_of(count, [&](int64_t i, int64_t* ids, int64_t* targets) {
    eval_example(split, first + i, ids, targets);
  });
}

}  // namespace headlab
