// Text from files and names as a terminal may be given it.
#pragma once

#include <string>
#include <string_view>

namespace headlab {

// The text with visible codes in place of what a terminal would obey: control characters other than
// new line and tab, those of Unicode that turn the direction of a line, bytes that are not UTF-8
// (`\u001b`, `\u202e`, `\x9b`; the first two are JSON's own, so that JSON stays JSON).
std::string visible_text(std::string_view text);

// The same of what is one line: new line and tab, too (`\n`, `\t`).
std::string visible_line(std::string_view text);

}  // namespace headlab
