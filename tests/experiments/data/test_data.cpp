// Data sources: the golden vocabulary and splits, windows, determinism, and what is said when
// something is wrong.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.h"
#include "experiments/text/utf8.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/data_testing.h"

namespace headlab::test_data {
using namespace testing;

namespace {

const fs::path kProject = build::kSourceDir;

std::string data_error(const std::string& options, const fs::path& base) {
  return error_of<DataError>([&] { open(options, base); });
}

std::string config_error(const std::string& options) {
  return error_of<ConfigError>([&] { open(options); });
}

std::shared_ptr<DataSource> shakespeare() {
  return open("kind: char, path: data/tinyshakespeare.txt", kProject / "configs");
}

std::string sha256_uint16(const std::vector<int64_t>& ids) {
  Folder folder;
  folder.write_tokens("ids", std::vector<uint16_t>(ids.begin(), ids.end()));
  const std::string command = "sha256sum < '" + (folder.path() / "ids").string() + "'";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 65> digest{};
  REQUIRE(std::fgets(digest.data(), digest.size(), pipe) != nullptr);
  ::pclose(pipe);
  return digest.data();
}

bool same(const Batch& a, const Batch& b) {
  return a.ids.equal(b.ids) && a.targets.equal(b.targets);
}

// Bytes 0, 1, ..., 199, so that a token is its place: 100 for training, 100 for validation.
std::shared_ptr<DataSource> counting_bytes(const Folder& folder, int64_t context) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i);
  folder.write("count.bin", text);
  return open("kind: bytes, path: count.bin, train_share: 0.5, context: " + std::to_string(context),
              folder.path());
}

// uint16 tokens 0 .. 99 in both splits.
void write_token_folder(const Folder& folder, const std::string& meta) {
  std::vector<uint16_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 0);
  folder.write_tokens("train.bin", tokens);
  folder.write_tokens("val.bin", tokens);
  folder.write("meta.json", meta);
}

}  // namespace

TEST_CASE("char has nanoGPT's vocabulary, ids and splits of tinyshakespeare", "[data][golden]") {
  const auto golden = nlohmann::json::parse(contents_of(kProject / "tests/golden/char.json"));
  const auto data = shakespeare();
  CHECK(data->vocabulary() == 65);
  CHECK(data->token_texts() == golden["vocab"].get<std::vector<std::string>>());
  for (const auto& sample : golden["cases"]) {
    const std::string text = sample["text"];
    CHECK(data->tokenizer()->encode(text, "t").ids == sample["ids"].get<std::vector<int64_t>>());
    CHECK(data->tokenizer()->decode(sample["ids"]) == text);
  }
  for (const std::string unknown : golden["unknown"])
    CHECK_THROWS_AS(data->tokenizer()->encode(unknown, "t"), DataError);

  const auto all = data->tokenizer()
                       ->encode(contents_of(kProject / "configs/data/tinyshakespeare.txt"), "t")
                       .ids;
  const int64_t cut = golden["train"]["count"];
  const std::map<Split, std::vector<int64_t>> splits{
      {Split::kTrain, {all.begin(), all.begin() + cut}},
      {Split::kValidation, {all.begin() + cut, all.end()}}};
  for (const auto& [split, ids] : splits) {
    const auto& expected = golden[split_name(split)];
    CHECK(std::ssize(ids) == expected["count"]);
    CHECK(sha256_uint16(ids) == expected["sha256_uint16_le"].get<std::string>());
    const int64_t windows = data->examples(split);
    CHECK(windows == (std::ssize(ids) - 1) / 64);
    const Batch batch = data->eval_batch(split, 0, windows);
    const auto stream = at::tensor(ids, at::kLong);
    CHECK(batch.ids.flatten().equal(stream.slice(0, 0, windows * 64)));
    CHECK(batch.targets.flatten().equal(stream.slice(0, 1, windows * 64 + 1)));
  }
  CHECK(data->examples(Split::kValidation) == 1742);
  CHECK(data->examples(Split::kTest) == 0);
}

