// CoNLL-U, with and without the subtypes of relations.
#include "experiments/data/formats/treebank.h"
#include "tests/fuzz/fuzzing.h"

namespace headlab {
namespace {

void check(const TreebankSentence& sentence) {
  std::vector<TextRange> tokens;
  for (const auto& word : sentence.words) {
    fuzzing::require(word.begin <= word.end && word.end <= sentence.text.size(),
                     "a word lies outside of its sentence");
    fuzzing::require(word.head >= 0 && word.head <= std::ssize(sentence.words),
                     "a head lies outside of its sentence");
    tokens.push_back({word.begin, word.end});
  }
  words_of_tokens(sentence, tokens);
}

}  // namespace
}  // namespace headlab

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headlab;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool subtypes : {false, true})
    fuzzing::parse(size, "a.conllu", [&] {
      const auto sentences = parse_treebank(text, "a.conllu", {.subtypes = subtypes});
      for (const auto& sentence : sentences) check(sentence);
      relations_of(sentences);
    });
  return 0;
}
