// Byte-level BPE: the golden texts and merges, and what is refused.
#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/tokenizers/bpe_pieces.h"
#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/files/mapped_file.h"
#include "experiments/files/sha256.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/tokenizer_testing.h"

namespace headlab::test_bpe {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden/bpe";
const fs::path kShakespeare = fs::path(build::kSourceDir) / "configs/data/tinyshakespeare.txt";
const Texts kEnd{"<|endoftext|>"};

BpeModel golden_model(const Texts& specials = {}) {
  return read_bpe(kGolden / "vocab.json", kGolden / "merges.txt", specials);
}

Texts pieces_of(const std::string& text, const Texts& specials = {},
                BpePattern pattern = BpePattern::kGpt2) {
  Texts pieces;
  for_each_bpe_piece(text, "t", specials, pattern,
                     [&](const BpePiece& piece) { pieces.emplace_back(piece.bytes); });
  return pieces;
}

// 256 bytes and a few merges: ab, abc, " d".
BpeModel small_model() {
  BpeModel model{.tokens = {"<s>"}, .merges = {{"a", "b"}, {"ab", "c"}}, .specials = {"<s>"}};
  for (const auto& symbol : bpe_symbols()) model.tokens.push_back(symbol);
  model.tokens.insert(model.tokens.end(), {"ab", "abc"});
  return model;
}

}  // namespace

TEST_CASE("texts have the ids and symbols that the tokenizers library gives them",
          "[tokenizer][golden]") {
  const auto expected = nlohmann::json::parse(MappedFile(kGolden / "expected.json").text());
  for (const char* part : {"cases", "special"}) {
    const auto model = golden_model(part == std::string("cases") ? Texts{} : kEnd);
    const auto tokenizer = bpe_tokenizer(model);
    for (const auto& sample : expected[part]) {
      const auto text = sample["text"].get<std::string>();
      INFO(text);
      const auto encoding = tokenizer->encode(text, "t");
      CHECK(encoding.ids == sample["ids"].get<Ids>());
      Texts symbols;
      for (int64_t id : encoding.ids) symbols.push_back(model.tokens[id]);
      CHECK(symbols == sample["tokens"].get<Texts>());
      CHECK(tokenizer->decode(encoding.ids) == text);
      size_t at = 0;
      for (const auto& range : encoding.ranges) {
        CHECK(range.begin == at);
        at = range.end;
      }
      CHECK(at == text.size());
    }
  }
}

TEST_CASE("a long text has the ids that the tokenizers library gives it", "[tokenizer][golden]") {
  const auto expected = nlohmann::json::parse(MappedFile(kGolden / "expected.json").text())["long"];
  const MappedFile file(kShakespeare);
  const auto ids = bpe_tokenizer(golden_model())->encode(file.text().substr(1003854), "t").ids;
  CHECK(std::ssize(ids) == expected["count"]);
  const auto first = expected["first"].get<Ids>();
  REQUIRE(ids.size() > first.size());
  CHECK(Ids(ids.begin(), ids.begin() + std::ssize(first)) == first);
  const std::vector<uint16_t> narrow(ids.begin(), ids.end());
  CHECK(sha256({reinterpret_cast<const char*>(narrow.data()), 2 * narrow.size()}) ==
        expected["sha256_uint16_le"].get<std::string>());
}

TEST_CASE("training finds the merges and ids of the tokenizers library", "[tokenizer][golden]") {
  const MappedFile file(kShakespeare);
  const auto golden = golden_model(kEnd);
  const auto trained = train_bpe({file.text().substr(0, 200000)}, kEnd, 757);
  CHECK(trained.merges.size() == 500);
  CHECK(trained.merges == golden.merges);
  CHECK(trained.tokens == golden.tokens);
}