TEST_CASE("full stops and commas are punctuation, separators are separators", "[data]") {
  const auto data = shakespeare();
  const auto classes = data->token_classes();
  REQUIRE(std::ssize(classes) == 65);
  CHECK(std::count(classes.begin(), classes.end(), kPunctuation) == 2);
  for (int64_t id : data->tokenizer()->encode(".,", "t").ids) CHECK(classes[id] == kPunctuation);
  const auto copy = open("kind: copy, symbols: 3");
  CHECK(copy->token_classes() == std::vector<uint8_t>{kWord, kWord, kWord, kSep});
  CHECK(copy->token_texts() == std::vector<std::string>{"0", "1", "2", "<sep>"});
}

TEST_CASE("sources say what they read, as absolute paths", "[data]") {
  CHECK(shakespeare()->files() ==
        std::vector<fs::path>{kProject / "configs/data/tinyshakespeare.txt"});
  CHECK(open("kind: recall")->files().empty());
  Folder folder;
  write_token_folder(folder, R"({"vocab_size": 100})");
  CHECK(open("kind: tokens, path: ., context: 8", folder.path())->files() ==
        std::vector<fs::path>{folder.path() / "meta.json", folder.path() / "train.bin",
                              folder.path() / "val.bin"});
}

TEST_CASE("a batch is a function of its arguments, however an update is divided", "[data]") {
  Folder folder;
  write_token_folder(folder, R"({"vocab_size": 100})");
  const std::string text = "path: " + (kProject / "configs/data/tinyshakespeare.txt").string();
  const std::vector<std::string> all_options{
      "kind: char, " + text,
      "kind: bytes, " + text,
      "kind: tokens, context: 8, path: " + folder.path().string(),
      "kind: induction",
      "kind: copy",
      "kind: recall",
      "kind: first_token"};
  for (const std::string& options : all_options) {
    INFO(options);
    const auto data = open(options);
    const Batch whole = data->train_batch(1337, 5, 0, 12);
    CHECK(whole.ids.sizes() == at::IntArrayRef({12, data->context()}));
    CHECK(whole.targets.sizes() == whole.ids.sizes());
    CHECK(whole.ids.scalar_type() == at::kLong);
    CHECK((whole.ids.ge(0) & whole.ids.lt(data->vocabulary())).all().item<bool>());
    CHECK(whole.targets.ge(0).any().item<bool>());
    CHECK(same(whole, open(options)->train_batch(1337, 5, 0, 12)));
    for (int64_t first : {0, 6}) {
      const Batch half = data->train_batch(1337, 5, first, 6);
      CHECK(half.ids.equal(whole.ids.slice(0, first, first + 6)));
      CHECK(half.targets.equal(whole.targets.slice(0, first, first + 6)));
    }
    CHECK_FALSE(same(whole, data->train_batch(1337, 6, 0, 12)));
    CHECK_FALSE(same(whole, data->train_batch(1338, 5, 0, 12)));
    CHECK_FALSE(same(whole, data->train_batch(1337, 5, 1, 12)));
    const Batch eval = data->eval_batch(Split::kValidation, 0, 4);
    CHECK(same(eval, open(options)->eval_batch(Split::kValidation, 0, 4)));
    const Batch last = data->eval_batch(Split::kValidation, 2, 2);
    CHECK(last.ids.equal(eval.ids.slice(0, 2)));
    CHECK(last.targets.equal(eval.targets.slice(0, 2)));
    CHECK_THROWS_AS(data->eval_batch(Split::kValidation, data->examples(Split::kValidation) - 1, 2),
                    c10::Error);
    CHECK_THROWS_AS(data->train_batch(1, 0, -1, 1), c10::Error);
  }
}

