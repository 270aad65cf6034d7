#include "experiments/data/parallel_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace headlab {
namespace {

std::string place_of(const std::filesystem::path& path, int64_t line) {
  return fmt::format("{}:{}", path.string(), line + 1);
}

}  // namespace

ParallelText::Side::Side(const std::filesystem::path& path) : path(path), file(path) {
  each_line(file.text(), [&](std::string_view line, int64_t number) {
    const auto place = place_of(path, number - 1);
    if (line.find_first_not_of(" \t\r") == line.npos)
      throw DataError(place + ": is empty; leave the pair out, in both files");
    decode_utf8(line, place, [](char32_t) {});
    lines.push_back(line);
  });
}

ParallelText::ParallelText(const std::filesystem::path& source, const std::filesystem::path& target)
    : source(source), target(target) {
  const auto [n, m] = std::pair(this->source.lines.size(), this->target.lines.size());
  if (n != m)
    throw DataError(
        fmt::format("{}: has {} lines and {} has {}; each line of one must be the "
                    "translation of that of the other",
                    source.string(), n, target.string(), m));
  if (n == 0) throw DataError(source.string() + ": is empty");
}

TokenLines::TokenLines(const ParallelText::Side& text, const Tokenizer& tokenizer, int64_t most) {
  int64_t longest = most, longer = 0, first = 0;
  for (const auto line : text.lines) {
    const auto ids = tokenizer.encode(line, place_of(text.path, size())).ids;
    if (std::ssize(ids) > most && longer++ == 0) first = size();
    longest = std::max<int64_t>(longest, std::ssize(ids));
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ends_.push_back(std::ssize(ids_));
  }
  if (longer > 0)
    throw DataError(fmt::format(
        "{}: has {} tokens and its end, but data.context is {}; raise it to {}, or leave out the "
        "{} pairs of lines that are too long",
        place_of(text.path, first), length(first), most + 1, longest + 1, longer));
}

}  // namespace headlab
