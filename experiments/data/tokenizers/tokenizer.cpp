#include "experiments/data/tokenizers/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "experiments/files/json_text.h"

namespace headlab {
namespace {

std::map<std::string, RegisterTokenizer::Read>& tokenizer_readers() {
  static std::map<std::string, RegisterTokenizer::Read> readers;
  return readers;
}

}  // namespace

std::vector<uint8_t> punctuation_classes(const std::vector<std::string>& texts) {
  std::vector<uint8_t> classes;
  for (const auto& text : texts)
    classes.push_back(text == "." || text == "," ? kPunctuation : kWord);
  return classes;
}

LineError::LineError(const std::string& name, int64_t line, const std::string& what)
    : DataError(fmt::format("{}:{}: {}", name, line, what)),
      name_(name),
      what_(what),
      line_(line) {}

size_t Tokenizer::next_cut(std::string_view text, size_t) const { return text.size(); }

void Encoding::add(int64_t id, TextRange range, int64_t word) {
  ids.push_back(id), ranges.push_back(range), words.push_back(word);
}

void Encoding::append(const Encoding& more) {
  ids.insert(ids.end(), more.ids.begin(), more.ids.end());
  ranges.insert(ranges.end(), more.ranges.begin(), more.ranges.end());
  words.insert(words.end(), more.words.begin(), more.words.end());
}

void TextFrame::write(nlohmann::ordered_json& json) const {
  if (begin) json["begin"] = *begin;
  if (end) json["end"] = *end;
}

TextFrame TextFrame::read(const nlohmann::ordered_json& json) {
  TextFrame frame;
  if (json.contains("begin")) frame.begin = whole_number(json["begin"]);
  if (json.contains("end")) frame.end = whole_number(json["end"]);
  return frame;
}

std::vector<uint8_t> Tokenizer::token_classes() const { return classes_of(token_texts()); }

std::vector<uint8_t> Tokenizer::classes_of(const std::vector<std::string>& texts) const {
  auto classes = punctuation_classes(texts);
  for (int64_t id : specials()) {
    if (texts[id] == "[CLS]") classes[id] = kCls;
    if (texts[id] == "[SEP]") classes[id] = kSep;
  }
  return classes;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  std::optional<int64_t> before;
  for (int64_t id : ids) text += bytes(id, std::exchange(before, id));
  return text;
}

int64_t Tokenizer::checked_id(int64_t id) const {
  if (id < 0 || id >= vocabulary())
    throw DataError(fmt::format("token {} is not in the vocabulary of {}", id, vocabulary()));
  return id;
}

std::string DecodedStream::next(int64_t id) {
  std::string whole = std::exchange(held_, "") + tokenizer_.bytes(id, std::exchange(before_, id));
  const size_t end = whole.size() - utf8_unfinished(whole);
  held_ = whole.substr(end);
  whole.resize(end);
  return whole;
}

std::string DecodedStream::rest() { return std::exchange(held_, ""); }

RegisterTokenizer::RegisterTokenizer(const char* kind, Read read) {
  tokenizer_readers()[kind] = std::move(read);
}

std::shared_ptr<const Tokenizer> read_tokenizer(const nlohmann::ordered_json& json) {
  try {
    const auto kind = json.at("kind").get<std::string>();
    const auto found = tokenizer_readers().find(kind);
    if (found == tokenizer_readers().end()) {
      std::vector<std::string> known;
      for (const auto& [name, read] : tokenizer_readers()) known.push_back(name);
      throw DataError(fmt::format("no kind of tokenizer is called '{}' here; there are {}", kind,
                                  fmt::join(known, ", ")));
    }
    return found->second(json);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("no tokenizer: {}", error.what()));
  }
}

std::vector<int64_t> words_between(const std::vector<bool>& spaces) {
  std::vector<int64_t> words;
  int64_t begun = 0;
  for (size_t n = 0; n < spaces.size(); ++n) {
    if (!spaces[n] && (n == 0 || spaces[n - 1])) ++begun;
    words.push_back(spaces[n] ? -1 : begun - 1);
  }
  return words;
}

}  // namespace headlab
