// Files of images: what is read, and that nothing else is.
#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/formats/digits_file.h"
#include "experiments/data/formats/gzip.h"
#include "experiments/data/formats/idx.h"
#include "tests/catch.h"
#include "tests/images_testing.h"

namespace headlab::test_image_files {
namespace {

using namespace testing;

std::string idx_error(const std::string& bytes, int64_t rank = 3) {
  return error_of<DataError>([&] { parse_idx(bytes, rank, "f"); });
}

std::string digits_error(const std::string& text) {
  return error_of<DataError>([&] { parse_digits(text, "f"); });
}

const std::string kImages = idx_header({4, 2, 3}) + counting(24);

}  // namespace

TEST_CASE("an IDX file gives its sizes and values, packed or not", "[data]") {
  for (const auto& bytes : {kImages, gzip(kImages)}) {
    const auto array = parse_idx(bytes, 3, "f");
    CHECK(array.sizes == std::vector<int64_t>{4, 2, 3});
    CHECK(std::string(array.values.begin(), array.values.end()) == counting(24));
  }
  CHECK(parse_idx(idx_header({2}) + "ab", 1, "f").values == std::vector<uint8_t>{'a', 'b'});
  const auto large = counting(1'000'000);  // of many blocks
  CHECK(parse_idx(gzip(idx_header({1'000'000}) + large), 1, "f").values.size() == large.size());
}

TEST_CASE("what is no IDX file of bytes is refused with the reason", "[data]") {
  CHECK(idx_error("") == "f: is no IDX file of 3 sizes: its 0 bytes are less than a header of 16");
  CHECK(idx_error(kImages.substr(0, 15)) ==
        "f: is no IDX file of 3 sizes: its 15 bytes are less than a header of 16");
  CHECK(idx_error("PK" + kImages) ==
        "f: is no IDX file: it begins with the bytes 50 4b, not 00 00");
  CHECK(idx_error(idx_header({4, 2, 3}, 0x0D) + counting(96)) ==
        "f: holds values of IDX type 0x0d; only unsigned bytes, 0x08, are read");
  CHECK(idx_error(kImages, 1) ==
        "f: has 3 sizes where 1 are due; are images and labels exchanged?");
  CHECK(idx_error(idx_header({60}) + counting(60, 10)) ==
        "f: has 1 sizes where 3 are due; are images and labels exchanged?");
  CHECK(idx_error(idx_header({4, 0, 3})) == "f: is empty: one of its sizes is 0");
}

TEST_CASE("values that are fewer or more than the header announces are refused", "[data]") {
  const auto shorter = kImages.substr(0, kImages.size() - 1), longer = kImages + "x";
  for (const auto& bytes : {shorter, gzip(shorter)})
    CHECK(idx_error(bytes) ==
          "f: holds 23 bytes of values, but its header announces 24, of sizes 4x2x3; it is "
          "truncated");
  for (const auto& bytes : {longer, gzip(longer)})
    CHECK(idx_error(bytes) ==
          "f: holds more than the 24 bytes that its header announces, of sizes 4x2x3");
}

TEST_CASE("damaged and truncated gzip is refused", "[data]") {
  const auto packed = gzip(kImages);
  for (const size_t size : {size_t{2}, size_t{12}, packed.size() - 1})
    CHECK(idx_error(packed.substr(0, size)) == "f: the gzip ends too early; it is truncated");
  auto damaged = packed;
  damaged[packed.size() - 6] ^= 1;  // in the checksum
  CHECK(idx_error(damaged) == "f: the gzip is damaged: incorrect data check");
  damaged = packed;
  damaged[2] = 7;
  CHECK(idx_error(damaged) == "f: the gzip is damaged: unknown compression method");
  CHECK(idx_error(packed + "xyz") == "f: 3 bytes follow the end of the gzip");
}

TEST_CASE("no header makes the reader take memory that the file does not back", "[data]") {
  const auto many = idx_header({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}) + counting(100);
  for (const auto& bytes : {many, gzip(many)})
    CHECK(idx_error(bytes) ==
          "f: announces sizes 4294967295x4294967295..., more than any file holds");
  CHECK(idx_error(idx_header({60000, 4096, 4096}) + counting(100)) ==
        "f: holds 100 bytes of values, but its header announces 1006632960000, of sizes "
        "60000x4096x4096; it is truncated");
  CHECK(idx_error(gzip(idx_header({1000, 10, 10}) + counting(100))) ==
        "f: holds 100 bytes of values, but its header announces 100000, of sizes 1000x10x10; it is "
        "truncated");
  // A small gzip of much is left as soon as it is more than its header says, long before its end.
  std::string longer = idx_header({4, 2, 3});
  longer.resize(10'000'000);
  auto bomb = gzip(longer);
  REQUIRE(bomb.size() < 20'000);
  bomb.resize(bomb.size() / 2);
  CHECK(idx_error(bomb) ==
        "f: holds more than the 24 bytes that its header announces, of sizes 4x2x3");
}

TEST_CASE("a gzip unpacks to 48 MB and 24 times its size at most", "[data]") {
  const auto zeros = [](uint32_t images) {
    return gzip(idx_header({images, 28, 28}) + std::string(size_t{images} * 784, '\0'));
  };
  CHECK(parse_idx(zeros(60'000), 3, "f").values.size() == 47'040'000);
  const auto bomb = zeros(70'000);
  CHECK(idx_error(bomb) ==
        fmt::format("f: announces 54880000 bytes of values, of sizes 70000x28x28, and is a gzip of "
                    "{}, of which at most {} are unpacked; where that is right, unpack it with "
                    "gunzip",
                    bomb.size(), (48 << 20) + 24 * bomb.size()));
}

TEST_CASE("digits.csv is lines of 64 pixels and a label", "[data]") {
  std::string line;
  for (int n = 0; n < 64; ++n) line += std::to_string(n % 17) + ",";
  const auto digits = parse_digits(line + "9\n" + line + "0", "f");
  CHECK(digits.labels == std::vector<uint8_t>{9, 0});
  CHECK(digits.pixels.size() == 128);
  CHECK(digits.pixels[16 + 64] == 16);
  CHECK(digits_error(line + "9\n\n") == "f:2: has 1 numbers, not 64 pixels and a label");
  CHECK(digits_error(line + "1,9") == "f:1: has 66 numbers, not 64 pixels and a label");
  CHECK(digits_error(line + "10") == "f:1: number 65 is '10'; it must be 0 to 9");
  CHECK(digits_error(line + "") == "f:1: number 65 is ''; it must be 0 to 9");
  CHECK(digits_error("17" + line.substr(1) + "1") == "f:1: number 1 is '17'; it must be 0 to 16");
  CHECK(digits_error("-1" + line.substr(1) + "1") == "f:1: number 1 is '-1'; it must be 0 to 16");
}

}  // namespace headlab::test_image_files
