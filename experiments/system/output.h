// What a command prints: its result on stdout, which must not be lost in silence, and what it tells
// beside it on stderr, which may be.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <utility>

namespace headlab {

// To stdout. RunError with the reason where that cannot be written to (a full disk, a reader that
// has gone).
void print_result(std::string_view text);

// What was printed, by print_result() or otherwise, is on its way: RunError where a part of it is
// lost.
void flush_results();

// "headlab: ", the words and a new line to stderr. Errors are ignored: who closes stderr stops the
// telling, not the run.
template <typename... Arguments>
void tell(fmt::format_string<Arguments...> words, Arguments&&... arguments) {
  const auto line = "headlab: " + fmt::format(words, std::forward<Arguments>(arguments)...) + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace headlab
