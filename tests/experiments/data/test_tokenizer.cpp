// Tokenizers: what text becomes, what tokens become, and what a run keeps of them.
#include "core/errors.h"
#include "experiments/data/data_description.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/char_tokenizer.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_tokenizer {
namespace {

using testing::error_of;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

// 1, 2, 3 and 4 bytes, spaces of 1 and 3.
const std::string kText = "a\u00e9 \u20ac\u3000\U0001f600\nz";

std::shared_ptr<const Tokenizer> chars_of(const std::string& text) {
  auto characters = decode_utf8(text, "t");
  std::sort(characters.begin(), characters.end());
  characters.erase(std::unique(characters.begin(), characters.end()), characters.end());
  return char_tokenizer(characters);
}

// The texts that the stream gives for tokens one by one, and its rest behind them.
Texts streamed(const Tokenizer& tokenizer, const Ids& ids) {
  DecodedStream stream(tokenizer, std::nullopt);
  Texts texts;
  for (int64_t id : ids) texts.push_back(stream.next(id));
  texts.push_back(stream.rest());
  return texts;
}

}  // namespace

TEST_CASE("a token's range is its bytes, its word what white space separates", "[tokenizer]") {
  const auto chars = chars_of(kText)->encode(kText, "t");
  CHECK(chars.ids == Ids{2, 4, 1, 5, 6, 7, 0, 3});
  using Ranges = std::vector<TextRange>;
  CHECK((chars.ranges ==
         Ranges{{0, 1}, {1, 3}, {3, 4}, {4, 7}, {7, 10}, {10, 14}, {14, 15}, {15, 16}}));
  CHECK(chars.words == Ids{0, 0, -1, 1, -1, 2, -1, 3});
  const auto bytes = byte_tokenizer()->encode("a\u00e9\t b", "t");
  CHECK(bytes.ids == Ids{97, 0xC3, 0xA9, 9, 32, 98});
  CHECK((bytes.ranges == Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}}));
  CHECK(bytes.words == Ids{0, 0, 0, -1, -1, 1});
  for (const auto& tokenizer : {chars_of(kText), byte_tokenizer()}) {
    const auto none = tokenizer->encode("", "t");
    CHECK((none.ids.empty() && none.ranges.empty() && none.words.empty()));
  }
}

TEST_CASE("text survives encoding and decoding", "[tokenizer]") {
  const auto chars = chars_of(kText);
  CHECK(chars->vocabulary() == 8);
  CHECK(chars->token_texts() ==
        Texts{"\n", " ", "a", "z", "\u00e9", "\u20ac", "\u3000", "\U0001f600"});
  CHECK(chars->decode(chars->encode(kText, "t").ids) == kText);
  const auto bytes = byte_tokenizer();
  const std::string any = "\xFF\x80 no UTF-8 " + std::string(1, '\0');
  CHECK(bytes->decode(bytes->encode(any, "t").ids) == any);
  CHECK(bytes->token_texts().at(10) == "\\x0a");
  CHECK(bytes->token_texts().at(65) == "A");
  CHECK(bytes->token_texts().at(255) == "\\xff");
}

TEST_CASE("a stream gives whole characters, as soon as they are whole, and every byte",
          "[tokenizer]") {
  const auto bytes = byte_tokenizer();
  const auto of = [&](const std::string& text) {
    return streamed(*bytes, bytes->encode(text, "t").ids);
  };
  CHECK(of("a\u20acb") == Texts{"a", "", "", "\u20ac", "b", ""});
  CHECK(of("\U0001f600") == Texts{"", "", "", "\U0001f600", ""});
  // What can be no character any more passes at once; what could still be one, at the end.
  CHECK(of("\xFF\x80!") == Texts{"\xFF", "\x80", "!", ""});
  CHECK(of("\xE2\x82 ") == Texts{"", "", "\xE2\x82 ", ""});
  CHECK(of("\xED\xA0") == Texts{"", "\xED\xA0", ""});  // a surrogate
  CHECK(of("a\xF0\x9F\x98") == Texts{"a", "", "", "", "\xF0\x9F\x98"});
  const auto chars = chars_of(kText);
  for (const auto& text : streamed(*chars, chars->encode(kText, "t").ids))
    CHECK(utf8_length(text, 0) == text.size());
}

// Words with a space between them: what a token adds depends on the one before.
class Spaced : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 2; }
  Encoding encode(std::string_view, const std::string&) const override { return {}; }
  std::string bytes(int64_t id, std::optional<int64_t> before) const override {
    return (before ? " " : "") + token_texts().at(id);
  }
  Texts token_texts() const override { return {"to", "be"}; }
  nlohmann::ordered_json json() const override { return {}; }
};

TEST_CASE("what a token adds may depend on the token before", "[tokenizer]") {
  const Spaced spaced;
  CHECK(spaced.decode({0, 1, 0}) == "to be to");
  CHECK(streamed(spaced, {0, 1}) == Texts{"to", " be", ""});
  DecodedStream behind(spaced, 1);
  CHECK(behind.next(0) == " to");
}

TEST_CASE("a tokenizer is the same after it was written and read", "[tokenizer]") {
  for (const auto& tokenizer : {chars_of(kText + std::string(1, '\0')), byte_tokenizer()}) {
    const auto written = tokenizer->json().dump();
    INFO(written);
    const auto again = read_tokenizer(nlohmann::ordered_json::parse(written));
    CHECK(again->json() == tokenizer->json());
    CHECK(again->vocabulary() == tokenizer->vocabulary());
    CHECK(again->token_texts() == tokenizer->token_texts());
    CHECK(again->token_classes() == tokenizer->token_classes());
    CHECK(again->encode(kText, "t").ids == tokenizer->encode(kText, "t").ids);
  }
}