TEST_CASE("training windows start at every place of their split and never leave it", "[data]") {
  Folder folder;
  for (int64_t context : {4, 99}) {
    const auto data = counting_bytes(folder, context);
    std::set<int64_t> starts;
    for (int64_t step = 0; step < 200; ++step) {
      const Batch batch = data->train_batch(1, step, 0, 12);
      CHECK(batch.targets.equal(batch.ids + 1));
      for (int64_t i = 0; i < 12; ++i) {
        const auto ids = row(batch.ids, i);
        CHECK(ids.back() == ids.front() + context - 1);
        starts.insert(ids.front());
      }
    }
    CHECK(*starts.begin() == 0);
    CHECK(*starts.rbegin() == 99 - context);
    CHECK(std::ssize(starts) == 100 - context);
  }
}

TEST_CASE("evaluation windows are the split without overlap", "[data]") {
  Folder folder;
  const auto data = counting_bytes(folder, 9);
  CHECK(data->examples(Split::kValidation) == 11);
  const Batch batch = data->eval_batch(Split::kValidation, 0, 11);
  CHECK(batch.ids.flatten().equal(at::arange(100, 199)));
  CHECK(batch.targets.flatten().equal(at::arange(101, 200)));
  CHECK(counting_bytes(folder, 10)->examples(Split::kValidation) == 9);  // 100 - 1 targets
}

TEST_CASE("tokens are read in both widths, with their texts", "[data]") {
  Folder folder;
  write_token_folder(folder, R"({"vocab_size": 100})");
  const auto narrow = open("kind: tokens, path: ., context: 9", folder.path());
  CHECK(narrow->vocabulary() == 100);
  CHECK_FALSE(narrow->tokenizer());
  CHECK(narrow->token_texts().empty());
  CHECK(narrow->eval_batch(Split::kValidation, 0, 11).ids.flatten().equal(at::arange(99)));

  folder.write_tokens("train.bin", std::vector<uint32_t>(20, 70000));
  folder.write_tokens("val.bin", std::vector<uint32_t>{0, 1, 70000, 1, 0});
  folder.write_tokens("test.bin", std::vector<uint32_t>{1, 1, 1, 0, 0});
  folder.write("meta.json", R"({"vocab_size": 70001, "dtype": "uint32", "tokenizer": "own"})");
  const auto wide = open("kind: tokens, path: ., context: 4", folder.path());
  CHECK(row(wide->eval_batch(Split::kValidation, 0, 1).ids, 0) ==
        std::vector<int64_t>{0, 1, 70000, 1});
  CHECK(row(wide->eval_batch(Split::kTest, 0, 1).ids, 0) == std::vector<int64_t>{1, 1, 1, 0});
  CHECK(wide->files().size() == 4);

  folder.write_tokens("train.bin", std::vector<uint16_t>{0, 1, 2, 0, 1});
  for (const char* name : {"val.bin", "test.bin"})
    folder.write_tokens(name, std::vector<uint16_t>{2, 1, 0, 0, 1});
  folder.write("meta.json", R"({"vocab_size": 3, "itos": ["Ro", "meo", "."]})");
  const auto named = open("kind: tokens, path: ., context: 4", folder.path());
  CHECK(named->token_texts() == std::vector<std::string>{"Ro", "meo", "."});
  CHECK(named->token_classes() == std::vector<uint8_t>{kWord, kWord, kPunctuation});
}

