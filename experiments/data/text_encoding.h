// Long texts in tokens: part by part, by all threads. The ids are those of Tokenizer::encode() of
// the whole text, whatever the parts and threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "experiments/data/token_ids.h"
#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

struct EncodingOptions {
  int threads = 1;
  size_t part = 256 << 10;  // bytes of a text that a thread takes at a time, about
};

// Those of torch. No more than 16, which take 100 MB in all: a disk has no more to give them.
int encoding_threads();

// Calls `take` with the ids, id_width() bytes each, part by part in their order. A text that the
// tokenizer cannot cut is one part, and takes what encode() takes. LineError, NotUtf8 as encode()
// of the whole; StoppedError where a signal asks to stop.
void encode_in_parts(const Tokenizer& tokenizer, std::string_view text, const std::string& name,
                     const EncodingOptions& options,
                     const std::function<void(std::string_view)>& take);

// The same, in memory.
TokenIds encode_in_memory(const Tokenizer& tokenizer, std::string_view text,
                          const std::string& name, const EncodingOptions& options);

// What encoding a text will take, by pieces of it that are encoded for this. None where they tell
// nothing.
struct EncodingCost {
  double tokens, seconds;
};
std::optional<EncodingCost> estimated_cost(const Tokenizer& tokenizer, std::string_view text,
                                           const EncodingOptions& options);

}  // namespace headlab
