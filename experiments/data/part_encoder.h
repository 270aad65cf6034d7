// Parts of a text in tokens, by one thread.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

// A part is cut wherever the tokenizer can cut it, which is about every word. Words come again:
// what became of short ones is remembered, in a table of at most 4 MiB. A word has two places in
// it, and a new one takes that of the word that was not the last to be met there.
class PartEncoder {
 public:
  // `bytes`: of all parts.
  PartEncoder(const Tokenizer& tokenizer, std::string name, size_t bytes);

  // What is wrong with a part, where it is no tokens: of lines the first, which is told as one of
  // this part; the rest is encoded all the same, for it may have bytes that are not UTF-8, of which
  // encode() of the whole speaks first.
  struct Wrong {
    std::optional<LineError> line;
    bool not_utf8 = false;
  };
  // Appends a part's ids to `ids`, id_width() bytes each.
  Wrong encode(std::string_view part, std::string& ids);

 private:
  struct Word {
    uint8_t bytes = 0, ids = 0;  // 0 bytes: none is remembered here
    std::array<char, 30> text;
    std::array<uint32_t, 8> id;
  };
  void encode_word(std::string_view word, std::string& ids);
  void put(uint32_t id, std::string& ids) const;

  const Tokenizer& tokenizer_;
  std::string name_;
  int64_t width_;
  size_t pairs_;
  std::vector<Word> words_;  // pairs of places
};

}  // namespace headlab
