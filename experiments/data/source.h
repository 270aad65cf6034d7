// A source of examples: text, tokens on disk, or a synthetic task. One file each, registered by an
// object, as variants are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "experiments/data/batch.h"
#include "experiments/data/task.h"
#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

enum class Split { kTrain, kValidation, kTest, kWhole };  // kWhole: of data that are not split
Split split_named(const std::string& name);               // "train", ...; ConfigError otherwise
const char* split_name(Split split);
// As logs and status.json have it: "val/loss".
std::string metric_name(Split split, const std::string& metric);
// "val/loss": what trainings of language models and classifiers are told apart by.
const std::string& validation_loss_name();

// How many tokens a split has and how many of them its examples take: not those at its end that
// fill no window. 0 of 0: a split of anything else, whose examples are all of it.
struct SplitTokens {
  int64_t used = 0, all = 0;
};
// Whether all examples of a split are called the whole of it: of a training's split they are, which
// lacks less than a window; of a text that was given only where they take every token.
inline bool takes_whole(Split split, const SplitTokens& tokens) {
  return split != Split::kWhole || tokens.used == tokens.all;
}

// Which answers may be right: what a guess is among, before anything is learned.
struct Answers {
  // bool: [V] where it is the same of all targets; else [B,1,V], [1,T,V] or [B,T,V].
  Tensor among;
  std::string of;  // "any of 65 tokens"
  // Each of them is drawn as often as any other, whatever stands before it: counts of training
  // foretell nothing.
  bool drawn_alike = false;
};

// Of targets that are values which stand in their example.
struct ShownValues {
  Tensor values;     // int64 [B,P]
  Tensor of_target;  // int64 [B,T]: which of them; -1: the target is not scored
};

// Every batch is a function of its arguments alone, so nothing of a loader has to be saved; calls
// may come from several threads. Wrong arguments are a c10::Error, data that turns out to be wrong
// only when it is read a DataError.
class DataSource {
 public:
  virtual ~DataSource() = default;

  virtual int64_t vocabulary() const = 0;
  virtual int64_t context() const = 0;  // T of every batch
  virtual DataShape shape() const { return {.vocabulary = vocabulary(), .context = context()}; }
  virtual const Task& task() const { return prediction_task(); }
  // Of data that a model either solves or does not, so that the seeds of one training lie in two
  // humps: from which value of Task::own_metrics()' first on it is solved.
  virtual std::optional<double> solved_at() const { return std::nullopt; }
  // Of the targets of a batch of an evaluation, where answers are fewer than all tokens, and not
  // those that the shape leaves.
  virtual std::optional<Answers> answers(const Batch&) const { return std::nullopt; }
  // Where the place of a target foretells which of the shown values it is, without a look at them.
  virtual std::optional<ShownValues> shown_values(const Batch&) const { return std::nullopt; }

  // Examples first .. first + count - 1 of an update (micro-batches of one update follow each
  // other).
  virtual Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const;

  // How many training examples there are, of sources that go over them epoch by epoch; 0: of all
  // others, which draw without end. The former have epoch_batch() instead of train_batch(): places
  // index .. index + count - 1 of the whole training, N of them an epoch.
  virtual int64_t epoch_examples() const { return 0; }
  virtual Batch epoch_batch(uint64_t seed, int64_t index, int64_t count) const;

  // Of sources whose examples differ in length: batches of what is alike, of at most `positions`
  // places each (train.max_positions), put together alike in every epoch. How many an epoch has;
  // 0: of all other sources. sized_batch: number `index` of the whole training, in an order of its
  // own each epoch.
  virtual int64_t sized_batches(int64_t positions) const;
  virtual Batch sized_batch(uint64_t seed, int64_t index, int64_t positions) const;

  // The fixed examples of a split, for evaluation: the same in every run. 0 examples: the source
  // has no such split. eval_batch takes first + count <= examples(split).
  virtual int64_t examples(Split split) const = 0;
  virtual SplitTokens tokens(Split) const { return {}; }
  virtual Split evaluated() const { return Split::kValidation; }  // where none is asked for
  virtual Batch eval_batch(Split split, int64_t first, int64_t count) const = 0;

  // What turns text into this source's tokens; null where no text is behind them.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const { return tokenizer_; }
  // Of Batch::source, where that is text.
  std::shared_ptr<const Tokenizer> source_tokenizer() const { return source_tokenizer_; }
  // What was to be written for an example, as it stands in its file: words that the vocabulary
  // lacks are in it. Of sources with a source_tokenizer() alone.
  virtual std::string written(Split split, int64_t n) const;
  // Text of every token (UTF-8), for /vocab; classes of tokens, for the statistics. Those of the
  // tokenizer; without one only a source that knows better has some.
  virtual std::vector<std::string> token_texts() const;
  // The same of what a model reads there: source and target may have two vocabularies.
  std::vector<std::string> token_texts_of(Tensor Batch::*input) const {
    return input == &Batch::source && source_tokenizer() ? source_tokenizer()->token_texts()
                                                         : token_texts();
  }
  virtual std::vector<uint8_t> token_classes() const;

  // Absolute paths of what was read, for the manifest.
  const std::vector<std::filesystem::path>& files() const { return files_; }

 protected:
  std::shared_ptr<const Tokenizer> tokenizer_, source_tokenizer_;
  std::vector<std::filesystem::path> files_;
};

// DataSource::answers(); of data that state none every class, or every token but those that fill
// up, begin or hide, and, where words are hidden, end.
Answers answers_of(const DataSource& data, const Batch& batch);
Tensor ids_between(int64_t first, int64_t end, int64_t vocabulary);  // bool [V]: first .. end - 1

// Fixed examples of a split, in order: all of them, or those of its first batches.
struct Sample {
  const DataSource* data = nullptr;
  Split split = Split::kValidation;
  int64_t batch = 64, most = 0;  // examples of a batch; batches, 0: the whole split

  int64_t examples() const;
};

// The random word that example n of an update is made from.
uint64_t example_bits(uint64_t seed, int64_t step, int64_t n);

struct DataOptions : Block {
  int64_t context = 64;
  void visit(Fields& f) override { f("context", context, "tokens an example", at_least(1)); }
};

struct DataKind {
  std::string name, summary;
  std::function<std::shared_ptr<DataOptions>()> options;
  std::function<std::shared_ptr<DataSource>(const DataOptions&)> open;  // DataError, ConfigError
};

const DataKind& data_kind(const std::string& name);  // ConfigError with the nearest name
const KindRegistry& data_registry();                 // for `data: {kind: ...}` in a config

// Reads what there is to read. Options that do not fit together are a ConfigError with place, also
// in a block that no file wrote.
std::shared_ptr<DataSource> open_data(const KindBlock& block);

// An object of this type in a source's file registers it: its options, and what opens it with them.
struct RegisterOpening {
  template <class Options>
  RegisterOpening(const char* name, const char* summary,
                  std::shared_ptr<DataSource> (*open)(const Options&))
      : RegisterOpening(DataKind{name, summary, [] { return std::make_shared<Options>(); },
                                 [open](const DataOptions& options) {
                                   return open(dynamic_cast<const Options&>(options));
                                 }}) {}

 private:
  explicit RegisterOpening(DataKind kind);
};

// Likewise of a class: Source(Source::Options).
template <class Source>
struct RegisterData : RegisterOpening {
  RegisterData(const char* name, const char* summary) : RegisterOpening(name, summary, &open) {}
  static std::shared_ptr<DataSource> open(const typename Source::Options& options) {
    return std::make_shared<Source>(options);
  }
};

}  // namespace headlab
