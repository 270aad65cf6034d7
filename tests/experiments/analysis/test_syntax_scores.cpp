// Syntactic heads of a model: heads whose task is known, on sentences made so that it is syntax.
#include <cmath>

#include "core/errors.h"
#include "experiments/analysis/syntax_scores.h"
#include "experiments/files/h5.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/hand_built.h"
#include "tests/treebank_testing.h"

namespace headlab::test_syntax_scores {
namespace {

using testing::conllu;
using testing::difference;
using testing::Folder;

constexpr int64_t kContext = 24, kLetters = 26;

// A char source of the letters a..z.
struct Letters {
  Folder folder;
  std::shared_ptr<DataSource> data;

  Letters() {
    std::string text;
    for (int n = 0; n < 20; ++n)
      for (char c = 'a'; c <= 'z'; ++c) text += c;
    folder.write("letters.txt", text);
    data = testing::open("kind: char, path: letters.txt, context: 24", folder.path());
  }
};

std::shared_ptr<Model> letters_decoder() {
  return testing::hand_built_decoder({.vocabulary = kLetters, .context = kContext});
}

// Every letter is a word. The letters of the first half hang on the one before, those of the second
// half on the one that followed their first copy, at a distance that differs by sentence.
std::string copying_sentences() {
  std::string text;
  for (int64_t half = 4; half <= 12; ++half) {
    for (int64_t i = 0; i < 2 * half; ++i) {
      const std::string form(1, static_cast<char>('a' + (i % half * 7 + half) % kLetters));
      const int64_t head = i < half ? i : i - half + 2;
      const char* relation = i == 0 ? "root" : i < half ? "prev:x" : "copy";
      text += conllu(std::to_string(i + 1), form, std::to_string(head), relation, "SpaceAfter=No");
    }
    text += "\n";
  }
  return text;
}

EncodedTreebank encoded(const DataSource& data, const std::string& more = "") {
  return encode_treebank(parse_treebank(copying_sentences() + more, "t.conllu"), data, kContext);
}

const SyntaxOptions kOptions{.least_cases = 20};

double at_place(const Tensor& t, const std::vector<int64_t>& place) {
  Tensor value = t;
  for (int64_t i : place) value = value[i];
  return value.item<double>();
}

TEST_CASE("the induction head is syntactic where copies are heads, a head of one place is not",
          "[syntax]") {
  const Letters letters;
  const auto model = letters_decoder();
  const auto scores =
      *score_syntax(*model, heads_at(*model, "self"), encoded(*letters.data), kOptions);
  REQUIRE(scores.relations == std::vector<std::string>{"all", "copy", "prev", "root"});
  CHECK(at_place(scores.count, {1}) == 72);
  CHECK(at_place(scores.accuracy, {0, 1, 0, 1}) == 1);  // (1,0) copy
  CHECK(at_place(scores.accuracy, {0, 0, 0, 2}) == 1);  // (0,0) prev
  CHECK(at_place(scores.accuracy, {0, 0, 0, 1}) < 0.2);
  CHECK(at_place(scores.accuracy, {0, 0, 0, 3}) == 0);  // the root
  CHECK(at_place(scores.baseline_offset, {0, 0, 2}) == 1);
  CHECK(at_place(scores.baseline_offset, {1, 0, 2}) == -1);
  CHECK(at_place(scores.baseline_offset, {0, 0, 1}) == Approx(12. / 72));

  const auto best = best_relations(scores);
  CHECK(at_place(best.relation, {1, 0}) == 1);
  CHECK(at_place(best.direction, {1, 0}) == 0);
  CHECK(at_place(best.accuracy, {1, 0}) == 1);
  CHECK(at_place(best.gain, {1, 0}) == Approx(1 - 12. / 72));
  CHECK(at_place(best.gain, {0, 0}) <= 0.05);
}

TEST_CASE("relations with few words make no head syntactic", "[syntax]") {
  const Letters letters;
  const auto model = letters_decoder();
  const auto scores =
      *score_syntax(*model, heads_at(*model, "self"), encoded(*letters.data), {.least_cases = 73});
  CHECK(std::isnan(at_place(best_relations(scores).gain, {1, 0})));
}

TEST_CASE("accuracies do not depend on batches", "[syntax]") {
  const Letters letters;
  const auto model = letters_decoder();
  const auto treebank = encoded(*letters.data);
  auto alone = kOptions, together = kOptions;
  alone.batch = 1, together.batch = 7;
  const auto a = *score_syntax(*model, heads_at(*model, "self"), treebank, alone);
  const auto b = *score_syntax(*model, heads_at(*model, "self"), treebank, together);
  // Heads 1.. of the circuit attend to many words alike: which is first among equals is rounding.
  const auto certain = [](const Tensor& t) { return t.select(-2, 0).nan_to_num(-1); };
  CHECK(difference(certain(a.accuracy), certain(b.accuracy)) == 0);
  CHECK(difference(certain(a.accuracy_head_row), certain(b.accuracy_head_row)) == 0);
}

TEST_CASE("heads that are gone have no accuracy and play no role, masked or sliced", "[syntax]") {
  const Letters letters;
  const auto model = letters_decoder();
  const auto treebank = encoded(*letters.data);
  const auto whole = *score_syntax(*model, heads_at(*model, "self"), treebank, kOptions);
  auto& layer = *model->sites()[0].layers[1];
  layer->mask_heads({1, 3});
  for (const bool sliced : {false, true}) {
    if (sliced) model->exchange("self", 1, layer->slice());
    const auto scores = *score_syntax(*model, heads_at(*model, "self"), treebank, kOptions);
    for (int64_t h : {1, 3}) {
      CHECK(std::isnan(at_place(scores.accuracy, {0, 1, h, 1})));
      CHECK(std::isnan(at_place(scores.accuracy_head_row, {1, h, 1})));
    }
    for (int64_t h : {0, 2})
      CHECK(difference(scores.accuracy.select(1, 1).select(1, h),
                       whole.accuracy.select(1, 1).select(1, h)) == 0);
  }
}

TEST_CASE("sentences that a model cannot read are counted by reason", "[syntax]") {
  const Letters letters;
  std::string more = conllu("1", "seven7", "0", "root") + "\n";  // no digits in the vocabulary
  more += conllu("1-2", "du", "_", "_", "SpaceAfter=No") + conllu("1", "de", "0", "root") +
          conllu("2", "le", "1", "det") + "\n";
  more += conllu("1", std::string(kContext + 1, 'a'), "0", "root") + "\n";
  more += conllu("1", std::string(kContext, 'a'), "0", "root") + "\n";
  const auto treebank = encoded(*letters.data, more);
  CHECK(treebank.left_out.not_encoded == 1);
  CHECK(treebank.left_out.not_aligned == 1);
  CHECK(treebank.left_out.too_long == 1);
  CHECK(treebank.sentences.size() == 10);

  const auto digits = parse_treebank(conllu("1", "7", "0", "root"), "t.conllu");
  CHECK_THROWS_WITH(encode_treebank(digits, *letters.data, kContext),
                    Catch::Contains("none of the treebank's 1 sentences"));
  const auto untold = testing::open("kind: induction");
  CHECK_THROWS_AS(encode_treebank(digits, *untold, kContext), DataError);
}

// Letters and spaces; a begin token that no text is.
class BegunText : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 3; }
  Encoding encode(std::string_view text, const std::string&) const override {
    Encoding encoding;
    for (size_t at = 0; at < text.size(); ++at) {
      encoding.ids.push_back(text[at] == ' ' ? 1 : 0);
      encoding.ranges.push_back({at, at + 1});
    }
    return encoding;
  }
  std::string bytes(int64_t id, std::optional<int64_t>) const override {
    return id == 1 ? " " : "x";
  }
  std::vector<std::string> token_texts() const override { return {"x", " ", "<s>"}; }
  std::vector<uint8_t> token_classes() const override { return {kWord, kWord, kCls}; }
  nlohmann::ordered_json json() const override { return {}; }
};

