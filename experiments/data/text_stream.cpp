#include "experiments/data/text_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "experiments/files/count_or_share.h"

namespace headlab {

int64_t TextStream::Stream::size() const {
  return std::visit([](const auto& tokens) { return std::ssize(tokens); }, tokens);
}

void TextStream::add_split(Split split, const TokenSpan& tokens,
                           const std::filesystem::path& file) {
  const Stream stream{tokens, file};
  if (stream.size() <= context())
    throw DataError(
        fmt::format("{}: {} tokens for split {}, but a window takes context + 1 = {}; "
                    "use a smaller context or a longer text",
                    file.string(), stream.size(), split_name(split), context() + 1));
  streams_[split] = stream;
}

void TextStream::add_splits(const TokenSpan& tokens, double share,
                            const std::filesystem::path& file) {
  std::visit(
      [&](const auto& all) {
        if (all.empty()) throw DataError(file.string() + ": is empty; data.path must name a text");
        const auto cut = static_cast<size_t>(static_cast<double>(all.size()) * share);
        add_split(Split::kTrain, all.first(cut), file);
        add_split(Split::kValidation, all.subspan(cut), file);
      },
      tokens);
}

int64_t TextStream::examples(Split split) const {
  const auto found = streams_.find(split);
  return found == streams_.end() ? 0 : (found->second.size() - 1) / context();
}

SplitTokens TextStream::tokens(Split split) const {
  const auto found = streams_.find(split);
  if (found == streams_.end()) return {};
  return windowed_tokens(found->second.size(), examples(split) * context());
}

void TextStream::train_example(uint64_t bits, int64_t* ids, int64_t* targets) const {
  const Stream& stream = streams_.at(Split::kTrain);
  const auto starts = static_cast<uint64_t>(stream.size() - context());
  read_window(stream, static_cast<int64_t>(bits % starts), ids, targets);
}

void TextStream::eval_example(Split split, int64_t n, int64_t* ids, int64_t* targets) const {
  read_window(streams_.at(split), n * context(), ids, targets);
}

template <class Tokens>
void TextStream::require_known(const Tokens& tokens, int64_t start,
                               const std::filesystem::path& file) const {
  if (*std::max_element(tokens.begin(), tokens.end()) < vocabulary()) return;
  const auto wrong =
      std::find_if(tokens.begin(), tokens.end(), [&](auto id) { return id >= vocabulary(); });
  const auto at = (start + (wrong - tokens.begin())) * static_cast<int64_t>(sizeof(tokens[0]));
  throw DataError(
      fmt::format("{}: byte {}: token {} does not fit vocab_size {}; correct vocab_size "
                  "or dtype in meta.json",
                  file.string(), at, *wrong, vocabulary()));
}

void TextStream::read_window(const Stream& stream, int64_t start, int64_t* ids,
                             int64_t* targets) const {
  std::visit(
      [&](const auto& tokens) {
        const auto window = tokens.subspan(start, context() + 1);
        std::copy(window.begin(), window.end() - 1, ids);
        std::copy(window.begin() + 1, window.end(), targets);
        require_known(window, start, stream.file);
      },
      stream.tokens);
}

void TextStream::require_known_ids(Split split) const {
  const Stream& stream = streams_.at(split);
  std::visit([&](const auto& tokens) { require_known(tokens, 0, stream.file); }, stream.tokens);
}

void TextOptions::visit(Fields& f) {
  DataOptions::visit(f);
  f("path", path,
    "the text file (char: UTF-8; bytes: any); each part has more tokens than context");
  f("train_share", train_share, "part of the text to train on, the rest validates", share_limits());
}

void TextOptions::check(const Complain& complain) const {
  if (path.written.empty()) complain("path", "is needed: the text file");
}

}  // namespace headlab
