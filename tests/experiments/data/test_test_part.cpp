// The test part of the data: a law over every kind, and what is said of one that cannot be had.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.h"
#include "experiments/data/data_description.h"
#include "experiments/data/test_part.h"
#include "experiments/files/config_schema.h"
#include "experiments/files/field_table.h"
#include "experiments/runs/run_data.h"
#include "tests/catch.h"
#include "tests/images_testing.h"

namespace headlab::test_test_part {
namespace {

using namespace testing;

constexpr int64_t kRecord = 3073;  // of CIFAR-10

// Numbers of three digits, a line each: "0 4 1". No two windows are alike, and a small part of the
// text has all of its words.
std::string digits(int first, int count) {
  std::string text;
  for (int n = first; n < first + count; ++n)
    text += fmt::format("{} {} {}\n", n / 100, n / 10 % 10, n % 10);
  return text;
}

std::string counted_lines(int first, int count) {
  std::string text;
  for (int n = first; n < first + count; ++n) {
    for (int word = 0; word < 1 + n % 5; ++word)
      text += "n" + std::to_string(n) + (word < n % 5 ? " " : "\n");
  }
  return text;
}

// Options of every kind, with the files that they read; and of those whose test part is their own.
struct AllData {
  Folder folder;
  std::map<std::string, std::vector<std::string>> cut, own;  // by kind

  AllData() {
    folder.write("text", digits(0, 400));
    folder.write("other", digits(400, 60));
    folder.write("tests", digits(460, 40));
    folder.write("more", digits(0, 500));
    folder.write("short", "0 4 1\n");
    folder.write("s", counted_lines(0, 40)), folder.write("t", counted_lines(1000, 40));
    folder.write("vs", counted_lines(40, 20)), folder.write("vt", counted_lines(1040, 20));
    folder.write("ts", counted_lines(60, 9)), folder.write("tt", counted_lines(1060, 9));
    write_images(folder, 30);
    const auto write_part = [&](const std::string& prefix, int first) {
      folder.write(prefix + "images", idx_header({10, 2, 3}) + counting(60, 256, 6 * first));
      folder.write(prefix + "labels", idx_header({10}) + counting(10, 10));
    };
    write_part("val_", 30), write_part("test_", 40);
    for (int file = 0; file < 6; ++file) {
      std::string bytes;
      for (int r = 0; r < 4; ++r) bytes += '\1' + counting(kRecord - 1, 256, 4 * file + r);
      folder.write(file < 5 ? "data_batch_" + std::to_string(file + 1) + ".bin" : "test_batch.bin",
                   bytes);
    }
    for (const std::string at : {"ids", "ids_with_test"}) {
      fs::create_directory(folder / at);
      std::vector<uint16_t> ids(900);
      std::iota(ids.begin(), ids.end(), 0);
      folder.write_tokens(at + "/train.bin", std::vector<uint16_t>(ids.begin(), ids.end() - 400));
      folder.write_tokens(at + "/val.bin", std::vector<uint16_t>(ids.end() - 400, ids.end() - 200));
      if (at == "ids_with_test")
        folder.write_tokens(at + "/test.bin", std::vector<uint16_t>(ids.end() - 200, ids.end()));
      folder.write(at + "/meta.json", R"({"vocab_size": 900})");
    }
    for (const std::string at : {"arrays", "arrays_with_test"}) {
      folder.write_arrays(at, "train", 0, 100), folder.write_arrays(at, "validation", 100, 60);
      if (at == "arrays_with_test") folder.write_arrays(at, "test", 160, 20);
    }
    fs::create_directory(folder / "known");
    folder.write("known/data.json",
                 data_text(describe_data(*open("kind: words, path: more", folder.path()))));

    const std::string windows = ", context: 8, train_share: 0.7";
    cut["char"] = cut["bytes"] = {"path: text" + windows};
    cut["words"] = {"path: text" + windows, "path: text, context: 8, validation: other",
                    "path: text, objective: masked" + windows};
    cut["text"] = {"path: text, tokenizer: known" + windows};
    own["words"] = {"path: text, test: tests" + windows,
                    "path: text, test: tests, objective: masked" + windows};
    own["text"] = {"path: text, test: tests, tokenizer: known" + windows};
    cut["tokens"] = {"path: ids, context: 8"}, own["tokens"] = {"path: ids_with_test, context: 8"};
    cut["arrays"] = {"path: arrays"}, own["arrays"] = {"path: arrays_with_test"};
    cut["lines"] = {
        "source: s, target: t, validation_source: vs, validation_target: vt, tokens: bpe, "
        "vocabulary: 265"};
    own["lines"] = {cut["lines"][0] + ", test_source: ts, test_target: tt"};
    cut["mnist"] = {"images: images, labels: labels",
                    "images: images, labels: labels, validation_images: val_images, "
                    "validation_labels: val_labels"};
    own["mnist"] = {cut["mnist"][0] + ", test_images: test_images, test_labels: test_labels",
                    cut["mnist"][1] + ", test_images: test_images, test_labels: test_labels"};
    cut["cifar10"] = {"path: ."};
    cut["digits"] = {"{}"};
    for (const std::string& kind : data_registry().names()) {
      if (kind == "none" || cut.contains(kind)) continue;
      own[kind] = {"eval_examples: 12", "eval_examples: 12, train_examples: 20"};
    }
  }

