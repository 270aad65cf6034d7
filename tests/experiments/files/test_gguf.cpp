// The GGUF reader: what it reads, and files that lie.
#include <cstring>

#include "core/errors.h"
#include "experiments/files/gguf.h"
#include "tests/catch.h"
#include "tests/gguf_testing.h"
#include "tests/scratch.h"

namespace headlab::test_gguf {
namespace {

using Catch::Contains;

using Bytes = testing::GgufBytes;

class Files {
 public:
  GgufFile open(const std::string& bytes) const {
    write_bytes(scratch_ / "a.gguf", bytes);
    return GgufFile(scratch_ / "a.gguf");
  }
  std::string complaint(const std::string& bytes) const {
    try {
      open(bytes);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

 private:
  Scratch scratch_;
};

Bytes two_tensors() {
  Bytes file;
  file.begin(2, 4);
  file.text("general.architecture").number<uint32_t>(8).text("llama");
  file.text("a.count").number<uint32_t>(4).number<uint32_t>(30);
  file.text("a.tokens")
      .number<uint32_t>(9)
      .number<uint32_t>(8)
      .number<uint64_t>(2)
      .text("x")
      .text("yz");
  file.text("a.kinds").number<uint32_t>(9).number<uint32_t>(5).number<uint64_t>(2);
  file.number<int32_t>(1).number<int32_t>(-3);
  file.tensor("plain", {3, 2}, 0, 0).tensor("small", {32}, 3, 32);
  file.align();
  for (int i = 0; i < 6; ++i) file.number(static_cast<float>(i));
  file.align();
  file.number<uint16_t>(0x3800).number<uint16_t>(0xC000);  // 0.5 and -2
  for (int i = 0; i < 16; ++i) file.number(static_cast<uint8_t>(i | (15 - i) << 4));
  return file;
}

TEST_CASE("settings, arrays and tensors of a GGUF file are read") {
  const Files files;
  const auto file = files.open(two_tensors().all());
  const auto& settings = file.metadata();
  CHECK(std::get<std::string_view>(settings.at("general.architecture")) == "llama");
  CHECK(std::get<int64_t>(settings.at("a.count")) == 30);
  CHECK(std::get<std::vector<std::string_view>>(settings.at("a.tokens")) ==
        std::vector<std::string_view>{"x", "yz"});
  const auto& kinds = std::get<GgufNumbers>(settings.at("a.kinds"));
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[1] == -3);

  const auto& plain = file.tensors().at("plain");
  CHECK(plain.shape == std::vector<int64_t>{2, 3});
  float numbers[32];
  GgufFile::numbers(plain, 1, 4, numbers);
  CHECK(std::vector<float>(numbers, numbers + 4) == std::vector<float>{1, 2, 3, 4});
  GgufFile::numbers(file.tensors().at("small"), 0, 32, numbers);
  for (int i = 0; i < 16; ++i) {  // w = s*q + m: low nibbles, then high ones
    CHECK(numbers[i] == 0.5F * static_cast<float>(i) - 2);
    CHECK(numbers[i + 16] == 0.5F * static_cast<float>(15 - i) - 2);
  }
}

TEST_CASE("halves of every bit pattern and eight-bit blocks are the numbers they mean") {
  Bytes file;
  file.begin(2, 0).tensor("h", {5}, 1, 0).tensor("q", {32}, 8, 32).align();
  for (const uint16_t bits : {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8000}) file.number(bits);
  file.align().number<uint16_t>(0x3400);  // 0.25
  for (int i = 0; i < 32; ++i) file.number(static_cast<int8_t>(i * 8 - 128));
  const Files files;
  const auto read = files.open(file.all());
  float numbers[32];
  GgufFile::numbers(read.tensors().at("h"), 0, 5, numbers);
  CHECK(std::vector<float>(numbers, numbers + 5) ==
        std::vector<float>{1, -2, 0x1p-24F, 65504, -0.0F});
  GgufFile::numbers(read.tensors().at("q"), 0, 32, numbers);
  CHECK(numbers[0] == -32);
  CHECK(numbers[31] == 30);
}

// The fuzzers found it: copying no bytes to nowhere is undefined.
TEST_CASE("an empty tensor of a GGUF file has no numbers, and needs no place for them") {
  const Files files;
  Bytes bytes;
  bytes.begin(1, 0).tensor("empty", {0}, 0, 0).align();
  const auto file = files.open(bytes.all());
  const auto& tensor = file.tensors().at("empty");
  CHECK(tensor.numbers == 0);
  GgufFile::numbers(tensor, 0, 0, nullptr);
}

TEST_CASE("a GGUF file that lies is refused with what is wrong") {
  const Files files;
  const auto whole = two_tensors().all();
  CHECK_THAT(files.complaint("GGML"), Contains("no GGUF"));
  CHECK_THAT(files.complaint(""), Contains("no GGUF"));
  CHECK_THAT(files.complaint(Bytes().raw("GGUF").number<uint32_t>(2).all()), Contains("version 2"));
  CHECK_THAT(files.complaint(Bytes().begin(uint64_t{1} << 60, 0).all()), Contains("says it has"));
  CHECK_THAT(files.complaint(Bytes().begin(0, 1).number(~uint64_t{0}).raw("abcdefghijklm").all()),
             Contains("cut short"));
  const auto pair = [](uint32_t type) { return Bytes().begin(0, 1).text("k").number(type); };
  CHECK_THAT(files.complaint(pair(13).number<uint64_t>(0).all()), Contains("k has type 13"));
  CHECK_THAT(files.complaint(pair(9).number<uint32_t>(6).number(~uint64_t{0} / 4).all()),
             Contains("says it has"));
  CHECK_THAT(files.complaint(pair(9).number<uint32_t>(9).number<uint64_t>(1).all()),
             Contains("arrays in arrays"));
  const auto tensor = [&](const std::vector<uint64_t>& dimensions, uint32_t type,
                          uint64_t offset = 0) {
    return files.complaint(
        Bytes().begin(1, 0).tensor("t", dimensions, type, offset).align().raw("data").all());
  };
  CHECK_THAT(tensor({1}, 12), Contains("t is kept in type 12"));
  CHECK_THAT(tensor({1, 1, 1, 1, 1}, 0), Contains("5 dimensions"));
  CHECK_THAT(tensor({uint64_t{1} << 62, 4}, 0), Contains("more numbers"));
  CHECK_THAT(tensor({uint64_t{1} << 61}, 0),
             Contains("more numbers") || Contains("behind the end"));
  CHECK_THAT(tensor({33}, 3), Contains("multiple of 32"));
  CHECK_THAT(tensor({2}, 0), Contains("t ends behind the end"));
  CHECK_THAT(tensor({1}, 0, ~uint64_t{0} - 2), Contains("t has offset 18446744073709551613"));
  CHECK(tensor({1}, 0).empty());
  CHECK_THAT(files.complaint(
                 Bytes().begin(2, 0).tensor("t", {0}, 0, 0).tensor("t", {0}, 0, 0).align().all()),
             Contains("t is there twice"));
}

TEST_CASE("tensors of a GGUF file lie behind each other, each at a multiple of the alignment") {
  const Files files;
  const auto said = [&](uint64_t second, uint64_t third, uint32_t alignment = 32) {
    Bytes bytes;
    bytes.begin(3, 1).text("general.alignment").number<uint32_t>(4).number(alignment);
    bytes.tensor("a", {3}, 0, 0).tensor("b", {2, 5}, 0, second).tensor("c", {1}, 0, third);
    return files.complaint(bytes.align(alignment).raw(std::string(256, '\0')).all());
  };
  CHECK(said(32, 96).empty());  // 12 bytes, then 40
  CHECK(said(64, 128, 64).empty());
  CHECK(said(16, 64, 16).empty());
  CHECK_THAT(said(0, 96),
             Contains("b has offset 0, and 32 is the next one behind"));  // they overlap
  CHECK_THAT(said(16, 96), Contains("b has offset 16, and 32 is"));       // not aligned
  CHECK_THAT(said(64, 128), Contains("b has offset 64, and 32 is"));      // a gap
  CHECK_THAT(said(96, 32), Contains("b has offset 96, and 32 is"));       // another order
  CHECK_THAT(said(32, 64), Contains("c has offset 64, and 96 is"));       // the third overlaps
  CHECK_THAT(said(32, 96, 64), Contains("b has offset 32, and 64 is"));
  Bytes bytes;
  bytes.begin(1, 0).tensor("a", {3}, 0, 32).align().raw(std::string(64, '\0'));
  CHECK_THAT(files.complaint(bytes.all()), Contains("a has offset 32, and 0 is"));
}

TEST_CASE("a GGUF file cut short anywhere is refused, and nothing beyond it is read") {
  const Files files;
  const auto whole = two_tensors().all();
  for (size_t n = 0; n < whole.size(); ++n) {
    INFO(n);
    CHECK_FALSE(files.complaint(whole.substr(0, n)).empty());
  }
  for (size_t n = 0; n < whole.size();
       ++n) {  // any byte changed: an error or another file, no crash
    auto changed = whole;
    changed[n] = static_cast<char>(~changed[n]);
    try {
      const auto file = files.open(changed);
      for (const auto& [name, tensor] : file.tensors()) {
        std::vector<float> numbers(static_cast<size_t>(tensor.numbers));
        GgufFile::numbers(tensor, 0, tensor.numbers, numbers.data());
      }
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace headlab::test_gguf
