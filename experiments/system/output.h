// What a command prints: its result on stdout, which must not be lost in silence, and what it tells
// beside it on stderr, which may be.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace headlab {

// To stdout, with visible codes for what a terminal would obey (visible_text). RunError with the
// reason where that cannot be written to (a full disk, a reader that has gone).
void print_result(std::string_view text);

// What another program reads (JSON, YAML, generated text): byte for byte, but for a terminal, which
// it is shown to as print_result() does.
void print_data(std::string_view bytes);

// What was printed, by print_result() or otherwise, is on its way: RunError where a part of it is
// lost.
void flush_results();

// "headlab: ", the words, with visible codes for what a terminal would obey, and a new line to
// stderr. Errors are ignored: who closes stderr stops the telling, not the run.
void tell_line(std::string_view words);

template <typename... Arguments>
void tell(fmt::format_string<Arguments...> words, Arguments&&... arguments) {
  tell_line(fmt::format(words, std::forward<Arguments>(arguments)...));
}

}  // namespace headlab
