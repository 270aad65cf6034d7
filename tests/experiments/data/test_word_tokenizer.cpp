// Words as tokens: the golden vocabularies, what a text becomes, and what is refused.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/errors.h"
#include "experiments/data/tokenizers/word_tokenizer.h"
#include "experiments/files/mapped_file.h"
#include "experiments/files/sha256.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_word_tokenizer {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const fs::path kProject = build::kSourceDir;

nlohmann::json golden() {
  return nlohmann::json::parse(MappedFile(kProject / "tests/golden/words.json").text());
}

void check_golden(const nlohmann::json& expected, const fs::path& path, const WordRules& rules) {
  const MappedFile file(path);
  const auto words = frequent_words({file.text()}, rules, expected["min_count"]);
  const auto tokenizer = word_tokenizer(rules, words);
  CHECK(tokenizer->vocabulary() == expected["size"]);
  const auto first = expected["first"].get<Texts>(), last = expected["last"].get<Texts>();
  CHECK(Texts(words.begin(), words.begin() + std::ssize(first)) == first);
  CHECK(Texts(words.end() - std::ssize(last), words.end()) == last);
  CHECK(sha256(fmt::format("{}", fmt::join(tokenizer->token_texts(), "\n"))) ==
        expected["sha256_newline_joined"].get<std::string>());
  const auto encoding = tokenizer->encode(file.text(), "t");
  CHECK(std::ssize(encoding.ids) == expected["tokens"]);
  CHECK(encoding.ranges.size() == encoding.ids.size());
  CHECK(encoding.words.size() == encoding.ids.size());
}

const WordRules kWikiText{
    .specials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, .unknown = 1, .line_end = "<eos>"};
const WordRules kPairs{.specials = {"<pad>", "<unk>", "<s>", "</s>"}, .unknown = 1};

}  // namespace

TEST_CASE("words of WikiText-2 have the reference's vocabulary", "[tokenizer][golden]") {
  check_golden(golden()["wikitext2_valid"], kProject / "configs/data/wikitext2/valid.txt",
               kWikiText);
}

TEST_CASE("words of Multi30k have the reference's vocabularies", "[tokenizer][golden]") {
  if (shared_folder().empty())
    return skip("no shared data; HEADLAB_SHARED names the folder they lie in");
  for (const std::string side : {"de", "en"})
    check_golden(golden()["multi30k_" + side],
                 shared_folder() / "data/multi30k" / ("train." + side), kPairs);
}

TEST_CASE("words are what spaces separate, unknown ones alike, ends of lines as the rules say",
          "[tokenizer]") {
  const std::string text = "b  a\tb a\n\n <unk> a\n";
  const auto words = frequent_words({text}, kWikiText, 1);
  CHECK(words == Texts{"<eos>", "a", "a\tb", "b"});
  const auto lines = word_tokenizer(kWikiText, words);
  const auto encoding = lines->encode(text + "c", "t");
  CHECK(encoding.ids == Ids{8, 7, 6, 5, 5, 1, 6, 5, 1});
  CHECK(encoding.words == Ids{0, 1, 2, -1, -1, 3, 4, -1, 5});
  CHECK(encoding.ranges[0] == TextRange{0, 1});
  CHECK(encoding.ranges[1] == TextRange{3, 6});
  CHECK(encoding.ranges[3] == TextRange{8, 9});
  CHECK(lines->decode({8, 7, 6, 5, 5, 1, 6, 5}) == "b a\tb a\n\n[UNK] a\n");

  const auto pairs = word_tokenizer(kPairs, frequent_words({text, "b b"}, kPairs, 2));
  CHECK(pairs->token_texts() == Texts{"<pad>", "<unk>", "<s>", "</s>", "b", "a"});
  CHECK(pairs->encode(text, "t").ids == Ids{4, 1, 5, 1, 5});
  CHECK(pairs->encode("</s> a", "t").ids == Ids{3, 5});
  CHECK(pairs->encode("", "t").ids.empty());
  CHECK(pairs->decode({5, 4, 1}) == "a b <unk>");
}

TEST_CASE("words that occur as often are in the order of their bytes", "[tokenizer]") {
  CHECK(frequent_words({"b \u00e9 Z a", "z"}, kPairs, 1) == Texts{"Z", "a", "b", "z", "\u00e9"});
}

TEST_CASE("separators and punctuation of words have their classes", "[tokenizer]") {
  const auto words = word_tokenizer(kWikiText, {"a", ".", ",", "[CLS"});
  CHECK(words->token_classes() == std::vector<uint8_t>{kWord, kWord, kCls, kSep, kWord, kWord,
                                                       kPunctuation, kPunctuation, kWord});
}

TEST_CASE("words are the same after they were written and read", "[tokenizer]") {
  for (const auto& rules : {kWikiText, kPairs}) {
    const auto words = word_tokenizer(rules, {"<eos>", "a", "\u00e9\"\\"});
    const auto again = read_tokenizer(nlohmann::ordered_json::parse(words->json().dump()));
    CHECK(again->json() == words->json());
    CHECK(again->token_texts() == words->token_texts());
    const std::string text = "a b \u00e9\"\\\n";
    CHECK(again->encode(text, "t").ids == words->encode(text, "t").ids);
  }
}

TEST_CASE("a vocabulary of words that is none is refused", "[tokenizer]") {
  CHECK(error_of<DataError>([] {
          word_tokenizer(kPairs, {"a", "b", "a"});
        }) == "the vocabulary of words has 'a' twice");
  CHECK(error_of<DataError>([] { word_tokenizer(kPairs, {"<s>"}); }) ==
        "the vocabulary of words has '<s>' twice");
  CHECK(error_of<DataError>([] { word_tokenizer({.specials = {"<unk>"}, .unknown = 1}, {"a"}); }) ==
        "a vocabulary of words needs a special for those that are unknown: 1 is none of 1 "
        "specials");
  CHECK_THAT(error_of<DataError>([] {
               read_tokenizer({{"kind", "words"}, {"words", {"a"}}});
             }),
             Catch::Matchers::StartsWith("no tokenizer: "));
  const auto pairs = word_tokenizer(kPairs, {"a"});
  CHECK(error_of<DataError>([&] { pairs->decode({5}); }) ==
        "token 5 is not in the vocabulary of 5");
}

}  // namespace headlab::test_word_tokenizer
