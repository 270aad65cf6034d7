// Parallel text: pairs as a model takes them, batches by size, and what is refused.
#include <fmt/format.h>

#include <set>

#include "core/errors.h"
#include "experiments/data/data_description.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_lines {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;

const std::string kPairs = "kind: lines, source: s, target: t";
const std::string kMeasured = ", validation_source: s, validation_target: t";

// Words behind the specials: . ein hund mann (4 to 7) of the source, . a dog man of the target.
std::shared_ptr<DataSource> pairs(const Folder& folder, const std::string& more = "") {
  folder.write("s", "ein mann .\nein hund .\nein mann , ein hund .\n.\n");
  folder.write("t", "a man .\na dog .\na man and a dog .\n. .\n");
  return open(kPairs + more + (more.starts_with(", validation") ? "" : kMeasured), folder.path());
}

std::shared_ptr<DataSource> multi30k() {
  const auto base = shared_folder() / "data/multi30k";
  return open(
      "kind: lines, source: train.de, target: train.en, validation_source: val.de, "
      "validation_target: val.en, test_source: test_2016_flickr.de, test_target: "
      "test_2016_flickr.en",
      base);
}

Ids lengths(const Tensor& t) { return row(t.unsqueeze(0), 0); }

// Sources by which the pairs of a batch are told apart.
std::vector<Ids> sources(const Batch& batch) {
  std::vector<Ids> all;
  for (int64_t b = 0; b < batch.examples(); ++b) all.push_back(row(batch.source, b));
  for (auto& source : all)
    while (source.back() == 0) source.pop_back();
  return all;
}

}  // namespace

TEST_CASE("a pair is source and </s>, and a target between <s> and </s>", "[data]") {
  Folder folder;
  const auto data = pairs(folder);
  CHECK(data->tokenizer()->token_texts() ==
        std::vector<std::string>{"<pad>", "<unk>", "<s>", "</s>", ".", "a", "dog", "man"});
  CHECK(data->source_tokenizer()->token_texts() ==
        std::vector<std::string>{"<pad>", "<unk>", "<s>", "</s>", ".", "ein", "hund", "mann"});
  const auto batch = data->eval_batch(Split::kTrain, 1, 2);
  CHECK(row(batch.source, 0) == Ids{5, 6, 4, 3, 0, 0, 0});
  CHECK(row(batch.source, 1) == Ids{5, 7, 1, 5, 6, 4, 3});
  CHECK(lengths(batch.source_length) == Ids{4, 7});
  CHECK(row(batch.ids, 0) == Ids{2, 5, 6, 4, 0, 0, 0});
  CHECK(row(batch.ids, 1) == Ids{2, 5, 7, 1, 5, 6, 4});
  CHECK(lengths(batch.length) == Ids{4, 7});
  CHECK(row(batch.targets, 0) == Ids{5, 6, 4, 3, kIgnored, kIgnored, kIgnored});
  CHECK(row(batch.targets, 1) == Ids{5, 7, 1, 5, 6, 4, 3});
  CHECK(row(data->eval_batch(Split::kTrain, 3, 1).source, 0) ==
        Ids{4, 3});  // no wider than need be
  const auto shape = data->shape();
  CHECK(shape.vocabulary == 8);
  CHECK(shape.source_vocabulary == 8);
  CHECK(shape.context == 64);
  CHECK(shape.source_context == 64);
  CHECK(std::tuple(shape.pad, shape.start, shape.end) == std::tuple(0, 2, 3));
  CHECK(data->examples(Split::kTrain) == 4);
  CHECK(data->examples(Split::kTest) == 0);
  const fs::path s = folder.path() / "s", t = folder.path() / "t";
  CHECK(data->files() == std::vector{s, t, s, t});
}

