// Windows of long token streams, one stream a split: what char, bytes and tokens share.
//
// A training window starts at hash(seed, step, n) mod (N - context), as nanoGPT's random windows;
// an evaluation takes the (N - 1) / context windows that do not overlap.
#pragma once

#include <map>

#include "experiments/data/formats/token_files.h"
#include "experiments/data/sequences.h"
#include "experiments/data/test_part.h"

namespace headlab {

class TextStream : public SequenceSource {
 public:
  int64_t examples(Split split) const final;
  SplitTokens tokens(Split split) const final;

 protected:
  using SequenceSource::SequenceSource;

  // The tokens of a split, which lie at the start of `file` and live as long as the source.
  // DataError when they are no more than the context.
  void add_split(Split split, const TokenSpan& tokens, const std::filesystem::path& file);
  // The first `share` of the tokens for training, the rest for validation. DataError also when
  // there are none.
  void add_splits(const TokenSpan& tokens, double share, const std::filesystem::path& file);

  // Reads the whole split. DataError naming the byte of a token that is not in the vocabulary.
  void require_known_ids(Split split) const;

 private:
  struct Stream {
    TokenSpan tokens;
    std::filesystem::path file;
    int64_t size() const;
  };

  void train_example(uint64_t bits, int64_t* ids, int64_t* targets) const final;
  void eval_example(Split split, int64_t n, int64_t* ids, int64_t* targets) const final;
  void read_window(const Stream& stream, int64_t start, int64_t* ids, int64_t* targets) const;
  template <class Tokens>  // a part of a file, from its token `start`
  void require_known(const Tokens& tokens, int64_t start, const std::filesystem::path& file) const;

  std::map<Split, Stream> streams_;
};

// Options of the kinds that read a text file. Those that read others beside it visit `test` behind
// them.
struct TextOptions : DataOptions, TestPartOption {
  FilePath path;
  double train_share = 0.9;

  using TestPartOption::TestPartOption;
  void visit(Fields& f) override;
  void check(const Complain& complain) const override;
};

// Of the kinds whose text may have its validation in a file of its own, and that may hide tokens.
struct TextPartsOptions : TextOptions {
  FilePath validation;
  std::string objective = "next";

  TextPartsOptions() : TextOptions(TestPart::Own::kFile) {}
  bool masks() const { return objective == "masked"; }
  void visit(Fields& f) override {
    TextOptions::visit(f);
    f("validation", validation, "the text that validates (default: the end of path)");
    visit_test(f);
  }

 protected:
  void visit_objective(Fields& f, const char* help) {
    f("objective", objective, help, one_of({"next", "masked"}));
  }
};

// Of the kinds that read one text file and no other.
struct OneTextOptions : TextOptions {
  void visit(Fields& f) override {
    TextOptions::visit(f);
    visit_test(f);
  }
};

}  // namespace headlab
