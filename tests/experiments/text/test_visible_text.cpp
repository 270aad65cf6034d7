// What a terminal would obey is shown instead.
#include "experiments/text/visible_text.h"
#include "tests/catch.h"

namespace headlab::test_visible_text {
namespace {

TEST_CASE("control characters of a text are shown as codes, those of Unicode too") {
  CHECK(visible_text("plain, \xc3\xbc\xe2\x82\xac\xf0\x9f\x99\x82\n\tlines") ==
        "plain, \xc3\xbc\xe2\x82\xac\xf0\x9f\x99\x82\n\tlines");
  CHECK(visible_text("\x1b]0;a\x07\x1b[2J\r\x7f") == "\\u001b]0;a\\u0007\\u001b[2J\\u000d\\u007f");
  CHECK(visible_text("\xc2\x9b\x33m") == "\\u009b3m");     // CSI of one character
  CHECK(visible_text("\x9b\x33m\xff") == "\\x9b3m\\xff");  // and of one byte
  CHECK(visible_text("a\xe2\x80\xae"
                     "b\xe2\x81\xa6") == "a\\u202eb\\u2066");  // right to left
  CHECK(visible_text(std::string("\0", 1)) == "\\u0000");
  CHECK(visible_line("a\nb\tc") == "a\\nb\\tc");
}

}  // namespace
}  // namespace headlab::test_visible_text