TEST_CASE("a padded tokenizer is the same, and has tokens that no text is", "[tokenizer]") {
  const auto chars = chars_of("ab.");
  CHECK(padded_tokenizer(chars, 3) == chars);
  const auto padded = padded_tokenizer(chars, 5);
  CHECK(padded->vocabulary() == 5);
  CHECK(padded->encode("ab", "t").ids == chars->encode("ab", "t").ids);
  CHECK(padded->decode({1, 4, 2}) == "ab");
  CHECK(padded->bytes(3, std::nullopt).empty());
  CHECK(padded->token_texts() == Texts{".", "a", "b", "<3>", "<4>"});
  CHECK(padded->token_classes() == std::vector<uint8_t>{kPunctuation, kWord, kWord, kWord, kWord});
  const auto again = read_tokenizer(nlohmann::ordered_json::parse(padded->json().dump()));
  CHECK(again->json() == padded->json());
  CHECK(again->vocabulary() == 5);
  CHECK(error_of<DataError>([&] { padded_tokenizer(chars, int64_t{1} << 40); }) ==
        "the tokenizer has 3 tokens, the vocabulary 1099511627776: it is of another model");
  CHECK(error_of<DataError>([&] { padded->bytes(5, std::nullopt); }) ==
        "token 5 is not in the vocabulary of 5");
}

TEST_CASE("a text with a token behind the model's last is refused at its place", "[tokenizer]") {
  const auto cut = padded_tokenizer(chars_of("ab\n."), 3);
  CHECK(cut->vocabulary() == 3);
  CHECK(cut->token_texts() == Texts{"\n", ".", "a"});
  CHECK(cut->token_classes().size() == 3);
  CHECK(cut->encode("a.\na", "t").ids == std::vector<int64_t>{2, 1, 0, 2});
  CHECK(error_of<DataError>([&] { cut->encode("a\na.b", "t.txt"); }) ==
        "t.txt:2: 'b' is token 3, and the model's are 0 to 2");
  CHECK(cut->decode({2, 1}) == "a.");
  CHECK(error_of<DataError>([&] { cut->decode({3}); }) == "token 3 is not in the vocabulary of 3");
  const auto again = read_tokenizer(nlohmann::ordered_json::parse(cut->json().dump()));
  CHECK(again->json() == cut->json());
  CHECK(again->vocabulary() == 3);
}

TEST_CASE("a model with more rows than its tokenizer has tokens", "[tokenizer]") {
  DataDescription description{.shape = {.vocabulary = 5}};
  add_tokenizer(description, chars_of("ab."));
  CHECK(description.token_texts.size() == 5);
  CHECK(description.token_classes.size() == 5);
  const auto again = read_description(description_json(description));
  CHECK(again.token_texts == description.token_texts);
  CHECK(again.tokenizer->decode({1, 4}) == "a");
  description.shape.vocabulary = 2;
  add_tokenizer(description, chars_of("ab."));
  CHECK(description.token_texts == Texts{".", "a"});
  CHECK(description.token_classes.size() == 2);
}

TEST_CASE("what is no tokenizer is refused", "[tokenizer]") {
  const auto refusal = [](const char* json) {
    return error_of<DataError>([&] { read_tokenizer(nlohmann::ordered_json::parse(json)); });
  };
  CHECK(refusal(R"({"kind": "runes"})") ==
        "no kind of tokenizer is called 'runes' here; there are bpe, bytes, char, padded, "
        "wordpiece, words");
  for (const char* json :
       {"1", "null", "[]", "{}", R"({"kind": 1})", R"({"kind": "char"})",
        R"({"kind": "char", "characters": 1})",
        R"({"kind": "padded", "vocabulary": 1e300, "tokenizer": {"kind": "bytes"}})",
        R"({"kind": "words", "specials": [], "unknown": 1e300, "line_end": "",
                               "words": []})",
        R"({"kind": "wordpiece", "lower_case": true, "strip_accents": true,
                               "unknown": "a", "specials": [], "begin": 1e300, "tokens": ["a"]})"}) {
    INFO(json);
    CHECK_THAT(refusal(json), Catch::Matchers::StartsWith("no tokenizer: "));
  }
  for (const char* characters : {"", "ba", "aa"})
    CHECK(refusal(nlohmann::json{{"kind", "char"}, {"characters", characters}}.dump().c_str()) ==
          "a vocabulary of characters must have some, in ascending order");
}

TEST_CASE("text that is no tokens is named with its line, and a wrong id too", "[tokenizer]") {
  const auto ab = chars_of("ab\n");
  const auto unknown = [&](const std::string& text) {
    return error_of<DataError>([&] { ab->encode(text, "other.txt"); });
  };
  CHECK(unknown("a\nb\na\u00e9") ==
        "other.txt:3: '\u00e9' (U+00E9) is none of the 3 characters of the vocabulary; leave it "
        "out, or train on a text that has it");
  CHECK(unknown("\t").starts_with("other.txt:1: U+0009 is none of"));
  CHECK(unknown("a\xFF").starts_with("other.txt: byte 1 (0xFF) is not UTF-8"));
  for (int64_t id : {-1, 3})
    CHECK(error_of<DataError>([&] {
            ab->decode({0, id});
          }) == "token " + std::to_string(id) + " is not in the vocabulary of 3");
}

}  // namespace headlab::test_tokenizer