TEST_CASE("pairs for validation and test know the words of training", "[data]") {
  Folder folder;
  folder.write("vs", "hund und katze");
  folder.write("vt", "dog and cat\n");
  const auto data = pairs(folder,
                          ", validation_source: vs, validation_target: vt, test_source: vs, "
                          "test_target: vt");
  for (const auto split : {Split::kValidation, Split::kTest}) {
    CHECK(data->examples(split) == 1);
    CHECK(row(data->eval_batch(split, 0, 1).source, 0) == Ids{6, 1, 1, 3});
    CHECK(row(data->eval_batch(split, 0, 1).ids, 0) == Ids{2, 6, 1, 1});
  }
  CHECK(data->files().size() == 6);
}

TEST_CASE("pieces of words are learned from both sides, which have them in common", "[data]") {
  Folder folder;
  const auto data = pairs(folder, ", tokens: bpe, vocabulary: 264");
  CHECK(data->vocabulary() == 264);
  CHECK(data->tokenizer() == data->source_tokenizer());
  const auto texts = data->token_texts();
  CHECK(std::vector(texts.begin(), texts.begin() + 5) ==
        std::vector<std::string>{"<pad>", "<unk>", "<s>", "</s>", "!"});
  CHECK(std::vector(texts.begin() + 260, texts.end()) ==
        std::vector<std::string>{" .", "an", "ei", "man"});
  const auto batch = data->eval_batch(Split::kTrain, 0, 4);
  for (int64_t b = 0; b < 4; ++b) {
    auto source = row(batch.source, b);
    source.resize(batch.source_length[b].item<int64_t>());
    CHECK(source.back() == 3);
    source.pop_back();
    const char* lines[]{"ein mann .", "ein hund .", "ein mann , ein hund .", "."};
    CHECK(data->source_tokenizer()->decode(source) == lines[b]);
  }
  CHECK(pairs(folder, ", tokens: bpe, vocabulary: 9999")->vocabulary() < 300);
  CHECK(error_of<ConfigError>([&] {
          pairs(folder, ", tokens: bpe, vocabulary: 259");
        }).ends_with("data.vocabulary: must be at least 260, is 259"));
}

TEST_CASE("both tokenizers of pairs are kept in a run's description", "[data]") {
  Folder folder;
  const auto description = describe_data(*pairs(folder));
  const auto json = description_json(description);
  const auto again = read_description(nlohmann::ordered_json::parse(json.dump()));
  CHECK(description_json(again) == json);
  CHECK(again.tokenizer->decode({5, 7}) == "a man");
  CHECK(again.source_tokenizer->decode({5, 7}) == "ein mann");
  auto wrong = json;
  wrong["shape"]["source_vocabulary"] = 7;
  CHECK(error_of<DataError>([&] { read_description(wrong); }) ==
        "the tokens of source_tokenizer are 8, the vocabulary is 7");
}

TEST_CASE("batches by size hold what is as long, as many as fit", "[data]") {
  Folder folder;
  std::string source, target;
  for (int64_t n = 0; n < 60; ++n)
    for (auto* side : {&source, &target}) {
      const int64_t words = 1 + (n * (side == &source ? 7 : 11)) % 9;
      for (int64_t w = 0; w < words; ++w) *side += fmt::format("w{} ", n);
      *side += '\n';
    }
  folder.write("s", source), folder.write("t", target);
  const auto data = open(kPairs + kMeasured + ", min_count: 1, context: 10", folder.path());
  for (int64_t positions : {10, 37, 100, 10000}) {
    const int64_t N = data->sized_batches(positions);
    CHECK((positions == 10000) == (N == 1));
    std::vector<std::vector<std::vector<Ids>>> epochs;
    for (int64_t epoch : {0, 1}) {
      std::set<Ids> seen;
      auto& batches = epochs.emplace_back();
      for (int64_t index = epoch * N; index < (epoch + 1) * N; ++index) {
        const auto batch = data->sized_batch(5, index, positions);
        CHECK(batch.examples() * std::max(batch.source.size(1), batch.ids.size(1)) <= positions);
        batches.push_back(sources(batch));
        seen.insert(batches.back().begin(), batches.back().end());
        CHECK(data->sized_batch(5, index, positions).ids.equal(batch.ids));
      }
      CHECK(seen.size() == 60);
    }
    if (N > 4) CHECK(epochs[0] != epochs[1]);
    for (auto& batches : epochs) std::sort(batches.begin(), batches.end());
    CHECK(epochs[0] == epochs[1]);  // the same batches in another order
  }
  CHECK(error_of<ConfigError>([&] {
          data->sized_batches(9);
        }).starts_with("train.max_positions: 9 are fewer than the 10 that line "));
  CHECK_THROWS_AS(data->sized_batch(5, -1, 100), c10::Error);
}

