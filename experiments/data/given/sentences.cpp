#include "experiments/data/given/sentences.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/formats/plain_text.h"

namespace headlab {
namespace {

class Sentences : public DataSource {
 public:
  Sentences(const DataDescription& description, std::string_view text, const std::string& name,
            std::vector<std::filesystem::path> files)
      : shape_(description.shape) {
    tokenizer_ = description.tokenizer, files_ = std::move(files);
    each_line(text, [&](std::string_view line, int64_t number) {
      add(line, fmt::format("{}:{}", name, number));
    });
    if (ids_.empty()) throw DataError(name + ": has no line with a word");
  }

  void place(const std::function<Tensor(const Batch&)>& embed) {
    constexpr int64_t kAtATime = 64;
    std::vector<Tensor> places;
    for (int64_t n = 0; n < std::ssize(ids_); n += kAtATime)
      places.push_back(
          embed(batch_of(n, std::min(kAtATime, std::ssize(ids_) - n))).to(at::kCPU).clone());
    places_ = at::cat(places);
  }

  int64_t vocabulary() const override { return shape_.vocabulary; }
  int64_t context() const override { return shape_.context; }
  DataShape shape() const override { return shape_; }
  const Task& task() const override { return embedding_task(); }
  Split evaluated() const override { return Split::kWhole; }
  int64_t examples(Split split) const override {
    return split == Split::kWhole ? std::ssize(ids_) : 0;
  }

  Batch eval_batch(Split, int64_t first, int64_t count) const override {
    auto batch = batch_of(first, count);
    batch.reference = places_.narrow(0, first, count);
    return batch;
  }

 private:
  void add(std::string_view line, const std::string& place) {
    auto ids = tokenizer_->encode(line, place).ids;
    if (ids.empty()) return;
    if (shape_.start) ids.insert(ids.begin(), *shape_.start);
    if (shape_.end) ids.push_back(*shape_.end);
    if (std::ssize(ids) > shape_.context)
      throw DataError(fmt::format("{}: a sentence of {} tokens, the model's context is {}; cut it",
                                  place, ids.size(), shape_.context));
    ids_.push_back(std::move(ids));
  }

  Batch batch_of(int64_t first, int64_t count) const {
    const TokenRows rows(ids_.begin() + first, ids_.begin() + first + count);
    return {.ids = padded_rows(rows, shape_.pad.value_or(0)), .length = row_lengths(rows)};
  }

  DataShape shape_;
  TokenRows ids_;
  Tensor places_;  // [N,D]
};

}  // namespace

std::shared_ptr<DataSource> sentences(const DataDescription& description, std::string_view text,
                                      const std::string& name,
                                      std::vector<std::filesystem::path> files,
                                      const std::function<Tensor(const Batch&)>& embed) {
  auto made = std::make_shared<Sentences>(description, text, name, std::move(files));
  made->place(embed);
  return made;
}

}  // namespace headlab
