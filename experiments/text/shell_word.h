// Texts as words of a shell, for commands that are printed or written into scripts.
#pragma once

#include <string>

namespace headlab {

// One word of a POSIX shell that means exactly `text`: as it is where every shell takes it so, else
// in quotes. Control characters stand as $'\n', which bash and zsh read.
std::string shell_word(const std::string& text);

// Whether a text has a control character: a line feed, a tab, an escape, ... (U+0000 to U+001F,
// U+007F to U+009F).
bool has_control(const std::string& text);

}  // namespace headlab
