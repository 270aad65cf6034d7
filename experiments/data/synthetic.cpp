#include "experiments/data/synthetic.h"

#include <numeric>
#include <utility>

#include "core/attention/random.h"

namespace headlab {

void SyntheticOptions::visit(Fields& f) {
  DataOptions::visit(f);
  f("symbols", symbols, "different symbols", at_least(2));
  f("eval_examples", eval_examples, "examples of an evaluation", at_least(1));
}

uint64_t Draws::bits() { return mix_bits(key_ ^ mix_bits(count_++)); }

int64_t Draws::below(int64_t n) {
  // The high word of bits * n: uniform but for n / 2^64.
  return static_cast<int64_t>(static_cast<unsigned __int128>(bits()) * n >> 64);
}

int64_t Draws::between(int64_t low, int64_t high) { return low + below(high - low + 1); }

double Draws::unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

std::vector<int64_t> Draws::distinct(int64_t count, int64_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i) std::swap(all[i], all[between(i, n - 1)]);
  all.resize(count);
  return all;
}

SyntheticSource::SyntheticSource(const SyntheticOptions& options)
    : SequenceSource(options.context),
      symbols_(options.symbols),
      eval_examples_(options.eval_examples) {}

std::vector<std::string> SyntheticSource::token_texts() const {
  std::vector<std::string> texts;
  for (int64_t id = 0; id < symbols_; ++id) texts.push_back(std::to_string(id));
  return texts;
}

// Training draws from even keys and evaluation from odd ones, so that whatever the seed no example
// that is trained on is one of the evaluation's.
void SyntheticSource::train_example(uint64_t bits, int64_t* ids, int64_t* targets) const {
  write_example(bits & ~uint64_t{1}, ids, targets);
}

void SyntheticSource::eval_example(Split split, int64_t n, int64_t* ids, int64_t* targets) const {
  write_example(example_bits(static_cast<uint64_t>(split), 0, n) | 1, ids, targets);
}

void SyntheticSource::write_example(uint64_t key, int64_t* ids, int64_t* targets) const {
  const int64_t length = context() + 1;
  Sequence sequence{std::vector<int64_t>(length), std::vector<bool>(length)};
  Draws draws(key);
  draw(draws, sequence);
  for (int64_t t = 0; t < context(); ++t) {
    ids[t] = sequence.tokens[t];
    targets[t] = sequence.scored[t + 1] ? sequence.tokens[t + 1] : kIgnored;
  }
}

}  // namespace headlab
