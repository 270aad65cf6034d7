// Texts in parts: the ids and errors of the whole, whatever the parts and threads.
#include <fmt/format.h>

#include <random>

#include "experiments/data/part_encoder.h"
#include "experiments/data/text_encoding.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/char_tokenizer.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "experiments/data/tokenizers/word_tokenizer.h"
#include "experiments/data/tokenizers/wordpiece_tokenizer.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/tokenizer_testing.h"

namespace headlab::test_text_encoding {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden";
// With white space inside, at the beginning and at the end; one begins as another.
const Texts kSpecials{"<|endoftext|>", "<a b>", "<a", "\n\n<x>", "the ", " <y>\n", "\u00e9 <z>"};

// What tokenizers look at: letters, marks, numbers, white space and punctuation of several kinds,
// parts of specials, ends of words.
const Texts kParts{"a",
                   "b",
                   "st",
                   "T",
                   "the",
                   " the",
                   "l",
                   "d",
                   "'",
                   "'s",
                   "'LL",
                   "'\u017f",
                   "\u00e9",
                   "\u0301",
                   "\u0327",
                   "\u0323",
                   "\u0344",
                   "\u1112",
                   "\u1161",
                   "\u11ab",
                   "\uac00",
                   "\u0130",
                   "\u03a3",
                   "\u03c2",
                   "\u4e2d",
                   "\u3042",
                   "\u3099",
                   "1",
                   "23",
                   "\u0967",
                   "\u00b2",
                   "\u00bd",
                   " ",
                   " ",
                   " ",
                   "  ",
                   "\n",
                   "\n",
                   "\n\n",
                   "\r\n",
                   "\r",
                   "\t",
                   "\v",
                   "\f",
                   "\u00a0",
                   "\u2028",
                   "\u3000",
                   "\u200b",
                   "\u0085",
                   ".",
                   ",",
                   "!",
                   "?",
                   "-",
                   "_",
                   "\U0001f642",
                   "\u0f71",
                   "\u2126",
                   "<|endoftext|>",
                   "<a b>",
                   "<a",
                   " b>",
                   "\n\n<x>",
                   "<x>",
                   "the ",
                   " <y>\n",
                   "<y>",
                   "\u00e9 <z>",
                   " <z>",
                   "[MASK]",
                   "[mask]",
                   "<unk>"};

std::string random_text(std::mt19937& random, const Texts& parts, size_t most) {
  std::string text;
  for (size_t n = random() % (most + 1); n > 0; --n) text += parts[random() % parts.size()];
  return text;
}

// The golden model. Before its merges come those of all pairs of some bytes, so that ids tell where
// pieces end.
BpeModel golden_bpe(BpePattern pattern, bool ignore_merges = false) {
  auto model = read_bpe(kGolden / "bpe/vocab.json", kGolden / "bpe/merges.txt", {});
  model.specials = kSpecials, model.pattern = pattern, model.ignore_merges = ignore_merges;
  std::set<std::string> known(model.tokens.begin(), model.tokens.end());
  const auto add = [&](const std::string& token) {
    if (known.insert(token).second) model.tokens.push_back(token);
  };
  for (const auto& special : kSpecials) add(special);
  auto merges = std::move(model.merges);
  model.merges.clear();
  const std::string bytes = " \n\r\tab123.!'s\xC2\xA0\xC3\xA9\xCC\x81";
  for (const char left : bytes)
    for (const char right : bytes) {
      model.merges.emplace_back(bpe_symbols({&left, 1}), bpe_symbols({&right, 1}));
      add(model.merges.back().first + model.merges.back().second);
    }
  for (auto& merge : merges)
    if (std::ranges::find(model.merges, merge) == model.merges.end())
      model.merges.push_back(std::move(merge));
  return model;
}

std::shared_ptr<const Tokenizer> golden_wordpiece(bool lower_case, bool strip_accents) {
  auto model = read_wordpiece(MappedFile(kGolden / "wordpiece/vocab.txt").text(), "vocab.txt");
  model.lower_case = lower_case, model.strip_accents = strip_accents;
  for (const auto& special : kSpecials) {
    if (std::ranges::find(model.tokens, special) == model.tokens.end())
      model.tokens.push_back(special);
    model.specials.push_back(special);
  }
  return wordpiece_tokenizer(model);
}

std::shared_ptr<const Tokenizer> characters() {
  std::string all;
  for (const auto& part : kParts) all += part;
  auto chars = decode_utf8(all, "t");
  std::ranges::sort(chars);
  chars.erase(std::unique(chars.begin(), chars.end()), chars.end());
  return char_tokenizer(chars);
}

std::shared_ptr<const Tokenizer> words(const std::string& line_end) {
  return word_tokenizer({{"<unk>", "<eos>"}, 0, line_end}, {"the", "a", "'s", "<a", "b>"});
}

std::map<std::string, std::shared_ptr<const Tokenizer>> all_tokenizers() {
  std::map<std::string, std::shared_ptr<const Tokenizer>> all{
      {"bytes", byte_tokenizer()},
      {"char", characters()},
      {"words", words("")},
      {"words with ends of lines", words("<eos>")},
      {"wordpiece", golden_wordpiece(true, true)},
      {"wordpiece as it is", golden_wordpiece(false, false)},
      {"wordpiece without accents", golden_wordpiece(false, true)},
      {"padded", padded_tokenizer(golden_wordpiece(true, true), 40000)}};
  for (const char* name : {"gpt2", "smollm2", "llama3", "qwen2"})
    all[name] = bpe_tokenizer(golden_bpe(*bpe_pattern(name)));
  all["llama3 without merges"] = bpe_tokenizer(golden_bpe(BpePattern::kLlama3, true));
  auto dropping = golden_bpe(BpePattern::kGpt2);
  std::ranges::replace(dropping.tokens, std::string("?"), std::string());
  dropping.drops_unknown_bytes = true;
  all["dropping"] = bpe_tokenizer(dropping);
  return all;
}

Ids wide(const TokenIds& ids) {
  Ids all(static_cast<size_t>(ids.size()));
  ids.copy(0, ids.size(), all.data());
  return all;
}

Ids encoded(const Tokenizer& tokenizer, std::string_view text, const EncodingOptions& options) {
  return wide(encode_in_memory(tokenizer, text, "t.txt", options));
}

}  // namespace

