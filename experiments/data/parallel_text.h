// A text and its translation, line by line. No torch in here.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "experiments/data/formats/plain_text.h"
#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

// Two files of as many lines; line n of one is line n of the other in the other language.
struct ParallelText {
  struct Side {
    std::filesystem::path path;
    TextFile file;
    std::vector<std::string_view> lines;  // without their ends

    // DataError `path:line: ...` for a line that is empty or not UTF-8.
    explicit Side(const std::filesystem::path& path);
  };
  Side source, target;

  // DataError also where one has more lines, or there are none.
  ParallelText(const std::filesystem::path& source, const std::filesystem::path& target);
};

// Lines as tokens, one behind the other.
class TokenLines {
 public:
  // A line has `most` tokens or fewer, not counting one more that begins or ends it. DataError
  // `path:line: ...` for a longer one.
  TokenLines(const ParallelText::Side& text, const Tokenizer& tokenizer, int64_t most);

  int64_t size() const { return std::ssize(ends_); }
  int64_t length(int64_t n) const { return ends_[n] - begin(n); }
  std::span<const int32_t> tokens(int64_t n) const {
    return std::span(ids_).subspan(begin(n), length(n));
  }

 private:
  int64_t begin(int64_t n) const { return n == 0 ? 0 : ends_[n - 1]; }

  std::vector<int32_t> ids_;
  std::vector<int64_t> ends_;
};

}  // namespace headlab
