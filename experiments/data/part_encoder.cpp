#include "experiments/data/part_encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "experiments/data/token_ids.h"

namespace headlab {

PartEncoder::PartEncoder(const Tokenizer& tokenizer, std::string name, size_t bytes)
    : tokenizer_(tokenizer), name_(std::move(name)), width_(id_width(tokenizer.vocabulary())) {
  constexpr size_t kMostPairs = 1 << 15, kBytesAPair = 16;
  pairs_ = std::clamp<size_t>(std::bit_ceil(bytes / kBytesAPair), 1, kMostPairs);
  static_assert(sizeof(Word) == 64);  // a line of the processor's cache
}

PartEncoder::Wrong PartEncoder::encode(std::string_view part, std::string& ids) {
  words_.resize(2 * pairs_);  // in the thread that uses them
  Wrong wrong;
  for (size_t at = 0; at < part.size();) {
    const size_t end = tokenizer_.next_cut(part, at + 1);
    try {
      encode_word(part.substr(at, end - at), ids);
    } catch (const LineError& error) {
      if (!wrong.line) wrong.line = error.behind(std::ranges::count(part.substr(0, at), '\n'));
    } catch (const NotUtf8&) {
      wrong.not_utf8 = true;
      return wrong;
    }
    at = end;
  }
  return wrong;
}

void PartEncoder::encode_word(std::string_view word, std::string& ids) {
  auto* const pair = &words_[std::hash<std::string_view>()(word) % pairs_ * 2];
  const auto is_in = [&](const Word& known) {
    return known.bytes == word.size() &&
           std::memcmp(known.text.data(), word.data(), word.size()) == 0;
  };
  if (!is_in(pair[0]) && is_in(pair[1])) std::swap(pair[0], pair[1]);
  if (is_in(pair[0])) {
    for (uint8_t n = 0; n < pair->ids; ++n) put(pair->id[n], ids);
    return;
  }
  const auto made = tokenizer_.encode(word, name_).ids;
  for (const int64_t id : made) put(static_cast<uint32_t>(id), ids);
  auto& known = pair[1];
  if (word.size() > known.text.size() || made.size() > known.id.size()) return;
  known.bytes = static_cast<uint8_t>(word.size()), known.ids = static_cast<uint8_t>(made.size());
  std::ranges::copy(word, known.text.begin());
  std::ranges::copy(made, known.id.begin());
}

void PartEncoder::put(uint32_t id, std::string& ids) const {
  const auto append = [&](auto narrow) {
    ids.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
  };
  if (width_ == 1)
    append(static_cast<uint8_t>(id));
  else if (width_ == 2)
    append(static_cast<uint16_t>(id));
  else
    append(id);
}

}  // namespace headlab