  std::shared_ptr<DataSource> open_kind(const std::string& kind, const std::string& options,
                                        const std::string& test = "") const {
    const auto more = options == "{}" ? "" : ", " + options;
    return open("kind: " + kind + more + (test.empty() ? "" : ", test: " + test), folder.path());
  }
};

const AllData& all_data() {
  static const AllData all;
  return all;
}

bool same(const Batch& a, const Batch& b) {
  for (const auto input : {&Batch::ids, &Batch::targets, &Batch::length, &Batch::image,
                           &Batch::source, &Batch::source_length}) {
    const Tensor &one = a.*input, &other = b.*input;
    if (one.defined() != other.defined() || (one.defined() && !one.equal(other))) return false;
  }
  return true;
}

using Numbers = std::vector<double>;

// All numbers of an example.
Numbers numbers_of(const DataSource& data, Split split, int64_t n) {
  const auto batch = data.eval_batch(split, n, 1);
  Numbers all;
  for (const auto input : {&Batch::ids, &Batch::targets, &Batch::image, &Batch::source})
    if (const Tensor& t = batch.*input; t.defined()) {
      const auto flat = t.flatten().to(at::kDouble);
      all.insert(all.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
  return all;
}

// What an example is about, whatever was masked in it.
Numbers content_of(const DataSource& data, Split split, int64_t n) {
  const auto batch = data.eval_batch(split, n, 1);
  auto content = batch.image.defined()    ? batch.image
                 : batch.source.defined() ? batch.source
                 : data.shape().mask      ? at::where(batch.targets.ge(0), batch.targets, batch.ids)
                                          : batch.ids;
  content = content.flatten().to(at::kDouble);
  return {content.data_ptr<double>(), content.data_ptr<double>() + content.numel()};
}

template <class Of>
std::vector<Numbers> each(const DataSource& data, Split split, Of of) {
  std::vector<Numbers> all;
  for (int64_t n = 0; n < data.examples(split); ++n) all.push_back(of(data, split, n));
  return all;
}

void check_training_is_the_same(const DataSource& a, const DataSource& b) {
  CHECK(a.vocabulary() == b.vocabulary());
  CHECK(a.token_texts() == b.token_texts());
  CHECK(a.files() == b.files());
  CHECK(&a.task() == &b.task());
  CHECK(a.examples(Split::kTrain) == b.examples(Split::kTrain));
  REQUIRE(a.epoch_examples() == b.epoch_examples());
  for (int64_t step = 0; step < 3; ++step)
    if (a.epoch_examples() > 0)
      CHECK(same(a.epoch_batch(7, 5 * step, 5), b.epoch_batch(7, 5 * step, 5)));
    else
      CHECK(same(a.train_batch(7, step, 0, 5), b.train_batch(7, step, 0, 5)));
  REQUIRE(a.sized_batches(64) == b.sized_batches(64));
  for (int64_t n = 0; n < a.sized_batches(64); ++n)
    CHECK(same(a.sized_batch(7, n, 64), b.sized_batch(7, n, 64)));
}

// No two examples of different splits are about the same.
void check_splits_share_nothing(const DataSource& data) {
  std::map<Numbers, Split> seen;
  for (const Split split : {Split::kTrain, Split::kValidation, Split::kTest})
    for (const auto& content : each(data, split, content_of))
      CHECK(seen.emplace(content, split).first->second == split);
}

TEST_CASE("every kind of data gives a test part, and none but where it is asked for", "[data]") {
  for (const std::string& kind : data_registry().names()) {
    INFO(kind);
    const auto options = data_kind(kind).options();
    CHECK((dynamic_cast<TestPartOption*>(options.get()) != nullptr) == (kind != "none"));
    CHECK((all_data().cut.contains(kind) || all_data().own.contains(kind)) == (kind != "none"));
    const auto keys = describe_block(*options);
    CHECK(std::count_if(keys.begin(), keys.end(), [](const auto& key) {
            return key.name == "test" && key.default_text.empty();
          }) == (kind != "none"));
    KindBlock block(data_registry(), kind);
    CHECK_FALSE(asks_for_test(block));
    CHECK_FALSE(block.write().find("test"));  // so a run without it is the run that it was
  }
}

TEST_CASE("a part that is too short is named by its own file", "[data]") {
  const auto complaint = [](const std::string& kind, const std::string& more) -> std::string {
    try {
      all_data().open_kind(kind, "path: text, context: 8, " + more);
    } catch (const DataError& e) {
      return e.what();
    }
    return "";
  };
  const auto named = Catch::Matchers::StartsWith((all_data().folder / "short").string() + ": ");
  for (const std::string part : {"validation: short", "validation: other, test: short"}) {
    CHECK_THAT(complaint("words", part), named);
    CHECK_THAT(complaint("words", part + ", objective: masked"), named);
    CHECK_THAT(complaint("text", part + ", tokenizer: known"), named);
  }
}

TEST_CASE("a share of the examples is cut from validation, and training stays as it is", "[data]") {
  for (const auto& [kind, all_options] : all_data().cut)
    for (const auto& options : all_options) {
      INFO(kind << " " << options);
      const auto whole = all_data().open_kind(kind, options);
      const auto data = all_data().open_kind(kind, options, "0.1");
      CHECK(whole->examples(Split::kTest) == 0);
      const auto examples = whole->examples(Split::kTrain) + whole->examples(Split::kValidation);
      CHECK(data->examples(Split::kTest) == std::llround(0.1 * static_cast<double>(examples)));
      check_training_is_the_same(*whole, *data);
      check_splits_share_nothing(*data);

      // Together they are the validation that there was.
      auto parts = each(*data, Split::kValidation, numbers_of);
      auto before = each(*whole, Split::kValidation, numbers_of);
      for (auto& example : each(*data, Split::kTest, numbers_of)) parts.push_back(example);
      const bool in_order = parts == before;
      CHECK(in_order == (whole->tokens(Split::kValidation).all > 0));
      std::ranges::sort(parts), std::ranges::sort(before);
      CHECK(parts == before);
      const auto sum = [&](int64_t SplitTokens::*count) {
        return data->tokens(Split::kValidation).*count + data->tokens(Split::kTest).*count;
      };
      CHECK(sum(&SplitTokens::used) == whole->tokens(Split::kValidation).used);
      CHECK(sum(&SplitTokens::all) == whole->tokens(Split::kValidation).all);
    }
}

TEST_CASE("a batch of a part has the examples that it has one by one", "[data]") {
  for (const auto& [kind, all_options] : all_data().cut) {
    INFO(kind);
    const auto data = all_data().open_kind(kind, all_options[0], "0.1");
    for (const Split split : {Split::kValidation, Split::kTest}) {
      std::vector<Batch> single;
      for (int64_t n = 0; n < data->examples(split); ++n)
        single.push_back(data->eval_batch(split, n, 1));
      CHECK(same(data->eval_batch(split, 0, data->examples(split)),
                 joined(single, data->shape().pad.value_or(0))));
      CHECK_THROWS_AS(data->eval_batch(split, 1, data->examples(split)), c10::Error);
      CHECK_THROWS_AS(data->eval_batch(split, -1, 1), c10::Error);
    }
  }
}

TEST_CASE("data with a test part of their own give that, and their splits stay as they are",
          "[data]") {
  for (const auto& [kind, all_options] : all_data().own)
    for (const auto& options : all_options) {
      INFO(kind << " " << options);
      const bool has_file = options.find("test: tests") != options.npos;
      const auto plain = all_data().open_kind(kind, options);
      REQUIRE(plain->examples(Split::kTest) > 0);
      check_splits_share_nothing(*plain);
      if (has_file) continue;
      for (const std::string test : {"own", "0.1"}) {
        const auto data = all_data().open_kind(kind, options, test);
        check_training_is_the_same(*plain, *data);
        for (const Split split : {Split::kValidation, Split::kTest})
          CHECK(each(*data, split, numbers_of) == each(*plain, split, numbers_of));
      }
    }
}

TEST_CASE("a synthetic test part is a fresh draw, as long as an evaluation", "[data]") {
  for (const auto& [kind, options] : all_data().own) {
    if (all_data().cut.contains(kind)) continue;
    INFO(kind);
    const auto data = all_data().open_kind(kind, options[0], "0.05");
    CHECK(data->examples(Split::kTest) == 12);
    std::set<Numbers> seen;
    for (const auto& content : each(*data, Split::kTest, content_of)) seen.insert(content);
    CHECK(seen.size() == 12);
    for (const uint64_t seed : {0, 1, 2, 3, 1337}) {  // the first ones number the splits
      const auto batch = data->train_batch(seed, 0, 0, 64);
      for (int64_t i = 0; i < 64; ++i) {
        const auto ids = row(batch.ids, i);
        CHECK(seen.count(Numbers(ids.begin(), ids.end())) == 0);
      }
    }
  }
}

TEST_CASE("the pairs of a part are written as in their file", "[data]") {
  const auto data = all_data().open_kind("lines", all_data().cut.at("lines")[0], "0.1");
  REQUIRE(data->examples(Split::kTest) == 6);  // of 20 that validated: every third or fourth
  CHECK(data->written(Split::kTest, 0) == "n1043 n1043 n1043 n1043");  // line 4 is n1043
  CHECK(data->written(Split::kTest, 5) == "n1059 n1059 n1059 n1059 n1059");
  CHECK(data->written(Split::kValidation, 0) == "n1040");
  CHECK(data->written(Split::kTrain, 0) == "n1000");
}

std::string refusal(const std::string& kind, const std::string& options, const std::string& test) {
  return error_of<ConfigError>([&] { all_data().open_kind(kind, options, test); });
}

TEST_CASE("a test part that cannot be had is refused with its place", "[data]") {
  const std::string text = "path: text, context: 8, train_share: 0.7";
  CHECK(refusal("char", text, "0") == "f.yaml:1:68: data.test: must be in (0, 1), is 0");
  CHECK(refusal("char", text, "1.5") == "f.yaml:1:68: data.test: must be in (0, 1), is 1.5");
  for (const char* no_share : {"own", "true", "[0.05]"})
    CHECK(refusal("char", text, no_share) ==
          "f.yaml:1:68: data.test: must be a share of all examples, above 0 and below 1");
  CHECK(refusal("recall", "symbols: 64", "many") ==
        "f.yaml:1:41: data.test: must be a share of all examples, above 0 and below 1, or own, the "
        "data's own test part");
  CHECK(refusal("words", text, "2") == "f.yaml:1:69: data.test: must be in (0, 1), is 2");
  CHECK(refusal("tokens", "path: ids, context: 8", "own") ==
        "f.yaml:1:51: data.test: the data have no test part of their own; name a share, such as "
        "0.05");
  CHECK(refusal("tokens", "path: ids, context: 8", "0.3") ==
        "f.yaml:1:51: data.test: a share of 0.3 of the 86 examples is 26, and the test part is "
        "taken from validation, which has 24; name a smaller share, or give validation more");
  CHECK(
      refusal("tokens", "path: ids, context: 8", "0.005") ==
      "f.yaml:1:51: data.test: a share of 0.005 of the 86 examples is less than one example; name "
      "a larger share");
  CHECK(refusal("mnist", "images: images, labels: labels, test_images: test_images", "own") ==
        "f.yaml:1:7: data.test_labels: is needed: images and labels for test come together");
  CHECK(refusal("none", "context: 8", "0.05").find("data.test: unknown key") != std::string::npos);
}

TEST_CASE("the schema of a test part has its forms", "[data]") {
  const auto schema = [](const std::string& kind) {
    const auto options = data_kind(kind).options();
    return nlohmann::json::parse(schema_of(*options))["properties"]["test"];
  };
  CHECK(schema("char")["type"] == "number");
  CHECK(schema("char")["exclusiveMaximum"] == 1);
  CHECK(schema("recall")["allOf"][1]["then"]["type"] == "number");
  CHECK(schema("recall")["allOf"][0]["then"].dump() == R"({"enum":["own"]})");
  CHECK(schema("words")["allOf"][0]["then"].dump() == R"({"type":"string"})");
}

TEST_CASE("a test part reads back as it was written", "[data]") {
  for (const auto& [kind, options, test] : {std::tuple("char", "path: text, context: 8", "0.05"),
                                            {"recall", "symbols: 64", "own"},
                                            {"words", "path: text, context: 8", "tests"},
                                            {"words", "path: text", "0.25"}}) {
    INFO(kind << " " << test);
    DataConfig config;
    read_config(config, parse_config("data: {kind: " + std::string(kind) + ", " + options +
                                         ", test: " + test + "}",
                                     "f.yaml", all_data().folder.path()));
    CHECK(asks_for_test(config.data));
    DataConfig again;
    const auto written = write_block(config);
    read_config(again, written);
    CHECK(write_block(again) == written);
    CHECK(asks_for_test(again.data));
    const auto& now = *written.find("data")->find("test");
    CHECK(now.text == (test == std::string("tests") ? (all_data().folder / "tests").string()
                                                    : std::string(test)));
  }
}

}  // namespace
}  // namespace headlab::test_test_part
