// Texts that a command is given: which examples they are, and what is said of those that do not
// fit.
#include "core/errors.h"
#include "experiments/data/byte_tokenizer.h"
#include "experiments/data/given_text.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_given_text {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;

std::shared_ptr<DataSource> given(const std::string& text, int64_t context) {
  return given_text(byte_tokenizer(), text, "--text", context);
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

}  // namespace headlab::test_given_text