TEST_CASE("training joins what is most frequent, ties by ids, until no pair occurs twice",
          "[tokenizer]") {
  using Merges = std::vector<std::pair<std::string, std::string>>;
  CHECK(train_bpe({"aaab aaab", "cb cb"}, {}, 1000).merges ==
        Merges{{"a", "a"}, {"a", "b"}, {"c", "b"}, {"aa", "ab"}});
  const auto none = train_bpe({}, {"<s>", "</s>"}, 1000);
  CHECK(none.merges.empty());
  CHECK(none.tokens.size() == 258);
  CHECK(none.tokens[1] == "</s>");
  CHECK(none.tokens[2] == "!");
  CHECK(none.tokens[257] == "\u0143");
  CHECK(train_bpe({"ab ab ab<s>ab<s>"}, {"<s>"}, 258).merges == Merges{{"a", "b"}});
  CHECK(train_bpe({"<s><s><s>"}, {"<s>"}, 1000).merges.empty());
  // Counted anew after every merge, training gives the same.
  const std::string text = "she sells sea shells by the sea shore, the shells she sells are shells";
  const auto at_once = train_bpe({text}, {}, 1000);
  for (size_t size : {257, 260, 268}) {
    const auto part = train_bpe({text}, {}, static_cast<int64_t>(size));
    CHECK(part.tokens ==
          Texts(at_once.tokens.begin(), at_once.tokens.begin() + std::ssize(part.tokens)));
    CHECK(part.tokens.size() == size);
  }
}

TEST_CASE("pieces are those of GPT-2's pattern", "[tokenizer]") {
  CHECK(pieces_of("I'll say  \n it's 'so 3rd'") ==
        Texts{"I", "'ll", " say", "  \n", " it", "'s", " '", "so", " 3", "rd", "'"});
  CHECK(pieces_of("\u00a0x\t\ty ") == Texts{"\u00a0", "x", "\t", "\t", "y", " "});
  CHECK(pieces_of("  ") == Texts{"  "});
  CHECK(pieces_of("a<s><s>> <s", {"<s", "<s>"}) == Texts{"a", "<s>", "<s>", ">", " ", "<s"});
  CHECK(error_of<DataError>([] {
          pieces_of("ab<s>c\xFF", {"<s>"});
        }).starts_with("t: byte 6 (0xFF) is not UTF-8"));
}

TEST_CASE("pieces of other patterns", "[tokenizer]") {
  CHECK(pieces_of("say 1984 3rd  2", {}, BpePattern::kSmollm2) ==
        Texts{"say", " ", "1", "9", "8", "4", " ", "3", "rd", "  ", "2"});
  const std::string text = "I'LL say\t12345  \n\n .!\r\nx\u00a0y e\u0301 ";
  CHECK(pieces_of(text, {}, BpePattern::kLlama3) == Texts{"I", "'LL", " say", "\t", "123", "45",
                                                          "  \n\n", " .!\r\n", "x", "\u00a0y", " e",
                                                          "\u0301", " "});
  CHECK(pieces_of(text, {}, BpePattern::kQwen2) == Texts{"I", "'LL", " say", "\t", "1", "2", "3",
                                                         "4", "5", "  \n\n", " .!\r\n", "x",
                                                         "\u00a0y", " \u00e9", " "});
  // Line by line: what stands before one is not composed with what stands behind it.
  CHECK(pieces_of("e\n\u0301e\u0301", {}, BpePattern::kQwen2) == Texts{"e", "\n", "\u0301\u00e9"});
}