class Begun : public DataSource {
 public:
  int64_t vocabulary() const override { return 3; }
  int64_t context() const override { return 8; }
  Batch train_batch(uint64_t, int64_t, int64_t, int64_t) const override { return {}; }
  int64_t examples(Split) const override { return 0; }
  Batch eval_batch(Split, int64_t, int64_t) const override { return {}; }
  std::shared_ptr<const Tokenizer> tokenizer() const override {
    return std::make_shared<BegunText>();
  }
};

TEST_CASE("a begin token stands first where the source has one, and is of no word", "[syntax]") {
  const auto sentences =
      parse_treebank(conllu("1", "xx", "0", "root") + conllu("2", "x", "1", "obj"), "t.conllu");
  const auto treebank = encode_treebank(sentences, Begun(), 8);
  CHECK(treebank.sentences[0].ids == std::vector<int64_t>{2, 0, 0, 1, 0});
  CHECK(treebank.sentences[0].words == std::vector<int64_t>{-1, 0, 0, -1, 1});
  CHECK_THROWS_AS(encode_treebank(sentences, Begun(), 4), DataError);
}

TEST_CASE("kinds without a map over tokens have no syntactic heads", "[syntax]") {
  const Letters letters;
  const auto model = testing::small_decoder(
      "{layers: 2, d_model: 16, heads: 2, causal: false, attention: {kind: linformer}}", kLetters,
      kContext);
  CHECK_FALSE(score_syntax(*model, heads_at(*model, "self"), encoded(*letters.data), kOptions));
  const auto half = testing::small_decoder(
      "{layers: 2, d_model: 16, heads: 2, causal: false, attention: {kind: linformer}, "
      "attention_at: {\"1\": mha}}",
      kLetters, kContext);
  const auto scores =
      *score_syntax(*half, heads_at(*half, "self"), encoded(*letters.data), kOptions);
  CHECK(scores.accuracy.select(1, 0).isnan().all().item<bool>());
  CHECK_FALSE(scores.accuracy.select(1, 1).isnan().any().item<bool>());
}