TEST_CASE("wrong options of data are named with their place", "[data]") {
  CHECK(config_error("kind: char") == "f.yaml:1:7: data.path: is needed: the text file");
  CHECK(config_error("kind: tokens") ==
        "f.yaml:1:7: data.path: is needed: the directory of the token files");
  CHECK(config_error("kind: bytes, path: x, train_share: 1.0") ==
        "f.yaml:1:43: data.train_share: must be in (0, 1), is 1.0");
  CHECK(config_error("kind: bytes, path: x, train_share: 0") ==
        "f.yaml:1:43: data.train_share: must be in (0, 1), is 0");
  CHECK(config_error("kind: copy, context: 0") ==
        "f.yaml:1:29: data.context: must be at least 1, is 0");
  CHECK(config_error("kind: copy, symbols: 1") ==
        "f.yaml:1:29: data.symbols: must be in [2, 16777216], is 1");
  CHECK(config_error("kind: copy, context: 7") ==
        "f.yaml:1:29: data.context: must be even: a string, the separator, all but the last of the "
        "string again");
  CHECK(config_error("kind: induction, context: 7") ==
        "f.yaml:1:34: data.context: must be at least 8: periods start at context/8");
  CHECK(config_error("kind: first_token, context: 1") ==
        "f.yaml:1:36: data.context: must be at least 2: one token would be its own first");
  CHECK(config_error("kind: recall, pairs: 20, symbols: 39") ==
        "f.yaml:1:7: data.context: must be at least 4 tokens a pair, and there are 20 pairs\n"
        "f.yaml:1:42: data.symbols: must be at least 2 a pair, and there are 20 pairs");
  CHECK(config_error("kind: chars, path: x").find("data.kind: must be one of") !=
        std::string::npos);
  CHECK(error_of<ConfigError>([] { data_kind("chars"); }) ==
        "no kind of data is called 'chars'; did you mean 'char'?");
  CHECK(error_of<ConfigError>([] { split_named("valid"); }) ==
        "no split is called 'valid': it is train, val or test");
  CHECK(split_named("val") == Split::kValidation);
  KindBlock unwritten(data_registry(), "char");
  CHECK(error_of<ConfigError>([&] { open_data(unwritten); }) == "path: is needed: the text file");
}

TEST_CASE("a text may have more characters than two bytes can number", "[data]") {
  Folder folder;
  std::string text;
  for (char32_t c = 0x20000; c < 0x30100; ++c) text += encode_utf8(c);  // 65,792 of them
  folder.write("many", text);
  const auto data = open("kind: char, path: many, context: 16", folder.path());
  CHECK(data->vocabulary() == 0x10100);
  const auto last = data->eval_batch(Split::kValidation, data->examples(Split::kValidation) - 1, 1);
  CHECK(last.targets.max().item<int64_t>() > 0xFFFF);
  CHECK(data->token_texts().at(0x100FF) == encode_utf8(0x300FF));
}

TEST_CASE("wrong texts are named with what to do", "[data]") {
  Folder folder;
  const std::string at = folder.path().string();
  folder.write("empty", "");
  folder.write("short", std::string(90, 'a'));
  folder.write("latin1", "caf\xE9 au lait");
  for (const std::string kind : {"kind: char", "kind: bytes"}) {
    CHECK(data_error(kind + ", path: gone", folder.path()) ==
          at + "/gone: cannot be opened: No such file or directory");
    CHECK(data_error(kind + ", path: .", folder.path()) == at + "/: is not a regular file");
    CHECK(data_error(kind + ", path: empty", folder.path()) ==
          at + "/empty: is empty; data.path must name a text");
    CHECK(data_error(kind + ", path: short, context: 9", folder.path()) ==
          at + "/short: 9 tokens for split val, but a window takes context + 1 = 10; use a smaller "
               "context or a longer text");
    CHECK(data_error(kind + ", path: short, context: 81", folder.path()) ==
          at + "/short: 81 tokens for split train, but a window takes context + 1 = 82; use a "
               "smaller context or a longer text");
    CHECK(data_error(kind + ", path: short, context: 8", folder.path()) == "no error");
  }
  CHECK(data_error("kind: char, path: latin1", folder.path()) ==
        at + "/latin1: byte 3 (0xE9) is not UTF-8; convert the text, or read it with kind bytes");
}