TEST_CASE("Multi30k has the reference's vocabularies, and 217 batches of 2048 positions",
          "[data][golden]") {
  if (shared_folder().empty())
    return skip("no shared data; HEADLAB_SHARED names the folder they lie in");
  const auto data = multi30k();
  CHECK(data->shape().source_vocabulary == 7859);
  CHECK(data->shape().vocabulary == 5921);
  CHECK(data->epoch_examples() == 29000);
  CHECK(data->examples(Split::kValidation) == 1014);
  CHECK(data->examples(Split::kTest) == 1000);
  REQUIRE(data->sized_batches(2048) == 217);
  int64_t pairs = 0, words = 0;
  for (int64_t index = 217; index < 2 * 217; ++index) {
    const auto batch = data->sized_batch(1, index, 2048);
    pairs += batch.examples();
    words += batch.targets.ge(0).sum().item<int64_t>();
    REQUIRE(batch.examples() * std::max(batch.source.size(1), batch.ids.size(1)) <= 2048);
  }
  CHECK(pairs == 29000);
  CHECK(words == 377534 + 29000);
}

TEST_CASE("wrong options and texts of pairs are named with their line", "[data]") {
  Folder folder;
  const auto config_error = [&](const std::string& options) {
    return error_of<ConfigError>([&] { open("kind: lines" + options, folder.path()); });
  };
  CHECK(config_error("") ==
        "f.yaml:1:7: data.source: is needed: the text to be translated\n"
        "f.yaml:1:7: data.target: is needed: the translation of source\n"
        "f.yaml:1:7: data.validation_source: is needed: what training is measured on");
  CHECK(config_error(kPairs.substr(11) + kMeasured + ", test_target: x") ==
        "f.yaml:1:7: data.test_source: is needed where the other of the two texts is named");
  const auto at = [&](const char* name) { return (folder.path() / name).string(); };
  const auto error = [&](std::string_view source, std::string_view target, int64_t context = 9) {
    folder.write("s", source), folder.write("t", target);
    return error_of<DataError>(
        [&] { open(fmt::format("{}{}, context: {}", kPairs, kMeasured, context), folder.path()); });
  };
  CHECK(error("a\nb\n", "a\nb\nc\n") ==
        at("s") + ": has 2 lines and " + at("t") +
            " has 3; each line of one must be the translation of that of the other");
  CHECK(error("a\n\nb\n", "a\nb\nc\n") ==
        at("s") + ":2: is empty; leave the pair out, in both files");
  CHECK(error("a\nb\n", "a\n \t\r\n") ==
        at("t") + ":2: is empty; leave the pair out, in both files");
  CHECK(error("", "") == at("s") + ": is empty");
  CHECK_THAT(error("a\n", "caf\xE9\n"),
             Catch::Matchers::StartsWith(at("t") + ":1: byte 3 (0xE9) is not UTF-8"));
  CHECK(error("a\na b c d\na\na b c d e\n", "a\na\na\na\n", 4) ==
        at("s") +
            ":2: has 4 tokens and its end, but data.context is 4; raise it to 6, or leave "
            "out the 2 pairs of lines that are too long");
  CHECK(error("a b c d\n", "a b c d", 5) == "no error");
  folder.write("s",
               "\xEF\xBB\xBF"
               "ein mann\r\nein hund\r\n"),
      folder.write("t", "a man\na dog\n");
  const auto windows = open(kPairs + kMeasured + ", min_count: 1", folder.path());
  CHECK(windows->source_tokenizer()->token_texts() ==
        std::vector<std::string>{"<pad>", "<unk>", "<s>", "</s>", "ein", "hund", "mann"});
}

}  // namespace headlab::test_lines
