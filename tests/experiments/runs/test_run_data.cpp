// What a run keeps of its data, and the data that are opened for its model.
#include "core/errors.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_data.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/hand_built.h"

namespace headlab::test_run_data {
namespace {

using namespace testing;
using Catch::Contains;
using Catch::Matchers::StartsWith;
using Json = nlohmann::ordered_json;

const std::string kText = "to be or not to be, that is the question\n";

std::string text_data(const Folder& folder, const std::string& kind = "char") {
  folder.write("text.txt", kText);
  return "{kind: " + kind + ", path: " + (folder / "text.txt").string() +
         ", context: 3, train_share: 0.5}";
}

// A run whose data are those.
std::filesystem::path run_on(const Folder& folder, const std::string& data) {
  write_hand_built_run(folder / "run", data);
  return folder / "run";
}

}  // namespace

TEST_CASE("a description of data is the same after it was written and read", "[run-data]") {
  Folder folder;
  folder.write_tokens("train.bin", std::vector<uint16_t>(9, 1));
  folder.write_tokens("val.bin", std::vector<uint16_t>(9, 1));
  folder.write("meta.json", R"({"vocab_size": 2, "itos": ["Ro", "."]})");
  for (const std::string& options :
       {"kind: tokens, context: 4, path: " + folder.path().string(), std::string("kind: copy"),
        std::string("kind: induction, symbols: 5")}) {
    INFO(options);
    const auto description = describe_data(*open(options));
    const auto again = read_description(Json::parse(data_text(description)));
    CHECK(description_json(again) == description_json(description));
    CHECK_FALSE(again.tokenizer);
    CHECK(again.shape.vocabulary == description.shape.vocabulary);
    CHECK(again.shape.context == description.shape.context);
    CHECK(again.token_texts == description.token_texts);
    CHECK(again.token_classes == description.token_classes);
  }
  DataDescription image{
      .shape = {.vocabulary = 1, .classes = 10, .channels = 3, .height = 8, .width = 9, .pad = 0}};
  const auto again = read_description(description_json(image)).shape;
  CHECK(std::tuple(again.classes, again.channels, again.height, again.width, again.pad) ==
        std::tuple(10, 3, 8, 9, std::optional<int64_t>(0)));
}

TEST_CASE("a run opens without its data, as the same model with its tokenizer", "[run-data]") {
  for (const char* kind : {"char", "bytes"}) {
    Folder folder;
    const auto path = run_on(folder, text_data(folder, kind));
    const auto before = open_run_and_data(path, at::kCPU);
    REQUIRE(before.data);
    fs::remove(folder / "text.txt");
    fs::rename(path, folder / "moved");
    const auto opened = open_run(folder / "moved", at::kCPU);
    CHECK_FALSE(opened.data);
    CHECK(opened.data_description.shape.context == 3);
    CHECK(opened.data_description.tokenizer->json() == before.data->tokenizer()->json());
    CHECK(opened.data_description.token_texts == before.data->token_texts());
    const auto ids =
        at::tensor(opened.data_description.tokenizer->encode("the", "t").ids).unsqueeze(0);
    CHECK(opened.model->forward({ids}, {}).logits.equal(before.model->forward({ids}, {}).logits));
    CHECK_THROWS_WITH(open_run_and_data(folder / "moved", at::kCPU),
                      Contains("text.txt: cannot be opened: No such file"));
  }
}

TEST_CASE("data that are no longer those of the run are refused", "[run-data]") {
  Folder folder;
  const auto path = run_on(folder, text_data(folder));
  folder.write("text.txt", kText + "more of the same\n");  // another text, the same characters
  CHECK_THROWS_WITH(open_run_and_data(path, at::kCPU), Contains("other tokens now"));
  folder.write("text.txt", kText + kText);
  CHECK_NOTHROW(open_run_and_data(path, at::kCPU));
  auto other = kText;
  std::replace(other.begin(), other.end(), 'q', 'z');  // as many characters
  folder.write("text.txt", other);
  CHECK_THROWS_AS(open_run_and_data(path, at::kCPU), DataError);
}

TEST_CASE("a run of before data.json reads its data, and says so where they are gone",
          "[run-data]") {
  Folder folder;
  const auto path = run_on(folder, text_data(folder));
  fs::remove(path / "data.json");
  const auto opened = open_run(path, at::kCPU);
  CHECK(opened.data_description.tokenizer);
  CHECK(opened.data);
  fs::remove(folder / "text.txt");
  const auto said = error_of<DataError>([&] { open_run(path, at::kCPU); });
  CHECK_THAT(said, StartsWith((folder / "text.txt").string() + ": cannot be opened"));
  CHECK_THAT(said, Contains("made by an older version and keeps nothing of its data"));
}

TEST_CASE("a damaged data.json is refused by its name", "[run-data]") {
  Folder folder;
  const auto path = run_on(folder, text_data(folder));
  const auto whole = Json::parse(read_bytes(path / "data.json"));
  const auto refusal = [&](const std::string& text) {
    write_bytes(path / "data.json", text);
    return error_of<RunError>([&] { open_run(path, at::kCPU); });
  };
  const auto named = StartsWith((path / "data.json").string() + ": is ");
  const auto with = [&](const char* pointer, const Json& value) {
    auto json = whole;
    json[Json::json_pointer(pointer)] = value;
    return refusal(json.dump());
  };
  for (const std::string& text : {std::string(), whole.dump().substr(0, 100), std::string("[]"),
                                  std::string("{}"), std::string("1")}) {
    INFO(text);
    CHECK_THAT(refusal(text), named);
  }
  CHECK_THAT(with("/shape", {}), named);
  CHECK_THAT(with("/shape/vocabulary", "65"), named && Contains("shape.vocabulary must be"));
  CHECK_THAT(with("/shape/context", -1), named && Contains("shape.context must be"));
  CHECK_THAT(with("/shape/context", 1.5), named && Contains("shape.context must be"));
  CHECK_THAT(with("/shape/vocabulary", 3), named && Contains("the vocabulary is 3"));
  CHECK_THAT(with("/tokenizer", 1), named);
  CHECK_THAT(with("/tokenizer/kind", "runes"), named && Contains("'runes'"));
  CHECK_THAT(with("/tokenizer/characters", "ba"), named && Contains("ascending"));
  CHECK_NOTHROW(with("/shape/vocabulary", whole["shape"]["vocabulary"]));
  CHECK(refusal(whole.dump()) == "no error");
}

}  // namespace headlab::test_run_data
