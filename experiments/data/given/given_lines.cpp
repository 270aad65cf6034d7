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
      : description_(description), path_(std::filesystem::canonical(path)) {
    const MappedFile file(path);  // what divides the two texts is no table's
    each_line(plain_text(file.text(), path.string()), [&](std::string_view line, int64_t number) {
      add(line, fmt::format("{}:{}", path.string(), number));
    });
    if (pairs_.empty()) throw DataError(path.string() + ": is empty");
  }

  int64_t vocabulary() const override { return description_.shape.vocabulary; }
  int64_t context() const override { return description_.shape.context; }
  DataShape shape() const override { return description_.shape; }
  Split evaluated() const override { return Split::kWhole; }
  int64_t examples(Split split) const override {
    return split == Split::kWhole ? std::ssize(pairs_) : 0;
  }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return description_.tokenizer; }
  std::shared_ptr<const Tokenizer> source_tokenizer() const override {
    return description_.source_tokenizer;
  }
  std::string written(Split, int64_t n) const override { return pairs_.at(n).written; }
  std::vector<std::filesystem::path> files() const override { return {path_}; }

  Batch eval_batch(Split, int64_t first, int64_t count) const override {
    TORCH_CHECK(first >= 0 && count >= 0 && first + count <= std::ssize(pairs_), "no examples ",
                first, " to ", first + count, " of ", pairs_.size());
    size_t S = 0, T = 0;
    for (int64_t n = first; n < first + count; ++n) {
      S = std::max(S, pairs_[n].source.size());
      T = std::max(T, pairs_[n].target.size());
    }
    const auto rows = [&](size_t width, int64_t fill) {
      return at::full({count, static_cast<int64_t>(width)}, fill, at::kLong);
    };
    const int64_t pad = *description_.shape.pad;
    Batch batch{.ids = rows(T, pad),
                .targets = rows(T, kIgnored),
                .length = at::empty({count}, at::kLong),
                .source = rows(S, pad),
                .source_length = at::empty({count}, at::kLong)};
    for (int64_t b = 0; b < count; ++b) {
      const auto& [source, target, text] = pairs_[first + b];
      const auto put = [&](const Tensor& to, const std::vector<int64_t>& ids) {
        to[b].narrow(0, 0, std::ssize(ids)).copy_(at::tensor(ids, at::kLong));
      };
      put(batch.source, source), put(batch.targets, target);
      std::vector<int64_t> before{*description_.shape.start};
      before.insert(before.end(), target.begin(), target.end() - 1);
      put(batch.ids, before);
      batch.source_length[b] = std::ssize(source), batch.length[b] = std::ssize(target);
    }
    return batch;
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
    const auto& shape = description_.shape;
    const auto target = line.substr(tab + 1);
    pairs_.push_back(
        {ids(line.substr(0, tab), description_.source_tokenizer.get(), shape.source_vocabulary,
             shape.source_context, place),
         ids(target, description_.tokenizer.get(), shape.vocabulary, shape.context, place),
         std::string(target)});
  }

  std::vector<int64_t> ids(std::string_view text, const Tokenizer* tokenizer, int64_t vocabulary,
                           int64_t context, const std::string& place) const {
    auto ids = tokenizer ? tokenizer->encode(text, place).ids : numbers(text, vocabulary, place);
    if (ids.empty()) throw DataError(place + ": one of the two texts is empty");
    if (ids.back() != *description_.shape.end) ids.push_back(*description_.shape.end);
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

  DataDescription description_;
  std::filesystem::path path_;
  std::vector<Pair> pairs_;
};

}  // namespace

std::shared_ptr<DataSource> given_lines(const DataDescription& description,
                                        const std::filesystem::path& path) {
  return std::make_shared<GivenLines>(description, path);
}

}  // namespace headlab
