// A program that answers lines.
#include "core/errors.h"
#include "experiments/system/asked_program.h"
#include "tests/catch.h"

namespace headlab::test_asked_program {
namespace {

using Catch::Contains;

TEST_CASE("a program answers each line that it is asked") {
  AskedProgram echo({"/bin/sh", "-c", "while read -r line; do echo \"$WORD: $line\"; done"},
                    {{"WORD", "said"}});
  CHECK(echo.ask("one") == "said: one");
  const std::string long_line(100'000, 'x');
  CHECK(echo.ask(long_line) == "said: " + long_line);
  CHECK(echo.ask("") == "said: ");
}

TEST_CASE("two lines of one answer stay apart") {
  AskedProgram twice({"/bin/sh", "-c", "read -r a; printf '1\\n2\\n'; read -r b"}, {});
  CHECK(twice.ask("first") == "1");
  CHECK(twice.ask("second") == "2");
}

TEST_CASE("a program that ends, or cannot be started, is named") {
  AskedProgram silent({"/bin/sh", "-c", "read -r line; exit 3"}, {});
  CHECK_THROWS_WITH(silent.ask("anything"), Contains("/bin/sh: ended before it had answered"));
  CHECK_THROWS_WITH(silent.ask("again"), Contains("ended"));
  CHECK_THROWS_WITH(AskedProgram({"/no/such/program"}, {}), Contains("cannot be started"));
}

}  // namespace
}  // namespace headlab::test_asked_program
