// What turns text into tokens and tokens into text, apart from any data: a run keeps it, so that
// its model can be given text wherever the run lies. No torch in here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "experiments/text/utf8.h"

namespace headlab {

// Classes of tokens (HeadProbe::classes).
enum TokenClass : uint8_t { kWord, kCls, kSep, kPunctuation };
std::vector<uint8_t> punctuation_classes(const std::vector<std::string>& texts);  // "." and ","

// The tokens of a text, in its order.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<TextRange> ranges;  // what of the text each is; empty: none of it (a special token)
  std::vector<int64_t> words;     // number of the word that each is part of; -1: none

  void add(int64_t id, TextRange range, int64_t word);
  void append(const Encoding& more);
};

// Tokens that a model wants around a text; after the second of two texts `end` stands again.
struct TextFrame {
  std::optional<int64_t> begin = {}, end = {};

  void write(nlohmann::ordered_json& json) const;  // "begin", "end"; what is not there is not said
  static TextFrame read(const nlohmann::ordered_json& json);
};

// What is wrong with a line of a text: `name:line: what`, lines counted from 1.
class LineError : public DataError {
 public:
  LineError(const std::string& name, int64_t line, const std::string& what);
  // The same of a text that has so many lines before the one that was looked at.
  LineError behind(int64_t lines) const { return {name_, line_ + lines, what_}; }

 private:
  std::string name_, what_;
  int64_t line_;
};

// The first place from `from` on that is one; the text's size where none is.
template <class IsPlace>
size_t first_place(std::string_view text, size_t from, IsPlace is_place) {
  while (from < text.size() && !is_place(from)) ++from;
  return std::min(from, text.size());
}

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocabulary() const = 0;
  // LineError or NotUtf8 for text that is no tokens; `name` is what messages call it.
  virtual Encoding encode(std::string_view text, const std::string& name) const = 0;
  // A place where a text can be cut, the first from `from` on that this kind looks for: the ids of
  // the two parts, one behind the other, are those of the whole. Only the bytes around a place
  // decide whether it is one, so that parts of a text are cut where the whole is. The text's size:
  // there is none. 0 < from.
  virtual size_t next_cut(std::string_view text, size_t from) const;
  // What a token adds behind the token `before`; none: at the start of a text. The bytes of one
  // token need not be whole characters. DataError for an id that is not in the vocabulary.
  virtual std::string bytes(int64_t id, std::optional<int64_t> before) const = 0;
  virtual std::string decode(const std::vector<int64_t>& ids) const;

  // Of every token: its text, to be shown (UTF-8); its class.
  virtual std::vector<std::string> token_texts() const = 0;
  virtual std::vector<uint8_t> token_classes() const;

  // Ids that stand for no text of their own: cut out where a text spells them out.
  virtual std::vector<int64_t> specials() const { return {}; }
  virtual TextFrame frame() const { return {}; }

  // {"kind": ..., and what the kind needs}: read_tokenizer() makes the same one of it.
  virtual nlohmann::ordered_json json() const = 0;

 protected:
  int64_t checked_id(int64_t id) const;  // DataError unless it is in the vocabulary
  // Of tokens with these texts: punctuation, and which of the specials are [CLS] and [SEP].
  std::vector<uint8_t> classes_of(const std::vector<std::string>& texts) const;
};

// Tokens as text while they come: characters, each as soon as it is whole. Bytes that are part of
// no character pass as they are, so that what comes out is the tokens' bytes, all of them.
class DecodedStream {
 public:
  DecodedStream(const Tokenizer& tokenizer, std::optional<int64_t> before)
      : tokenizer_(tokenizer), before_(before) {}
  std::string next(int64_t id);
  std::string rest();  // what is held back

 private:
  const Tokenizer& tokenizer_;
  std::optional<int64_t> before_;
  std::string held_;  // the beginning of a character
};

// DataError for what is no tokenizer of a kind that this version knows.
std::shared_ptr<const Tokenizer> read_tokenizer(const nlohmann::ordered_json& json);

// An object of this type in a tokenizer's file registers what reads it again; `read` may throw
// nlohmann's errors.
struct RegisterTokenizer {
  using Read = std::function<std::shared_ptr<const Tokenizer>(const nlohmann::ordered_json&)>;
  RegisterTokenizer(const char* kind, Read read);
};

// Numbers of words that white space separates, of tokens that are each a character: -1 for spaces.
std::vector<int64_t> words_between(const std::vector<bool>& spaces);

}  // namespace headlab