TEST_CASE("texts have the ids and places that the tokenizers library gives them with each pattern",
          "[tokenizer][golden]") {
  const auto golden = nlohmann::json::parse(MappedFile(kGolden / "patterns.json").text());
  const auto texts = golden["texts"].get<Texts>();
  for (const std::string name : {"gpt2", "smollm2", "llama3", "qwen2"}) {
    auto model = golden_model(kEnd);
    model.pattern = *bpe_pattern(name);
    model.ignore_merges = name == "llama3";
    const auto tokenizer = bpe_tokenizer(model);
    REQUIRE(golden[name].size() == texts.size());
    for (size_t n = 0; n < texts.size(); ++n) {
      INFO(name << ": " << texts[n]);
      const auto encoding = tokenizer->encode(texts[n], "t");
      CHECK(encoding.ids == golden[name][n]["ids"].get<Ids>());
      CHECK(code_points_of(encoding.ranges, texts[n]) ==
            golden[name][n]["offsets"].get<std::vector<std::pair<int64_t, int64_t>>>());
    }
  }
}

TEST_CASE("a piece that is a token is that one where merges are ignored", "[tokenizer]") {
  auto model = small_model();
  model.tokens.insert(model.tokens.end(), {"bc", "xyz"});
  model.merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  for (bool ignore : {false, true}) {
    model.ignore_merges = ignore;
    const auto tokenizer = bpe_tokenizer(model);
    const auto texts = texts_of(*tokenizer, tokenizer->encode("abc xyz<s>xyz", "t").ids);
    CHECK(texts == (ignore ? Texts{"abc", " ", "x", "y", "z", "<s>", "xyz"}
                           : Texts{"a", "bc", " ", "x", "y", "z", "<s>", "x", "y", "z"}));
  }
}

TEST_CASE("a byte without a token vanishes where that is asked for", "[tokenizer]") {
  auto model = small_model();
  std::erase(model.tokens, "x");
  CHECK(error_of<DataError>([&] { bpe_tokenizer(model); }) ==
        "the BPE vocabulary has no 'x', for a byte");
  model.drops_unknown_bytes = true;
  const auto tokenizer = bpe_tokenizer(model);
  const auto encoding = tokenizer->encode("xaxbcx", "t");
  CHECK(texts_of(*tokenizer, encoding.ids) == Texts{"abc"});
  CHECK((encoding.ranges == std::vector<TextRange>{{1, 5}}));
}

TEST_CASE("tokens of BPE know their words", "[tokenizer]") {
  const auto tokenizer = bpe_tokenizer(small_model());
  const auto encoding = tokenizer->encode("abc,ab  c<s>a", "t");
  CHECK(texts_of(*tokenizer, encoding.ids) == Texts{"abc", ",", "ab", " ", " ", "c", "<s>", "a"});
  CHECK(encoding.words == Ids{0, 0, 0, -1, -1, 1, -1, 2});
}

TEST_CASE("bytes that are no text are decoded as U+FFFD", "[tokenizer]") {
  const auto tokenizer = bpe_tokenizer(small_model());
  const auto euro = tokenizer->encode("\u20ac", "t").ids;
  REQUIRE(euro.size() == 3);
  CHECK(tokenizer->decode(euro) == "\u20ac");
  CHECK(tokenizer->decode({euro[0], euro[1], 1 + 'a'}) == "\uFFFDa");
  CHECK(tokenizer->decode({euro[1], euro[2]}) == "\uFFFD\uFFFD");
  CHECK(tokenizer->bytes(euro[0], std::nullopt) == "\xE2");
  CHECK(tokenizer->token_texts()[euro[0]] == "\\xe2");
}

TEST_CASE("a full stop is punctuation, with or without a space before it", "[tokenizer]") {
  auto model = small_model();
  model.merges.emplace_back("\u0120", ".");
  model.tokens.emplace_back("\u0120.");
  const auto classes = bpe_tokenizer(model)->token_classes();
  CHECK(std::count(classes.begin(), classes.end(), kPunctuation) == 3);
  CHECK(classes.back() == kPunctuation);
}

