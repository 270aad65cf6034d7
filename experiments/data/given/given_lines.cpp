#include "experiments/data/given/given_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/formats/plain_text.h"

namespace headlab {
namespace {

class GivenLines : public DataSource {
 public:
  GivenLines(const DataDescription& description, const std::filesystem::path& path)
      : shape_(description.shape) {
    tokenizer_ = description.tokenizer, source_tokenizer_ = description.source_tokenizer;
    files_.push_back(std::filesystem::canonical(path));
    const MappedFile file(path);  // what divides the two texts is no table's
    each_line(plain_text(file.text(), path.string()), [&](std::string_view line, int64_t number) {
      add(line, fmt::format("{}:{}", path.string(), number));
    });
    if (pairs_.empty()) throw DataError(path.string() + ": is empty");
  }

  int64_t vocabulary() const override { return shape_.vocabulary; }
  int64_t context() const override { return shape_.context; }
  DataShape shape() const override { return shape_; }
  Split evaluated() const override { return Split::kWhole; }
  int64_t examples(Split split) const override {
    return split == Split::kWhole ? std::ssize(pairs_) : 0;
  }
  std::string written(Split, int64_t n) const override { return pairs_.at(n).written; }

  Batch eval_batch(Split, int64_t first, int64_t count) const override {
    TORCH_CHECK(first >= 0 && count >= 0 && first + count <= std::ssize(pairs_), "no examples ",
                first, " to ", first + count, " of ", pairs_.size());
    TokenRows texts, translations;
    for (int64_t n = first; n < first + count; ++n) {
      texts.push_back(pairs_[n].source);
      translations.push_back(pairs_[n].target);
    }
    return pair_batch(texts, translations, *shape_.start, *shape_.pad);
  }

 private:
  struct Pair {
    std::vector<int64_t> source, target;  // each with its end
    std::string written;
  };

  void add(std::string_view line, const std::string& place) {
    const auto tab = line.find('\t');
    if (tab == line.npos || line.find('\t', tab + 1) != line.npos)
      throw DataError(place + ": must be a text, a tab and its translation");
    const auto target = line.substr(tab + 1);
    pairs_.push_back({ids(line.substr(0, tab), source_tokenizer_.get(), shape_.source_vocabulary,
                          shape_.source_context, place),
                      ids(target, tokenizer_.get(), shape_.vocabulary, shape_.context, place),
                      std::string(target)});
  }

  std::vector<int64_t> ids(std::string_view text, const Tokenizer* tokenizer, int64_t vocabulary,
                           int64_t context, const std::string& place) const {
    auto ids = tokenizer ? tokenizer->encode(text, place).ids : numbers(text, vocabulary, place);
    if (ids.empty()) throw DataError(place + ": one of the two texts is empty");
    if (ids.back() != *shape_.end) ids.push_back(*shape_.end);
    if (std::ssize(ids) > context)
      throw DataError(
          fmt::format("{}: {} tokens with the one that ends them; the model's context "
                      "is {}",
                      place, ids.size(), context));
    return ids;
  }

  static std::vector<int64_t> numbers(std::string_view text, int64_t vocabulary,
                                      const std::string& place) {
    std::vector<int64_t> ids;
    for (size_t at = text.find_first_not_of(' '); at != text.npos;) {
      const auto end = std::min(text.find(' ', at), text.size());
      const auto word = text.substr(at, end - at);
      int64_t id = -1;
      const auto read = std::from_chars(word.data(), word.data() + word.size(), id);
      if (read.ec != std::errc() || read.ptr != word.data() + word.size() || id < 0 ||
          id >= vocabulary)
        throw DataError(fmt::format(
            "{}: '{}' is no token of {}; the model has no tokenizer, so that lines are numbers of "
            "tokens",
            place, word, vocabulary));
      ids.push_back(id);
      at = text.find_first_not_of(' ', end);
    }
    return ids;
  }

  DataShape shape_;
  std::vector<Pair> pairs_;
};

}  // namespace

std::shared_ptr<DataSource> given_lines(const DataDescription& description,
                                        const std::filesystem::path& path) {
  return std::make_shared<GivenLines>(description, path);
}

}  // namespace headlab
