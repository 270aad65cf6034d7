#include "experiments/data/tasks/synthetic.h"

#include <fmt/format.h>

#include <utility>

#include "core/attention/random.h"
#include "core/torch.h"
#include "experiments/data/epochs.h"
#include "experiments/text/with_commas.h"

namespace headlab {

void SyntheticOptions::visit(Fields& f) {
  DataOptions::visit(f);
  f("symbols", symbols, "different symbols", between(2, 1 << 24));
  f("eval_examples", eval_examples, "examples of an evaluation", at_least(1));
  f("train_examples", train_examples,
    "examples of an epoch, the same in every run; 0: training draws new ones without end",
    at_least(0));
  f("test", test,
    "a test part, measured when training ends: eval_examples fresh examples; own and every "
    "share mean the same");
}

SyntheticSource::SyntheticSource(const SyntheticOptions& options)
    : SequenceSource(options.context),
      symbols_(options.symbols),
      eval_examples_(options.eval_examples),
      train_examples_(options.train_examples) {}

int64_t SyntheticSource::examples(Split split) const {
  return split == Split::kTrain && train_examples_ > 0 ? train_examples_ : eval_examples_;
}

std::vector<std::string> SyntheticSource::token_texts() const {
  std::vector<std::string> texts;
  for (int64_t id = 0; id < symbols_; ++id) texts.push_back(std::to_string(id));
  return texts;
}

std::optional<Answers> SyntheticSource::answers(const Batch&) const {
  return drawn_between(0, symbols_, "symbols");
}

Answers SyntheticSource::drawn_between(int64_t first, int64_t end, const std::string& what) const {
  return {.among = ids_between(first, end, vocabulary()),
          .of = fmt::format("any of {} {}", with_commas(end - first), what),
          .drawn_alike = true};
}

namespace {
// The random word of a split's example, the same in every run.
uint64_t fixed_bits(Split split, int64_t n) {
  return example_bits(static_cast<uint64_t>(split), 0, n);
}
}  // namespace

// Training draws from even keys and evaluation from odd ones, so that whatever the seed no example
// that is trained on is one of the evaluation's.
void SyntheticSource::train_example(uint64_t bits, int64_t* ids, int64_t* targets) const {
  Draws draws(bits & ~uint64_t{1});
  write_example(draws, {.trained_on = true}, ids, targets);
}

void SyntheticSource::eval_example(Split split, int64_t n, int64_t* ids, int64_t* targets) const {
  const bool trained_on = split == Split::kTrain && train_examples_ > 0;
  const uint64_t bits = fixed_bits(split, n);
  Draws draws(trained_on ? bits & ~uint64_t{1} : bits | 1);
  write_example(draws, {.trained_on = trained_on, .evaluated = true}, ids, targets);
}

Batch SyntheticSource::epoch_batch(uint64_t seed, int64_t index, int64_t count) const {
  const int64_t N = train_examples_;
  TORCH_CHECK(index >= 0 && count >= 0 && N > 0, "no ", count, " examples from place ", index,
              " of epochs of ", N);
  return made_of(count, [&](int64_t i, int64_t* ids, int64_t* targets) {
    const int64_t place = index + i, n = shuffled(seed, place / N, place % N, N);
    train_example(fixed_bits(Split::kTrain, n), ids, targets);
  });
}

void NextTokenTask::write_example(Draws& draws, ExampleUse, int64_t* ids, int64_t* targets) const {
  const int64_t length = context() + 1;
  Sequence sequence{std::vector<int64_t>(length), std::vector<bool>(length)};
  draw(draws, sequence);
  for (int64_t t = 0; t < context(); ++t) {
    ids[t] = sequence.tokens[t];
    targets[t] = sequence.scored[t + 1] ? sequence.tokens[t + 1] : kIgnored;
  }
}

}  // namespace headlab
