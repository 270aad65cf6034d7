#include "experiments/benchmarks/bench_shape.h"

#include <fmt/format.h>

#include <charconv>

#include "core/config/config.h"

namespace headlab {
namespace {

constexpr int64_t kLargestSize = 1 << 24;

[[noreturn]] void refuse_shape(const std::string& word, const std::string& why) {
  throw ConfigError(fmt::format(
      "--shape {}: {}; write BATCHxTOKENSxWIDTHxHEADS, such as 12x64x128x4", word, why));
}

// The number at `at`, which moves behind it.
int64_t number_at(const std::string& word, size_t& at, const char* what) {
  int64_t number = 0;
  const auto* begin = word.data() + at;
  const auto [stop, error] = std::from_chars(begin, word.data() + word.size(), number);
  if (error != std::errc() || number < 1 || number > kLargestSize)
    refuse_shape(word, fmt::format("character {}: {} must be a whole number from 1 to {}", at + 1,
                                   what, kLargestSize));
  at += static_cast<size_t>(stop - begin);
  return number;
}

}  // namespace

std::string BenchShape::text() const {
  return fmt::format("{}x{}x{}x{}", batch, tokens, width, heads);
}

BenchShape bench_shape(const std::string& word) {
  BenchShape shape;
  const std::pair<int64_t*, const char*> parts[] = {{&shape.batch, "BATCH"},
                                                    {&shape.tokens, "TOKENS"},
                                                    {&shape.width, "WIDTH"},
                                                    {&shape.heads, "HEADS"}};
  size_t at = 0;
  for (const auto& [size, what] : parts) {
    if (size != &shape.batch) {
      if (at >= word.size() || word[at] != 'x')
        refuse_shape(word, fmt::format("character {}: an x and {} must follow", at + 1, what));
      ++at;
    }
    *size = number_at(word, at, what);
  }
  if (at != word.size()) refuse_shape(word, fmt::format("character {}: it must end here", at + 1));
  if (shape.width % shape.heads != 0)
    refuse_shape(word,
                 fmt::format("WIDTH {} must be a multiple of HEADS {}", shape.width, shape.heads));
  return shape;
}

}  // namespace headlab
