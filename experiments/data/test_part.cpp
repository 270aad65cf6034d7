#include "experiments/data/test_part.h"

#include <fmt/format.h>

#include <cmath>

#include "core/torch.h"
#include "experiments/data/source.h"
#include "experiments/files/count_or_share.h"

namespace headlab {
namespace {

// Data whose validation is cut in two; everything else is theirs. Examples keep what was drawn for
// them, as they are still read by their numbers.
class CutValidation : public DataSource {
 public:
  CutValidation(std::shared_ptr<DataSource> data, int64_t taken) : data_(std::move(data)) {
    tokenizer_ = data_->tokenizer(), source_tokenizer_ = data_->source_tokenizer();
    files_ = data_->files();
    const int64_t all = data_->examples(Split::kValidation);
    const bool follow = data_->tokens(Split::kValidation).all > 0;  // windows of a text
    for (int64_t n = 0; n < all; ++n) {
      const bool is_test = follow ? n >= all - taken : (n + 1) * taken / all > n * taken / all;
      (is_test ? test_ : validation_).push_back(n);
    }
  }

  int64_t vocabulary() const override { return data_->vocabulary(); }
  int64_t context() const override { return data_->context(); }
  DataShape shape() const override { return data_->shape(); }
  const Task& task() const override { return data_->task(); }
  std::optional<double> solved_at() const override { return data_->solved_at(); }
  std::optional<Answers> answers(const Batch& batch) const override {
    return data_->answers(batch);
  }
  std::optional<ShownValues> shown_values(const Batch& batch) const override {
    return data_->shown_values(batch);
  }
  Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const override {
    return data_->train_batch(seed, step, first, count);
  }
  int64_t epoch_examples() const override { return data_->epoch_examples(); }
  Batch epoch_batch(uint64_t seed, int64_t index, int64_t count) const override {
    return data_->epoch_batch(seed, index, count);
  }
  int64_t sized_batches(int64_t positions) const override {
    return data_->sized_batches(positions);
  }
  Batch sized_batch(uint64_t seed, int64_t index, int64_t positions) const override {
    return data_->sized_batch(seed, index, positions);
  }
  Split evaluated() const override { return data_->evaluated(); }
  std::vector<std::string> token_texts() const override { return data_->token_texts(); }
  std::vector<uint8_t> token_classes() const override { return data_->token_classes(); }

  int64_t examples(Split split) const override {
    const auto* numbers = numbers_of(split);
    return numbers ? std::ssize(*numbers) : data_->examples(split);
  }
  SplitTokens tokens(Split split) const override {
    if (!numbers_of(split)) return data_->tokens(split);
    const auto [used, all] = data_->tokens(Split::kValidation);
    const int64_t a_window = used / data_->examples(Split::kValidation);
    const int64_t before = std::ssize(validation_) * a_window;
    if (split == Split::kValidation) return {before, before};
    return {used - before, all - before};
  }
  std::string written(Split split, int64_t n) const override {
    const auto* numbers = numbers_of(split);
    return numbers ? data_->written(Split::kValidation, numbers->at(n)) : data_->written(split, n);
  }
  Batch eval_batch(Split split, int64_t first, int64_t count) const override {
    const auto* numbers = numbers_of(split);
    if (!numbers) return data_->eval_batch(split, first, count);
    TORCH_CHECK(first >= 0 && count >= 0 && count <= std::ssize(*numbers) - first, "no ", count,
                " examples from ", first, " in split ", split_name(split), " of ", numbers->size());
    if (count == 0) return data_->eval_batch(Split::kValidation, 0, 0);
    std::vector<Batch> batches;  // of numbers that follow each other
    for (int64_t from = first, to = first; from < first + count; from = to) {
      while (++to < first + count && numbers->at(to) == numbers->at(to - 1) + 1) {
      }
      batches.push_back(data_->eval_batch(Split::kValidation, numbers->at(from), to - from));
    }
    return batches.size() == 1 ? batches.front() : joined(batches, data_->shape().pad.value_or(0));
  }

 private:
  // Of a part of validation; null: the split is as it was.
  const std::vector<int64_t>* numbers_of(Split split) const {
    if (split == Split::kValidation) return &validation_;
    return split == Split::kTest ? &test_ : nullptr;
  }

  std::shared_ptr<DataSource> data_;
  std::vector<int64_t> validation_, test_;
};

}  // namespace

std::shared_ptr<DataSource> TestPart::added_to(std::shared_ptr<DataSource> data,
                                               const Complain& complain) const {
  if (!is_asked() || data->examples(Split::kTest) > 0) return data;
  const int64_t validation = data->examples(Split::kValidation);
  const int64_t all = data->examples(Split::kTrain) + validation;
  const int64_t taken = share_ ? std::llround(*share_ * static_cast<double>(all)) : 0;
  if (!share_)
    complain("test", "the data have no test part of their own; name a share, such as 0.05");
  else if (taken < 1)
    complain("test", fmt::format("a share of {} of the {} examples is less than one example; "
                                 "name a larger share",
                                 shortest(*share_), all));
  else if (taken >= validation)
    complain("test",
             fmt::format("a share of {} of the {} examples is {}, and the test part is taken from "
                         "validation, which has {}; name a smaller share, or give validation more",
                         shortest(*share_), all, taken, validation));
  else
    return std::make_shared<CutValidation>(std::move(data), taken);
  return data;
}

void TestPart::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  Problems no_number;
  if (double number = 0; read_value(number, node, path, no_number)) {
    if (read_value(number, node, path, problems, share_limits())) share_ = number;
  } else if (names_ == Own::kFile) {
    read_value(file_, node, path, problems);
  } else if (names_ == Own::kWord && node.kind == ConfigNode::Kind::kScalar && node.text == "own") {
    own_ = true;
  } else {
    problems.add(node.place, path,
                 std::string("must be a share of all examples, above 0 and below 1") +
                     (names_ == Own::kWord ? ", or own, the data's own test part" : ""));
  }
}

ConfigNode TestPart::write() const {
  if (share_) return write_number(*share_);
  if (own_) return write_text("own");
  if (!file_.written.empty()) return write_path(file_);
  ConfigNode none;
  none.kind = ConfigNode::Kind::kNull;
  return none;
}

std::string TestPart::type() const {
  if (names_ == Own::kNone) return "share";
  return names_ == Own::kWord ? "share or own" : "share or path";
}

void TestPart::forms(Forms& f) const {
  f.number(share_limits());
  if (names_ == Own::kWord) f.word({"own"});
  if (names_ == Own::kFile) f.word({});  // any text
}

void TestPartOption::visit_test(Fields& f, const std::string& own) {
  std::string help =
      "a test part, measured when training ends: a share of all examples, taken from validation";
  if (test.names() == TestPart::Own::kFile) help += ", or a text of its own";
  if (!own.empty()) help += "; or own, " + own + ", which also takes the place of a share";
  f("test", test, help.c_str());
}

bool asks_for_test(const KindBlock& data) {
  const auto* options = dynamic_cast<const TestPartOption*>(&data.options());
  return options && options->test.is_asked();
}

}  // namespace headlab
