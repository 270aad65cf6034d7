// Texts that a command is given: which examples they are, and what is said of those that do not
// fit.
#include "core/errors.h"
#include "experiments/data/given/given_text.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/word_tokenizer.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_given_text {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;

std::shared_ptr<DataSource> given(const std::string& text, int64_t context) {
  return given_text(
      {.shape = {.vocabulary = 256, .context = context}, .tokenizer = byte_tokenizer()},
      {.text = text, .name = "--text"});
}

Batch whole(const DataSource& data) {
  return data.eval_batch(Split::kWhole, 0, data.examples(Split::kWhole));
}

}  // namespace

TEST_CASE("a short text is one example, whose last token predicts nothing", "[data]") {
  for (int64_t context : {3, 64}) {
    const auto data = given("abc", context);
    CHECK(data->examples(Split::kWhole) == 1);
    CHECK(data->context() == 3);
    CHECK(row(whole(*data).ids, 0) == Ids{'a', 'b', 'c'});
    CHECK(row(whole(*data).targets, 0) == Ids{'b', 'c', kIgnored});
  }
}

TEST_CASE("a longer text is windows that do not overlap, as a split is", "[data]") {
  const auto data = given("abcdefgh", 3);
  CHECK(data->examples(Split::kWhole) == 2);
  CHECK(row(whole(*data).ids, 1) == Ids{'d', 'e', 'f'});
  CHECK(row(whole(*data).targets, 1) == Ids{'e', 'f', 'g'});
  CHECK(given("abcd", 3)->examples(Split::kWhole) == 1);
  CHECK(row(whole(*given("abcd", 3)).targets, 0) == Ids{'b', 'c', 'd'});
}

TEST_CASE("what a text has and what its windows take of it is known", "[data]") {
  const auto tokens = [&](size_t length, int64_t context) {
    return given(std::string(length, 'a'), context)->tokens(Split::kWhole);
  };
  CHECK(tokens(94, 64).used == 64);
  CHECK(tokens(94, 64).all == 94);
  CHECK(tokens(65, 64).used == 65);  // the last one is predicted
  CHECK(tokens(66, 64).used == 64);
  CHECK(tokens(60, 64).used == 60);
}

TEST_CASE("a given text is one split, its tokens those of the tokenizer", "[data]") {
  const auto data = given("abc", 8);
  for (Split split : {Split::kTrain, Split::kValidation, Split::kTest})
    CHECK(data->examples(split) == 0);
  CHECK(data->evaluated() == Split::kWhole);
  CHECK(data->vocabulary() == 256);
  CHECK(data->token_texts() == byte_tokenizer()->token_texts());
  CHECK(data->token_classes() == byte_tokenizer()->token_classes());
  CHECK_THROWS_AS(data->train_batch(1, 0, 0, 1), c10::Error);
}

TEST_CASE("a text of fewer than two tokens is refused", "[data]") {
  for (const char* text : {"", "a"})
    CHECK(error_of<DataError>([&] { given(text, 8); }) ==
          "--text: is too short: of two tokens or more, the first predicts the next");
}

TEST_CASE("words of a given text are masked where those of the data were", "[data]") {
  const WordRules rules{{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}, 1, ""};
  const auto tokenizer = word_tokenizer(rules, {"a", "b", "c"});
  const auto given = [&](const std::string& text, int64_t context) {
    return given_text(
        {.shape = {.vocabulary = 8, .context = context, .pad = 0, .start = 2, .end = 3, .mask = 4},
         .tokenizer = tokenizer},
        {.text = text, .name = "--text"});
  };
  CHECK(error_of<DataError>([&] { given(" ", 8); }) ==
        "--text: is empty: there is no word to be masked");
  const auto one = given("a b x", 64);
  CHECK(one->evaluated() == Split::kWhole);
  CHECK(one->examples(Split::kWhole) == 1);
  CHECK(one->context() == 5);
  CHECK(whole(*one).targets.ge(0).any().item<bool>());  // something is measured
  std::string text;
  for (int n = 0; n < 1000; ++n) text += "a b c x ";
  const auto batch = whole(*given(text, 10));
  CHECK(batch.ids.sizes() == at::IntArrayRef{500, 10});
  CHECK(at::equal(batch.ids.select(1, 0), at::full({500}, 2)));
  CHECK(at::equal(batch.ids.select(1, 9), at::full({500}, 3)));
  const auto chosen = batch.targets.ge(0);
  const auto words = at::tensor({5, 6, 7, 1}).repeat({1000}).view({500, 8});
  const auto hidden = batch.ids.narrow(1, 1, 8), targets = batch.targets.narrow(1, 1, 8);
  CHECK(at::equal(at::where(targets.ge(0), targets, words), words));
  CHECK(at::equal(at::where(targets.ge(0), words, hidden), words));
  // 4,000 words: 600 of them, give or take three standard deviations.
  CHECK(std::abs(chosen.sum().item<int64_t>() - 600) < 68);
  CHECK(std::abs((batch.ids == 4).sum().item<int64_t>() - 480) < 62);
}

TEST_CASE("one text is no example of a model that translates", "[data]") {
  CHECK_THROWS_WITH(
      given_text({.shape = {.vocabulary = 256, .context = 8, .source_vocabulary = 256},
                  .tokenizer = byte_tokenizer()},
                 {.text = "abc", .name = "--text"}),
      "--text: the run's data are texts with their translations, and this is one text; headlab "
      "generate RUN --input FILE translates it");
}

}  // namespace headlab::test_given_text
