#include "experiments/data/epochs.h"

#include <bit>
#include <numeric>

#include "core/attention/random.h"
#include "core/torch.h"

namespace headlab {

// A Feistel network permutes the numbers of 2k bits, whatever its rounds compute; places beyond
// `count` are walked on from until one lies below (Black and Rogaway, "Ciphers with Arbitrary
// Finite Domains", 2002): less than four steps on average.
int64_t shuffled(uint64_t seed, int64_t epoch, int64_t n, int64_t count) {
  TORCH_CHECK(n >= 0 && n < count, "place ", n, " of ", count, " examples");
  const int half = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  constexpr uint64_t kShuffle = 0x73687566666C6564;  // "shuffled": far from CounterRng's own
  const CounterRng rng{.seed = seed, .step = static_cast<uint64_t>(epoch)};
  auto place = static_cast<uint64_t>(n);
  do {
    uint64_t left = place >> half, right = place & mask;
    constexpr uint64_t kRounds = 6;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (rng.bits(kShuffle, right << 3 | round) & mask);
      left = right, right = mixed;
    }
    place = left << half | right;
  } while (place >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(place);
}

Batch FiniteSource::epoch_batch(uint64_t seed, int64_t index, int64_t count) const {
  const int64_t N = epoch_examples();
  TORCH_CHECK(index >= 0 && count >= 0 && N > 0, "no ", count, " examples from place ", index,
              " of epochs of ", N);
  std::vector<int64_t> numbers;
  std::vector<uint64_t> bits;
  for (int64_t place = index; place < index + count; ++place) {
    numbers.push_back(shuffled(seed, place / N, place % N, N));
    bits.push_back(example_bits(seed, place / N, numbers.back()));
  }
  Batch batch = batch_of(Split::kTrain, numbers);
  draw(batch, bits);
  return batch;
}

Batch FiniteSource::eval_batch(Split split, int64_t first, int64_t count) const {
  TORCH_CHECK(first >= 0 && count >= 0 && count <= examples(split) - first, "no ", count,
              " examples from ", first, " in split ", split_name(split), " of ", examples(split));
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  std::vector<uint64_t> bits;
  for (int64_t number : numbers)
    bits.push_back(example_bits(static_cast<uint64_t>(split), 0, number));
  Batch batch = batch_of(split, numbers);
  draw(batch, bits);
  return batch;
}

}  // namespace headlab
