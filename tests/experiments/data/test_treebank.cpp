// The reader of treebanks: which lines count, the text of sentences, and what is refused.
#include "core/errors.h"
#include "tests/catch.h"
#include "tests/scratch.h"
#include "tests/treebank_testing.h"

namespace headlab::test_treebank {
namespace {

using testing::conllu;
using Pieces = std::vector<std::string>;
using Words = std::vector<int64_t>;

std::vector<TreebankSentence> parse(const std::string& text, const TreebankOptions& options = {}) {
  return parse_treebank(text, "t.conllu", options);
}

std::string complaint(const std::string& text) {
  try {
    parse(text);
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

std::string part(const TreebankSentence& sentence, size_t word) {
  const auto& w = sentence.words[word];
  return sentence.text.substr(w.begin, w.end - w.begin);
}

// The words of tokens that are these pieces of the text.
std::optional<Words> words_of(const TreebankSentence& sentence, const Pieces& pieces) {
  std::vector<TextRange> tokens;
  size_t at = 0;
  for (const auto& piece : pieces) {
    REQUIRE(sentence.text.compare(at, piece.size(), piece) == 0);
    tokens.push_back({at, at + piece.size()});
    at += piece.size();
  }
  return words_of_tokens(sentence, tokens);
}

std::string dont_go() {
  return "# text = I don't go.\n" + conllu("1", "I", "4", "nsubj") +
         conllu("2-3", "don't", "_", "_") + conllu("2", "do", "4", "aux:pass", "SpaceAfter=No") +
         conllu("3", "n't", "4", "advmod") + conllu("3.1", "really", "_", "_") +
         conllu("4", "go", "0", "root", "X=1|SpaceAfter=No") + conllu("5", ".", "4", "punct") +
         "\n";
}

TEST_CASE("words keep head and relation, and the text that is theirs", "[treebank]") {
  const auto sentences = parse(dont_go() + conllu("1", "Yes", "0", "root") + "\n");
  REQUIRE(sentences.size() == 2);
  const auto& first = sentences[0];
  CHECK(first.line == 2);
  CHECK(sentences[1].line == 10);
  CHECK(first.text == "I don't go.");
  CHECK(sentences[1].text == "Yes");
  const Pieces forms{"I", "do", "n't", "go", "."};
  const Pieces relations{"nsubj", "aux", "advmod", "root", "punct"};
  const Words heads{4, 4, 4, 0, 4};
  REQUIRE(first.words.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(first.words[i].form == forms[i]);
    CHECK(part(first, i) == forms[i]);
    CHECK(first.words[i].relation == relations[i]);
    CHECK(first.words[i].head == heads[i]);
  }
}

TEST_CASE("relations keep their subtypes only where asked", "[treebank]") {
  CHECK(parse(dont_go(), {.subtypes = true})[0].words[1].relation == "aux:pass");
  CHECK(parse(dont_go())[0].words[1].relation == "aux");
}

TEST_CASE("words of a contraction that is not their forms have no text", "[treebank]") {
  const auto sentences = parse(conllu("1-2", "du", "_", "_") + conllu("1", "de", "3", "case") +
                               conllu("2", "le", "3", "det") + conllu("3", "pain", "0", "root"));
  REQUIRE(sentences.size() == 1);
  CHECK(sentences[0].text == "du pain");
  CHECK(part(sentences[0], 0).empty());
  CHECK(part(sentences[0], 1).empty());
  CHECK(part(sentences[0], 2) == "pain");
  CHECK_FALSE(words_of(sentences[0], {"du", " ", "pain"}));
}

TEST_CASE("relations are listed by frequency behind all", "[treebank]") {
  const auto sentences = parse(conllu("1", "a", "3", "det") + conllu("2", "b", "3", "case") +
                               conllu("3", "c", "0", "root") + conllu("4", "d", "3", "det") + "\n");
  CHECK(relations_of(sentences) == Pieces{"all", "det", "case", "root"});
}

TEST_CASE("tokens belong to the words whose bytes they share", "[treebank]") {
  const auto sentence = parse(dont_go())[0];
  CHECK(words_of(sentence, {"I", " don", "'t", " ", "go", "."}) == Words{0, 1, 2, -1, 3, 4});
  Pieces characters;
  for (char c : sentence.text) characters.emplace_back(1, c);
  CHECK(words_of(sentence, characters) == Words{0, -1, 1, 1, 2, 2, 2, -1, 3, 3, 4});
  // Tokens need not be the whole text; one that is a special token has no bytes of it.
  CHECK(words_of_tokens(sentence, {{0, 0}, {0, 1}, {2, 4}, {5, 5}, {4, 7}, {8, 10}, {10, 11}}) ==
        Words{-1, 0, 1, -1, 2, 3, 4});
  // n't has no token of its own; the last word has none.
  CHECK_FALSE(words_of(sentence, {"I", " don't", " go", "."}));
  CHECK_FALSE(words_of(sentence, {"I", " don", "'t", " go"}));
}

TEST_CASE("what is not CoNLL-U is refused by line", "[treebank]") {
  const std::string word = conllu("1", "a", "0", "root");
  const auto after_word = [&](const std::string& line) { return complaint(word + line); };
  using Catch::Contains;
  CHECK_THAT(complaint("1\ta\t_\n\n"), Contains("t.conllu:1: has 3 columns"));
  CHECK_THAT(complaint(word.substr(0, word.size() - 1) + "\t_\n"), Contains("has 11 columns"));
  CHECK_THAT(complaint(std::string(11, '\t') + "\n"), Contains("has 12 columns"));
  CHECK_THAT(complaint(conllu("1", "", "0", "root")), Contains("column 2 is empty"));
  CHECK_THAT(after_word(conllu("3", "b", "1", "det")), Contains("t.conllu:2: the id '3'"));
  CHECK_THAT(after_word(conllu("02", "b", "1", "det")), Contains("the id '02'"));
  CHECK_THAT(after_word(conllu("2", "b", "_", "det")), Contains("the head '_'"));
  CHECK_THAT(after_word(conllu("2", "b", "-1", "det")), Contains("the head '-1'"));
  CHECK_THAT(after_word(conllu("2", "b", "9", "det") + conllu("3", "c", "1", "det")),
             Contains("t.conllu:2: the head 9 is beyond the sentence's 3 words"));
  CHECK_THAT(after_word(conllu("2", "b", "2", "det")), Contains("its own head"));
  CHECK_THAT(after_word(conllu("2", "b", "1", "_")), Contains("needs a relation"));
  CHECK_THAT(after_word(conllu("2", "b", "1", ":x")), Contains("needs a relation"));
  CHECK_THAT(after_word(conllu("2", "b", "1", "all")), Contains("'all'"));
  CHECK_THAT(after_word(conllu("3-4", "b", "_", "_")), Contains("'3-4' is no range"));
  CHECK_THAT(after_word(conllu("2-2", "b", "_", "_")), Contains("'2-2' is no range"));
  CHECK_THAT(after_word(conllu("2-3", "b", "_", "_") + conllu("2-3", "b", "_", "_")),
             Contains("t.conllu:3: '2-3' is no range"));
  CHECK_THAT(after_word(conllu("2-3", "b", "_", "_") + conllu("2", "b", "1", "det")),
             Contains("ends within the multiword token 2-3"));
  CHECK_THAT(after_word(conllu("2.1", "b", "_", "_")), Contains("'2.1' is no empty node"));
  CHECK_THAT(complaint(conllu("0.1", "b", "_", "_") + "\n"), Contains("has no words"));
  CHECK_THAT(after_word("# text\n"), Contains("t.conllu:2: a comment"));
  CHECK_THAT(complaint("# te\rxt\n"), Contains("t.conllu:1: holds a carriage return"));
}

TEST_CASE("a treebank is the same with lines that end in CRLF, behind a byte order mark",
          "[treebank]") {
  const std::string text = "# text\n" + conllu("1", "a", "0", "root") + "\n" +
                           conllu("1", "b", "2", "det") + conllu("2", "c", "0", "root");
  std::string crlf = "\xEF\xBB\xBF";
  for (const char c : text) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  const auto plain = parse_treebank(text, "t.conllu"), read = parse_treebank(crlf, "t.conllu");
  REQUIRE(plain.size() == 2);
  REQUIRE(read.size() == 2);
  for (size_t n = 0; n < 2; ++n) {
    CHECK(read[n].text == plain[n].text);
    CHECK(read[n].line == plain[n].line);
    CHECK(read[n].words.back().relation == plain[n].words.back().relation);
  }
  const Scratch folder;
  write_bytes(folder / "t.conllu", "\xFF\xFE#\n");
  CHECK_THROWS_AS(read_treebank(folder / "t.conllu"), DataError);
}

TEST_CASE("a treebank without a sentence is refused", "[treebank]") {
  const Scratch folder;
  write_bytes(folder / "t.conllu", "# nothing\n\n");
  CHECK_THROWS_AS(read_treebank(folder / "t.conllu"), DataError);
  CHECK_THROWS_AS(read_treebank(folder / "absent.conllu"), DataError);
}

TEST_CASE("the text of every sentence of a real treebank is the one it states", "[treebank]") {
  const auto file = testing::english_treebank();
  if (file.empty()) return;
  const auto sentences = read_treebank(file);
  Pieces stated;
  const std::string marker = "# text = ";
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(marker)) stated.push_back(line.substr(marker.size()));
  REQUIRE(sentences.size() == stated.size());
  size_t words = 0, without_text = 0;
  for (size_t s = 0; s < stated.size(); ++s) {
    CHECK(sentences[s].text == stated[s]);
    words += sentences[s].words.size();
    for (const auto& word : sentences[s].words) without_text += word.begin == word.end;
  }
  CHECK(words == 25147);
  CHECK(without_text == 0);
}

}  // namespace
}  // namespace headlab::test_treebank
