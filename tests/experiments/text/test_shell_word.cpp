// Texts as words of a shell: what bash reads out of one is the text.
#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "experiments/text/shell_word.h"
#include "tests/catch.h"

namespace headlab::test_shell_word {
namespace {

// What bash prints of the word, as an argument.
std::string read_by_bash(const std::string& word) {
  const auto line = "printf '%s.' " + word;
  const auto command =
      "exec bash -c " + shell_word(line);  // of a word by sh: no control characters
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> bytes{};
  const auto size = std::fread(bytes.data(), 1, bytes.size(), pipe);
  REQUIRE(::pclose(pipe) == 0);
  return std::string(bytes.data(), size);
}

}  // namespace

TEST_CASE("what needs no quotes has none, an empty text has", "[shell]") {
  for (const char* plain : {"runs/a", "./a.b", "-x", "a=b:c,d+e@f", "Größe"})
    CHECK(shell_word(plain) == plain);
  CHECK(shell_word("") == "''");
  CHECK(shell_word("a b") == "'a b'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("~") == "'~'");
  CHECK(shell_word("a\nb\tc\033") == "$'a\\nb\\tc\\033'");
}

TEST_CASE("bash reads every text out of its word", "[shell]") {
  std::string all;
  for (int c = 1; c < 256; ++c) {
    const std::string one(1, static_cast<char>(c));
    all += one;
    if (c < 0x80) CHECK(read_by_bash(shell_word(one)) == one + ".");
  }
  for (const std::string text :
       {all.c_str(), "$(touch x)", "`touch x`", "a;b&c|d<e>f", "*?[a]{b,c}", "!!", "#",
        "\n$(touch x)\n", "\u0085\\'", "'\\\n\"", "a\\", "\x1b]0;x\a"})
    CHECK(read_by_bash(shell_word(text)) == text + ".");
}

TEST_CASE("control characters are those of ASCII and of Latin-1", "[shell]") {
  for (const char* with : {"\n", "a\r", "\tb", "\x1b", "\x7f", "a\u0080", "\u009fb"})
    CHECK(has_control(with));
  CHECK(has_control(std::string(1, '\0')));
  for (const char* without : {"", "a b", "\u00a0", "ü", "\xC2", "漢字", "'\"$`\\"})
    CHECK_FALSE(has_control(without));
}

}  // namespace headlab::test_shell_word