TEST_CASE("a text that is cut where its tokenizer says has the ids of the whole", "[tokenizer]") {
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    std::mt19937 random(7);
    int64_t cuts = 0;
    for (int round = 0; round < 2000; ++round) {
      const auto text = random_text(random, kParts, 16);
      const auto whole = tokenizer->encode(text, "t").ids;
      for (size_t at = 1; at < text.size(); ++at) {
        const auto cut = tokenizer->next_cut(text, at);
        REQUIRE(cut >= at);
        REQUIRE(cut <= text.size());
        if (cut != at) continue;
        ++cuts;
        auto ids = tokenizer->encode(text.substr(0, at), "t").ids;
        for (const int64_t id : tokenizer->encode(text.substr(at), "t").ids) ids.push_back(id);
        INFO(name << ": " << nlohmann::json(text).dump() << " at " << at);
        REQUIRE(ids == whole);
      }
    }
    INFO(name);
    CHECK(cuts > 1000);
  }
}

TEST_CASE("ids depend neither on the parts of a text nor on the number of threads", "[tokenizer]") {
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    std::mt19937 random(11);
    for (const size_t most : {0, 1, 5, 40, 40, 40, 400, 2000}) {
      const auto text = random_text(random, kParts, most);
      const auto whole = tokenizer->encode(text, "t").ids;
      for (const size_t part : {1, 2, 3, 7, 64, 1000, 1 << 20})
        for (const int threads : {1, 2, 3, 4}) {
          INFO(name << ": parts of " << part << ", " << threads << " threads, "
                    << nlohmann::json(text).dump());
          REQUIRE(encoded(*tokenizer, text, {.threads = threads, .part = part}) == whole);
        }
    }
  }
}

TEST_CASE("a tokenizer that says no place encodes a text at once", "[tokenizer]") {
  class Whole : public Tokenizer {
   public:
    int64_t vocabulary() const override { return 1 << 20; }
    Encoding encode(std::string_view text, const std::string&) const override {
      return {.ids = {std::ssize(text)}, .ranges = {}, .words = {}};
    }
    std::string bytes(int64_t, std::optional<int64_t>) const override { return ""; }
    Texts token_texts() const override { return {}; }
    nlohmann::ordered_json json() const override { return {}; }
  };
  const std::string text(100000, ' ');
  CHECK(encoded(Whole(), text, {.threads = 4, .part = 10}) == Ids{100000});
  CHECK_FALSE(estimated_cost(Whole(), std::string(1 << 20, ' '), {}));
}