TEST_CASE("characters and bytes are those of the file, its byte order mark is one of bytes alone",
          "[data]") {
  Folder folder;
  folder.write("t", "\xEF\xBB\xBF" + std::string("a\r\nb\r\na\r\nb\r\n"));
  const auto chars = open("kind: char, path: t, context: 1, train_share: 0.5", folder.path());
  CHECK(chars->token_texts() == std::vector<std::string>{"\n", "\r", "a", "b"});
  CHECK(row(chars->eval_batch(Split::kTrain, 0, 1).ids, 0) == std::vector<int64_t>{2});
  const auto bytes = open("kind: bytes, path: t, context: 4, train_share: 0.5", folder.path());
  CHECK(row(bytes->eval_batch(Split::kTrain, 0, 1).ids, 0) ==
        std::vector<int64_t>{0xEF, 0xBB, 0xBF, 'a'});
}

TEST_CASE("a file of another format is no text, and for kind bytes it is bytes", "[data]") {
  Folder folder;
  const std::string gzip = "\x1F\x8B\x08" + std::string(200, '\x07');
  for (const std::string kind : {"char", "words"}) {
    folder.write("t", gzip);
    CHECK_THAT(data_error("kind: " + kind + ", path: t, context: 8", folder.path()),
               Catch::Contains("t: is a gzip file, not a text in UTF-8; gunzip -c "));
    folder.write("t", "\xFF\xFE" + std::string("h\0i\0", 4));
    CHECK_THAT(data_error("kind: " + kind + ", path: t, context: 8", folder.path()),
               Catch::Contains("t: is text in UTF-16") && Catch::Contains("iconv"));
  }
  folder.write("t", gzip);
  CHECK(open("kind: bytes, path: t, context: 4", folder.path())->vocabulary() == 256);
}

TEST_CASE("wrong token files are named with the place", "[data]") {
  Folder folder;
  const std::string at = folder.path().string() + "/";
  const std::string options = "kind: tokens, path: ., context: 9";
  CHECK(data_error(options, folder.path()) ==
        at + "meta.json: cannot be opened: No such file or directory");
  const std::vector<std::pair<std::string, std::string>> metas{
      {"[1]", "is not a JSON object"},
      {"{", "is not a JSON object"},
      {"", "is not a JSON object"},
      {"{}", "vocab_size must be an integer from 1 to 2^32"},
      {R"({"vocab_size": 0})", "vocab_size must be an integer from 1 to 2^32"},
      {R"({"vocab_size": 1e3})", "vocab_size must be an integer from 1 to 2^32"},
      {R"({"vocab_size": 18446744073709551615})", "vocab_size must be an integer from 1 to 2^32"},
      {R"({"vocab_size": 9, "dtype": "int16"})", "dtype must be \"uint16\" or \"uint32\""},
      {R"({"vocab_size": 65537})", "uint16 cannot hold vocab_size 65537; is dtype uint32?"},
      {R"({"vocab_size": 2, "itos": [1, 2]})", "itos must be a list of texts"},
      {R"({"vocab_size": 2, "itos": ["a"]})", "itos has 1 texts, vocab_size is 2"}};
  for (const auto& [meta, what] : metas) {
    write_token_folder(folder, meta);
    CHECK(data_error(options, folder.path()) == fmt::format("{}meta.json: {}", at, what));
  }

  write_token_folder(folder, R"({"vocab_size": 97})");
  CHECK(data_error(options, folder.path()) ==
        at + "train.bin: byte 194: token 97 does not fit vocab_size 97; correct vocab_size or "
             "dtype in meta.json");
  write_token_folder(folder, R"({"vocab_size": 100})");
  folder.write("val.bin", "odd");
  CHECK(data_error(options, folder.path()) ==
        at + "val.bin: 3 bytes are no whole number of 2-byte tokens; it is truncated, or dtype in "
             "meta.json is wrong");
  folder.write("val.bin", "");
  CHECK(data_error(options, folder.path()) ==
        at + "val.bin: 0 tokens for split val, but a window takes context + 1 = 10; use a smaller "
             "context or a longer text");
  fs::remove(folder.path() / "val.bin");
  CHECK(data_error(options, folder.path()) ==
        at + "val.bin: cannot be opened: No such file or directory");
}

}  // namespace headlab::test_data
