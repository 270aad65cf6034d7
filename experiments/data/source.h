// A source of examples: text, tokens on disk, or a synthetic task. One file each, registered by an
// object, as variants are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"

namespace headlab {

using at::Tensor;

enum class Split { kTrain, kValidation, kTest };
Split split_named(const std::string& name);  // "train", "val", "test"; ConfigError otherwise

constexpr int64_t kIgnored = -100;  // a target that is not scored

struct Batch {
  Tensor ids;      // [B,T] int64
  Tensor targets;  // [B,T] int64; negative: not scored
};

// Every batch is a function of its arguments alone, so nothing of a loader has to be saved.
class DataSource {
 public:
  virtual ~DataSource() = default;

  virtual int64_t vocabulary() const = 0;
  virtual int64_t context() const = 0;  // T of every batch

  // Examples first .. first + count - 1 of an update (micro-batches of one update follow each
  // other).
  virtual Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const = 0;

  // The fixed examples of a split, for evaluation: the same in every run.
  virtual int64_t examples(Split split) const = 0;
  virtual Batch eval_batch(Split split, int64_t first, int64_t count) const = 0;

  // Text of every token (UTF-8), for /vocab; classes of tokens (0 word, 1 cls, 2 sep, 3
  // punctuation), empty where they are not known.
  virtual std::vector<std::string> token_texts() const { return {}; }
  virtual std::vector<uint8_t> token_classes() const { return {}; }

  // Text <-> ids. DataError where the source has no text, or a character is not in the vocabulary.
  virtual std::vector<int64_t> encode(const std::string& text) const;
  virtual std::string decode(const std::vector<int64_t>& ids) const;
  virtual bool has_text() const { return false; }

  virtual std::vector<std::filesystem::path> files() const { return {}; }  // read, for the manifest
};

struct DataOptions : Block {
  int64_t context = 64;
  void visit(Fields& f) override { f("context", context, "tokens an example", at_least(1)); }
};

struct DataKind {
  std::string name, summary;
  std::function<std::shared_ptr<DataOptions>()> options;
  std::function<std::shared_ptr<DataSource>(const DataOptions&)> open;  // DataError, ConfigError
};

void register_data(DataKind kind);
std::vector<std::string> data_names();
const DataKind& data_kind(const std::string& name);
const KindRegistry& data_registry();
std::shared_ptr<DataSource> open_data(const KindBlock& block);

template <class Source>
struct RegisterData {
  RegisterData(const char* name, const char* summary) {
    using Options = typename Source::Options;
    register_data({name, summary, [] { return std::make_shared<Options>(); },
                   [](const DataOptions& options) {
                     return std::make_shared<Source>(dynamic_cast<const Options&>(options));
                   }});
  }
};

}  // namespace headlab