TEST_CASE("BPE is the same after it was written and read", "[tokenizer]") {
  const auto tokenizer = bpe_tokenizer(golden_model(kEnd));
  const auto again = read_tokenizer(nlohmann::ordered_json::parse(tokenizer->json().dump()));
  CHECK(again->json() == tokenizer->json());
  CHECK(again->token_texts() == tokenizer->token_texts());
  const std::string text = "Romeo<|endoftext|> and \u00e9";
  CHECK(again->encode(text, "t").ids == tokenizer->encode(text, "t").ids);
  for (const char* key : {"pattern", "ignore_merges", "drops_unknown_bytes", "begin", "end"})
    CHECK_FALSE(tokenizer->json().contains(key));
  auto model = golden_model(kEnd);
  model.tokens.emplace_back("'S");
  model.merges.emplace_back("'", "S");
  model.pattern = BpePattern::kLlama3;
  model.ignore_merges = model.drops_unknown_bytes = true;
  model.frame = {.begin = 0, .end = 7};
  const auto other = bpe_tokenizer(model);
  const auto read = read_tokenizer(nlohmann::ordered_json::parse(other->json().dump()));
  CHECK(read->json() == other->json());
  CHECK(read->frame().begin == 0);
  CHECK(read->specials() == Ids{0});
  CHECK(read->encode("'S", "t").ids == Ids{757});
  auto json = other->json();
  json["pattern"] = "gpt5";
  CHECK(error_of<DataError>([&] { read_tokenizer(json); }) ==
        "no pattern of BPE is called 'gpt5' here");
}

TEST_CASE("what is no BPE is refused", "[tokenizer]") {
  const auto refusal = [](const std::function<void(BpeModel&)>& spoil) {
    auto model = small_model();
    spoil(model);
    return error_of<DataError>([&] { bpe_tokenizer(model); });
  };
  CHECK(refusal([](BpeModel&) {}) == "no error");
  CHECK(refusal([](BpeModel& m) { m.tokens.emplace_back("ab"); }) ==
        "the BPE vocabulary has 'ab' twice");
  CHECK(refusal([](BpeModel& m) { m.merges.emplace_back("a", "x"); }) ==
        "the BPE vocabulary has no 'ax', made by a merge");
  CHECK(refusal([](BpeModel& m) { m.merges.emplace_back("a", "bb"); }) ==
        "the BPE vocabulary has no 'bb', of a merge");
  CHECK(refusal([](BpeModel& m) { m.frame.begin = -1; }) ==
        "token -1 is not in the vocabulary of 259");
  CHECK(refusal([](BpeModel& m) { m.specials = {"</s>"}; }) ==
        "the BPE vocabulary has no '</s>', as a special");
  CHECK(refusal([](BpeModel& m) { m.tokens[1 + 'a'] = "xyz"; }) ==
        "the BPE vocabulary has no 'a', for a byte");
  CHECK(refusal([](BpeModel& m) { m.specials = {""}, m.tokens.emplace_back(""); }) ==
        "the BPE vocabulary has no '', as a special");
  Folder folder;
  const auto file_refusal = [&](const std::string& merges) {
    folder.write("m", merges);
    return error_of<DataError>([&] { read_merges(folder / "m"); });
  };
  CHECK(file_refusal("#version: 0.2\na b\n") == "no error");
  for (const char* merge : {"ab", "a b c", " ab", "ab "})
    CHECK(file_refusal("#version\n" + std::string(merge)) ==
          (folder.path() / "m").string() + ":2: '" + merge + "' is no merge of two tokens");
}

TEST_CASE("merges are the same with lines that end in CRLF, behind a byte order mark",
          "[tokenizer]") {
  const Folder folder;
  const std::string text = "#version: 0.2\na b\n\nab c\n";
  using Merges = std::vector<std::pair<std::string, std::string>>;
  folder.write("lf", text), folder.write("crlf", "\xEF\xBB\xBF" + with_crlf(text));
  CHECK(read_merges(folder / "lf") == Merges{{"a", "b"}, {"ab", "c"}});
  CHECK(read_merges(folder / "crlf") == read_merges(folder / "lf"));
}

}  // namespace headlab::test_bpe