TEST_CASE("words that come again are the same words, however many there are", "[tokenizer]") {
  std::string text;
  std::mt19937 random(3);
  for (int n = 0; n < 30000; ++n)
    text += fmt::format(" {}{}", "thest"[random() % 5], random() % 300000);
  text += " " + std::string(1000, 'a') + " " + std::string(1000, 'a') + " 1.2.3.4.5.6.7.8.9.0";
  const auto tokenizer = all_tokenizers().at("gpt2");
  CHECK(encoded(*tokenizer, text + text, {}) == tokenizer->encode(text + text, "t").ids);
}

TEST_CASE("an id takes no more bytes than its vocabulary asks for", "[tokenizer]") {
  for (const auto& [vocabulary, width] : std::map<int64_t, int64_t>{
           {1, 1}, {256, 1}, {257, 2}, {65536, 2}, {65537, 4}, {int64_t{1} << 32, 4}})
    CHECK(id_width(vocabulary) == width);
  const auto chars = characters();
  const std::string text = "the a \u00e9";
  for (const int64_t vocabulary : {200, 300, 70000}) {
    const auto tokenizer = padded_tokenizer(chars, vocabulary);
    const auto ids = encode_in_memory(*tokenizer, text, "t", {});
    CHECK(wide(ids) == chars->encode(text, "t").ids);
    CHECK(ids.span.index() == (vocabulary == 200 ? 0 : vocabulary == 300 ? 1 : 2));
    CHECK(wide(ids.part(1, 3)) == chars->encode(text.substr(1, 3), "t").ids);
  }
}

TEST_CASE("what is wrong with a text is told as of the whole", "[tokenizer]") {
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers{
      {"char", char_tokenizer(U"\n abcd")},
      {"padded", padded_tokenizer(char_tokenizer(U"\n\r 9<>abcdxz\u00e9"), 11)},
      {"gpt2", bpe_tokenizer(golden_bpe(BpePattern::kGpt2))},
      {"qwen2", padded_tokenizer(bpe_tokenizer(golden_bpe(BpePattern::kQwen2)), 758)},
      {"wordpiece", golden_wordpiece(true, true)},
      {"padded wordpiece", padded_tokenizer(golden_wordpiece(true, true), 30000)},
      {"padded words", padded_tokenizer(words("<eos>"), 6)},
      {"padded bytes", padded_tokenizer(byte_tokenizer(), 200)}};
  const Texts parts{"a", "b", "cd", " ", " ", "\n", "\n", "\n\n", "a b\n", "\r\n"};
  const Texts wrong{"z", "\u00e9", "\xFF", "\xE2\x82", "\x80", "<x>", "b>", "9"};
  for (const auto& [name, refusing] : tokenizers) {
    const auto& tokenizer = *refusing;  // a structured binding is not captured by all compilers
    std::mt19937 random(5);
    int64_t refused = 0;
    for (int round = 0; round < 80; ++round) {
      auto text = random_text(random, parts, 30);
      for (size_t n = random() % 3; n > 0; --n)
        text += wrong[random() % wrong.size()] + random_text(random, parts, 30);
      const auto whole = error_of<DataError>([&] { tokenizer.encode(text, "t.txt"); });
      refused += whole != "no error";
      for (const size_t part : {1, 5, 1000})
        for (const int threads : {1, 3}) {
          INFO(name << ": parts of " << part << ", " << threads << " threads: " << text);
          REQUIRE(error_of<DataError>([&] {
                    encoded(tokenizer, text, {.threads = threads, .part = part});
                  }) == whole);
        }
    }
    INFO(name);
    CHECK(refused > 5);
  }
}

TEST_CASE("what a text will take is known from some of it", "[tokenizer]") {
  std::string text;
  std::mt19937 random(9);
  while (text.size() < 3'000'000)
    text += random_text(random, {"the", " a", " sea", " sells", " 12", ".", "\n"}, 30);
  const auto tokenizer = all_tokenizers().at("gpt2");
  const auto cost = estimated_cost(*tokenizer, text, {});
  REQUIRE(cost);
  const auto count = static_cast<double>(encoded(*tokenizer, text, {}).size());
  CHECK(cost->tokens == Approx(count).epsilon(.05));
  CHECK(cost->seconds > 0);
  CHECK_FALSE(estimated_cost(*tokenizer, std::string(1 << 20, 'a'), {}));
  CHECK_NOTHROW(estimated_cost(*tokenizer, std::string(1 << 20, '\xFF') + text, {}));
}

}  // namespace headlab::test_text_encoding