TEST_CASE("accuracies are written with the names of their relations", "[syntax]") {
  const Letters letters;
  const auto model = letters_decoder();
  const auto scores =
      *score_syntax(*model, heads_at(*model, "self"), encoded(*letters.data), kOptions);
  LabelledGroup analysis{.path = "analysis/self", .axes = {}, .arrays = {}};
  add_syntax(analysis, scores);
  const auto axes = analysis.axes.size();
  LabelledGroup again = analysis;
  add_syntax(again, scores);
  CHECK(again.axes.size() == axes);
  const Folder folder;
  write_results(folder / "out.h5", {}, {analysis});
  const auto file = H5File::open(folder / "out.h5");
  const auto group = file.root().group("analysis/self");
  CHECK(group.dataset("relation").read_text() == scores.relations);
  CHECK(group.dataset("direction").read_text() ==
        std::vector<std::string>{"dependent_row", "head_column"});
  CHECK(group.dataset("accuracy").extent() == H5Extent{2, 2, 4, 4});
  CHECK(group.dataset("accuracy").read<double>()[(0 * 2 + 1) * 16 + 1] == 1);
  CHECK(group.dataset("baseline").extent() == H5Extent{6, 4});
  CHECK(group.dataset("relation_count").number("sentences") == 9);
}

TEST_CASE("a char model reads the short sentences of a real treebank", "[syntax]") {
  const auto file = testing::english_treebank();
  if (file.empty()) return;
  const auto data = testing::open("kind: char, path: data/tinyshakespeare.txt, context: 64",
                                  std::filesystem::path(build::kSourceDir) / "configs");
  const auto sentences = read_treebank(file);
  auto treebank = encode_treebank(sentences, *data, 64);
  const auto& left = treebank.left_out;
  CHECK(left.not_aligned == 0);
  CHECK(left.not_encoded > 0);
  CHECK(left.too_long > 0);
  CHECK(std::ssize(treebank.sentences) + left.not_encoded + left.too_long == 2001);
  treebank.sentences.resize(100);
  const auto model = testing::hand_built_decoder({.vocabulary = data->vocabulary(), .context = 64});
  const auto scores = *score_syntax(*model, heads_at(*model, "self"), treebank, {});
  int64_t words = 0;
  for (const auto& sentence : treebank.sentences) words += sentence.dependencies.heads.size();
  CHECK(at_place(scores.count, {0}) == words);
  const auto all = scores.accuracy.select(-1, 0);
  CHECK(all.ge(0).logical_and(all.lt(1)).all().item<bool>());
}

}  // namespace
}  // namespace headlab::test_syntax_scores
