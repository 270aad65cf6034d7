// WordPiece: the golden texts, pairs and words; what is refused.
#include "core/errors.h"
#include "experiments/data/tokenizers/wordpiece_tokenizer.h"
#include "experiments/files/mapped_file.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/framed_text.h"
#include "tests/tokenizer_testing.h"

namespace headlab::test_wordpiece {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden";

nlohmann::json golden() {
  return nlohmann::json::parse(MappedFile(kGolden / "wordpiece.json").text());
}

WordPieceModel golden_model() {
  return read_wordpiece(MappedFile(kGolden / "wordpiece/vocab.txt").text(), "vocab.txt");
}

WordPieceModel small_model() {
  return read_wordpiece("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nA\nB\n\u00e9\ni\u0307\n.\n",
                        "v");
}

Texts tokens_of(const WordPieceModel& model, const std::string& text) {
  const auto tokenizer = wordpiece_tokenizer(model);
  return texts_of(*tokenizer, tokenizer->encode(text, "t").ids);
}

}  // namespace

TEST_CASE("texts have the pieces, ids and places that the tokenizers library gives them",
          "[tokenizer][wordpiece][golden]") {
  const auto tokenizer = wordpiece_tokenizer(golden_model());
  CHECK(tokenizer->vocabulary() == 30522);
  const auto cases = golden()["cases"];
  CHECK(cases.size() == 48);
  for (const auto& sample : cases) {
    const auto text = sample["text"].get<std::string>();
    INFO(text);
    const auto encoding = framed(*tokenizer, tokenizer->encode(text, "t")).tokens;
    CHECK(encoding.ids == sample["ids"].get<Ids>());
    CHECK(texts_of(*tokenizer, encoding.ids) == sample["tokens"].get<Texts>());
    CHECK(code_points_of(encoding.ranges, text) ==
          sample["offsets"].get<std::vector<std::pair<int64_t, int64_t>>>());
  }
}

TEST_CASE("two texts are framed as the tokenizers library frames them",
          "[tokenizer][wordpiece][golden]") {
  const auto tokenizer = wordpiece_tokenizer(golden_model());
  const auto pairs = golden()["pairs"];
  CHECK(pairs.size() == 3);
  for (const auto& sample : pairs) {
    const auto pair = framed(*tokenizer, tokenizer->encode(sample["first"].get<std::string>(), "t"),
                             tokenizer->encode(sample["second"].get<std::string>(), "t"));
    CHECK(pair.tokens.ids == sample["ids"].get<Ids>());
    CHECK(texts_of(*tokenizer, pair.tokens.ids) == sample["tokens"].get<Texts>());
    CHECK(pair.types == sample["type_ids"].get<Ids>());
    CHECK(pair.tokens.ranges.size() == pair.types.size());
    CHECK(pair.tokens.words.size() == pair.types.size());
  }
}

TEST_CASE("words of WordPiece are numbered, marks and specials too", "[tokenizer][wordpiece]") {
  const auto tokenizer = wordpiece_tokenizer(golden_model());
  const auto encoding = tokenizer->encode("x[MASK]y, don't unaffable", "t");
  CHECK(texts_of(*tokenizer, encoding.ids) ==
        Texts{"x", "[MASK]", "y", ",", "don", "'", "t", "una", "##ffa", "##ble"});
  CHECK(encoding.words == Ids{0, 1, 2, 3, 4, 5, 6, 7, 7, 7});
}

TEST_CASE("a cased model keeps case and accents", "[tokenizer][wordpiece]") {
  auto model = small_model();
  CHECK(tokens_of(model, "AB \u00c9") == Texts{"a", "##b", "[UNK]"});
  model.strip_accents = false;
  CHECK(tokens_of(model, "\u00c9 \u0130 Ab") == Texts{"\u00e9", "i\u0307", "a", "##b"});
  model.lower_case = false;
  CHECK(tokens_of(model, "\u00e9 A Ab AB") == Texts{"\u00e9", "A", "A", "##b", "[UNK]"});
}

TEST_CASE("pieces are decoded with spaces between words", "[tokenizer][wordpiece]") {
  const auto tokenizer = wordpiece_tokenizer(golden_model());
  const auto decoded = [&](const std::string& text) {
    return tokenizer->decode(tokenizer->encode(text, "t").ids);
  };
  // As the library's decoder has it, clean-up included.
  CHECK(decoded("don't un-affable, 3.14 'x' na\u00efve!") ==
        "don ' t un - affable, 3. 14 ' x ' naive!");
  CHECK(tokenizer->bytes(7025, std::nullopt) == tokenizer->token_texts()[7025]);
}

TEST_CASE("specials of WordPiece are known, and what class they are", "[tokenizer][wordpiece]") {
  const auto tokenizer = wordpiece_tokenizer(small_model());
  CHECK(tokenizer->specials() == Ids{0, 1, 2, 3, 4});
  CHECK(tokenizer->frame().begin == 2);
  CHECK(tokenizer->frame().end == 3);
  CHECK(tokenizer->token_classes() == std::vector<uint8_t>{kWord, kWord, kCls, kSep, kWord, kWord,
                                                           kWord, kWord, kWord, kWord, kWord,
                                                           kPunctuation});
}

TEST_CASE("WordPiece is the same after it was written and read", "[tokenizer][wordpiece]") {
  auto model = small_model();
  model.lower_case = false;
  for (bool strip : {false, true}) {
    model.strip_accents = strip;
    const auto tokenizer = wordpiece_tokenizer(model);
    const auto again = read_tokenizer(nlohmann::ordered_json::parse(tokenizer->json().dump()));
    CHECK(again->json() == tokenizer->json());
    CHECK(again->frame().end == 3);
    const std::string text = "A ab\u00e9 \u00e9 [MASK]";
    CHECK(again->encode(text, "t").ids == tokenizer->encode(text, "t").ids);
  }
}

TEST_CASE("what is no WordPiece is refused", "[tokenizer][wordpiece]") {
  const auto refusal = [](const std::function<void(WordPieceModel&)>& spoil) {
    auto model = small_model();
    spoil(model);
    return error_of<DataError>([&] { wordpiece_tokenizer(model); });
  };
  CHECK(refusal([](WordPieceModel&) {}) == "no error");
  CHECK(refusal([](WordPieceModel& m) { m.tokens.emplace_back("a"); }) ==
        "the vocabulary of WordPiece has 'a' twice");
  CHECK(refusal([](WordPieceModel& m) { m.unknown = "<unk>"; }) ==
        "the vocabulary of WordPiece has no '<unk>', for unknown words");
  CHECK(refusal([](WordPieceModel& m) { m.specials = {"<s>"}; }) ==
        "the vocabulary of WordPiece has no '<s>', as a special");
  CHECK(refusal([](WordPieceModel& m) { m.frame.end = 12; }) ==
        "token 12 is not in the vocabulary of 12");
  CHECK(error_of<DataError>([] {
          read_wordpiece("a\n\xFF\n", "v");
        }).starts_with("v: byte 2 (0xFF) is not UTF-8"));
  CHECK(error_of<DataError>([] {
          wordpiece_tokenizer(small_model())->encode("a [MASK] \xFF", "t");
        }).starts_with("t: byte 9 (0xFF) is not UTF-8"));
}

}  // namespace headlab::test_wordpiece
