// Tokenizers for the tests in Python (tests/test_tokenizers.py).
//
//   headlab_tokenizers write FOLDER    the tokenizer that stdin describes, as others read it
//   headlab_tokenizers encode FOLDER   texts, a line of JSON each, with the tokenizer of a folder
#include <iostream>

#include "core/errors.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "tests/framed_text.h"

namespace headlab {
namespace {

// Code points that begin before each byte, and how many there are.
std::vector<int64_t> code_points_before(std::string_view text) {
  std::vector<int64_t> before{0};
  for (char byte : text) before.push_back(before.back() + ((byte & 0xC0) != 0x80 ? 1 : 0));
  return before;
}

// What the tokenizers library says of a text: places count code points, of which a token that is
// part of one has all.
nlohmann::json described(const Tokenizer& tokenizer, const std::string& text) {
  const auto encoding = tokenizer.encode(text, "text");
  const auto before = code_points_before(text);
  auto places = nlohmann::json::array();
  for (const auto& [begin, end] : encoding.ranges) {
    const bool within = begin < end && (text[begin] & 0xC0) == 0x80;
    places.push_back({before[begin] - (within ? 1 : 0), before[end]});
  }
  return {{"ids", encoding.ids},
          {"offsets", places},
          {"words", encoding.words},
          {"framed", framed(tokenizer, encoding).tokens.ids},
          {"decoded", tokenizer.decode(encoding.ids)}};
}

int run(const std::string& verb, const std::filesystem::path& folder) {
  if (verb == "write") {
    write_tokenizer_folder(*read_tokenizer(nlohmann::ordered_json::parse(std::cin)), folder);
    return 0;
  }
  const auto found = read_tokenizer_folder(folder);
  if (!found.tokenizer) throw DataError(found.reason);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << described(*found.tokenizer, nlohmann::json::parse(line)) << '\n';
  return 0;
}

}  // namespace
}  // namespace headlab

int main(int count, char** arguments) try {
  return count == 3 ? headlab::run(arguments[1], arguments[2]) : 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
