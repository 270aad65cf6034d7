// Texts of files: one rule for the ends of lines, marks of byte order, files that are no text.
#include "core/errors.h"
#include "experiments/data/formats/plain_text.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_plain_text {
namespace {

using namespace std::string_literals;
using Catch::Matchers::Contains;
using Lines = std::vector<std::string>;

Lines lines(std::string_view text) {
  Lines all;
  each_line(text, [&](std::string_view line, int64_t number) {
    all.emplace_back(line);
    CHECK(number == std::ssize(all));
  });
  return all;
}

std::string refusal(const std::string& bytes, const std::string& name = "f.txt") {
  try {
    plain_text(bytes, name);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a line ends in LF or CRLF, and in nothing else", "[text]") {
  CHECK(lines("").empty());
  CHECK(lines("a") == Lines{"a"});
  CHECK(lines("a\n") == Lines{"a"});
  CHECK(lines("a\r\n") == Lines{"a"});
  CHECK(lines("a\nb") == Lines{"a", "b"});
  CHECK(lines("a\r\n\r\nb\r\n") == Lines{"a", "", "b"});
  CHECK(lines("\n\r\n\n") == Lines{"", "", ""});
  CHECK(lines("a\rb\n") == Lines{"a\rb"});
  CHECK(lines("a\r\r\n") == Lines{"a\r"});
  CHECK(lines("a\r") == Lines{"a\r"});
  CHECK(lines("a\v\f\u0085\u2028\u2029b") == Lines{"a\v\f\u0085\u2028\u2029b"});
  const std::string_view text = "a\r\n\n\r";
  const std::vector<size_t> lengths{0, 2, 1, 1, 0, 0, 0};
  for (size_t at = 0; at < lengths.size(); ++at) CHECK(line_end_at(text, at) == lengths[at]);
}

TEST_CASE("a byte order mark is no part of a text, and stands at its beginning alone", "[text]") {
  CHECK(plain_text("\xEF\xBB\xBF"s + "a\r\n", "f") == "a\r\n");
  CHECK(plain_text("\xEF\xBB\xBF", "f").empty());
  CHECK(plain_text("a\xEF\xBB\xBF", "f") == "a\xEF\xBB\xBF");
  CHECK(plain_text("", "f").empty());
}

TEST_CASE("bytes of other encodings and of other programs are no text", "[text]") {
  const std::vector<std::pair<std::string, std::string>> files{
      {"\xFF\xFE"s + "h\0i\0"s, "UTF-16"},
      {"\xFE\xFF\0h\0i"s, "UTF-16"},
      {"h\0i\0 \0y\0o\0u\0"s, "iconv -f UTF-16LE"},
      {"\0h\0i\0 \0y\0o\0u"s, "iconv -f UTF-16BE"},
      {"\xFF\xFE\0\0h\0\0\0"s, "UTF-32"},
      {"\0\0\xFE\xFF\0\0\0h"s, "UTF-32"},
      {"\x1F\x8B\x08\0"s, "gunzip -c f.txt > text.txt"},
      {"PK\x03\x04\x14\0"s, "unzip -p f.txt"},
      {"BZh91AY&SY\x94"s, "bunzip2"},
      {"\xFD"s + "7zXZ\0\0"s, "xz -dc"},
      {"\x28\xB5\x2F\xFD\x04"s, "zstd -dc"},
      {"PAR1\x15\x04\x15\0"s, "a Parquet file, not a text in UTF-8; python3 -c"},
      {"ARROW1\0\0"s, "Arrow"},
      {"\x89HDF\r\n\x1A\n\0"s, "HDF5"},
      {"\x93NUMPY\x01\0"s, "NumPy"},
      {"GGUF\x03\0\0\0"s, "GGUF"},
      {"%PDF-1.4\nplain"s, "pdftotext f.txt"},
      {"\x02\0\0\0\0\0\0\0{\"a\""s, "safetensors"},
      {"SQLite format 3\0"s, "SQLite"},
      {"\x80\x04\x95\0"s, "pickle"},
      {std::string(257, 'a') + "ustar\0"s, "tar -xOf"},
  };
  for (const auto& [bytes, word] : files) {
    INFO(word);
    CHECK_THAT(refusal(bytes), Catch::Matchers::StartsWith("f.txt: is ") && Contains(word));
  }
  CHECK_THAT(refusal("a text\nwith one \0 in it"s),
             Contains("f.txt: byte 16 is NUL") && Contains("tr -d"));
  CHECK_THAT(refusal("\xEF\xBB\xBF"s + "a\0b"s), Contains("byte 4 is NUL"));
  CHECK_THAT(refusal("\x1F\x8B"s, "my texts/a.gz"),
             Contains("; gunzip -c 'my texts/a.gz' > text.txt"));
  CHECK_THAT(refusal("PAR1\x15\0"s, "my texts/a"), Contains("read_parquet('my texts/a')"));
  CHECK_THAT(refusal("\x1F\x8B\x08"s, "it's.gz"), Contains("; gunzip -c 'it'\\''s.gz' > text.txt"));
  for (const char* name : {"$(touch x)", "a'b", "a`b`", "a\"b", "a\\b", "a\nb"})
    CHECK_THAT(refusal("PAR1\x15\0"s, name), Contains("read_parquet('FILE')"));
  for (const std::string text :
       {"GGUF is a format\n", "ORC: to battle!\n", "PAR1 and PAR2\n", "ARROW1 flies\n", "GIF8\n",
        "PK stands for Phil Katz\n", "caf\u00e9\n", "\x1B[1mbold\x1B[0m\n", "BZh\n"})
    CHECK(refusal(text) == "no error");
}

TEST_CASE("a file of text is opened without its mark", "[text]") {
  const Scratch folder;
  write_bytes(folder / "t.txt", "\xEF\xBB\xBFone\r\ntwo\r\n");
  CHECK(TextFile(folder / "t.txt").text() == "one\r\ntwo\r\n");
  write_bytes(folder / "t.txt", "\x1F\x8B\x08");
  CHECK_THROWS_AS(TextFile(folder / "t.txt"), DataError);
  CHECK_THROWS_AS(TextFile(folder / "none.txt"), DataError);
}

}  // namespace headlab::test_plain_text
