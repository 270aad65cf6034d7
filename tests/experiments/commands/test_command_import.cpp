// headlab import: models of others as runs; check --model: numbers of a model that lies elsewhere.
#include "tests/command_testing.h"

namespace headlab::test_command_import {
namespace {

namespace fs = std::filesystem;
using namespace testing;

const fs::path kModels = kGolden / "models";

Json imported(const Bench& bench, const fs::path& model, const Arguments& more = {}) {
  Arguments arguments{"import", model.string(), "--out", "taken", "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = bench.headlab(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

TEST_CASE("an imported model is a run that has the authors' numbers") {
  const std::string name = GENERATE("gpt2", "llama_gqa", "llama_tied", "bert_mlm", "vit", "marian");
  INFO(name);
  const Bench bench;
  const Json said = imported(bench, kModels / name);
  CHECK(said.at("run") == fs::canonical(bench / "taken").string());
  CHECK(said.at("dtype") == "fp32");
  const Json manifest = json_of(bench / "taken/manifest.json");
  CHECK(manifest.at("imported").at("from") == (kModels / name).string());
  CHECK(manifest.at("imported").at("files").size() == 2);
  const std::string numbers = (kModels / name / "golden.safetensors").string();
  const Outcome judged = bench.headlab({"check", numbers, "--model", "taken"});
  INFO(judged.out << judged.err);
  CHECK(judged.code == 0);
}

TEST_CASE("numbers of a model that lies elsewhere are judged with --model") {
  const Bench bench;
  fs::copy_file(kModels / "gpt2/golden.safetensors", bench / "numbers.safetensors");
  check_refusal(bench.headlab({"check", "numbers.safetensors"}), 3, {"config.json", "--model"});
  const Outcome own =
      bench.headlab({"check", "numbers.safetensors", "--model", (kModels / "gpt2").string()});
  INFO(own.out << own.err);
  CHECK(own.code == 0);
  const std::string other = (kModels / "llama_gqa").string();
  CHECK(bench.headlab({"check", "numbers.safetensors", "--model", other}).code != 0);
  check_refusal(bench.headlab({"check", "numbers.safetensors", "--model", "nowhere"}), 4,
                {"nowhere"});
}

TEST_CASE("an import says what it leaves out, in lines and in its manifest") {
  const Bench bench;
  CHECK(imported(bench, kModels / "vit").at("notices").empty());
  fs::copy(kModels / "vit", bench / "named");
  auto config = json_of(bench / "named/config.json");
  config["id2label"]["3"] = "three";
  write_bytes(bench / "named/config.json", config.dump());
  const Outcome outcome = bench.headlab({"import", "named", "--out", "again"});
  REQUIRE(outcome.code == 0);
  const std::string notice =
      "id2label is left out: the 10 classes keep their numbers and lose their names";
  CHECK(outcome.out.ends_with("\n" + notice + ".\n"));
  CHECK(json_of(bench / "again/manifest.json").at("imported").at("notices").at(0) == notice);
}

TEST_CASE("imported weights may be kept in bf16, which is half the memory and is not trained") {
  const Bench bench;
  imported(bench, kModels / "gpt2");
  const auto whole = fs::file_size(bench / "taken/ckpt/last/model.safetensors");
  fs::remove_all(bench / "taken");
  CHECK(imported(bench, kModels / "gpt2", {"--dtype", "bf16"}).at("dtype") == "bf16");
  const auto half = fs::file_size(bench / "taken/ckpt/last/model.safetensors");
  CHECK(half < whole * 6 / 10);
  check_refusal(bench.headlab({"run", "tiny.yaml", "dtype=bf16"}), 2, {"dtype", "fp32"});
}

TEST_CASE("shards are read as one file, and what they lack is named") {
  const Bench bench;
  fs::create_directory(bench / "model");
  fs::copy_file(kModels / "gpt2/config.json", bench / "model/config.json");
  const SafetensorsFile whole(kModels / "gpt2/model.safetensors");
  Json map = Json::object();
  std::vector<TensorEntry> parts[2];
  for (const auto& entry : whole.entries()) {
    const size_t part = map.size() % 2;
    map[entry.name] = part == 0 ? "a.safetensors" : "b.safetensors";
    parts[part].push_back(entry);
  }
  const auto index = [&](const Json& weights) {
    write_bytes(bench / "model/model.safetensors.index.json", Json{{"weight_map", weights}}.dump());
  };
  const auto refused = [&](const std::vector<std::string>& said) {
    check_refusal(bench.headlab({"import", "model", "--out", "taken"}), 3, said);
    CHECK_FALSE(fs::exists(bench / "taken"));
  };
  index(map);
  write_safetensors(bench / "model/a.safetensors", parts[0]);
  refused({"b.safetensors"});
  write_safetensors(bench / "model/b.safetensors", parts[1]);
  CHECK(bench.headlab({"import", "model", "--out", "taken"}).code == 0);
  const std::string numbers = (kModels / "gpt2/golden.safetensors").string();
  CHECK(bench.headlab({"check", numbers, "--model", "taken"}).code == 0);
  fs::remove_all(bench / "taken");
  auto fewer = map;
  fewer.erase("transformer.h.0.ln_1.bias");
  index(fewer);
  refused({"transformer.h.0.ln_1.bias"});
  auto moved = map;
  const std::string name = parts[0].front().name;
  moved[name] = "b.safetensors";
  index(moved);
  refused({name});
  moved[name] = "../a.safetensors";
  index(moved);
  refused({"../a.safetensors"});
  write_bytes(bench / "model/model.safetensors.index.json", "{\"weight_map\": [1]}");
  refused({"model.safetensors.index.json"});
}

TEST_CASE("what cannot be imported leaves nothing behind") {
  const Bench bench;
  const auto refused = [&](int code, const std::vector<std::string>& parts) {
    check_refusal(bench.headlab({"import", "model", "--out", "taken"}), code, parts);
    CHECK_FALSE(fs::exists(bench / "taken"));
  };
  refused(3, {"model"});
  fs::create_directory(bench / "model");
  refused(3, {"model", "config.json"});
  fs::copy_file(kModels / "gpt2/config.json", bench / "model/config.json");
  refused(3, {"model.safetensors"});
  write_bytes(bench / "model/pytorch_model.bin", "");
  refused(2, {"pytorch_model.bin", "python"});
  fs::copy_file(kModels / "llama_gqa/model.safetensors", bench / "model/model.safetensors");
  refused(3, {"transformer.", "is missing"});
  const std::string weights = read_bytes(kModels / "gpt2/model.safetensors");
  write_bytes(bench / "model/model.safetensors", weights.substr(0, weights.size() / 2));
  refused(3, {"model.safetensors"});
  write_bytes(bench / "model/model.safetensors", weights);
  write_bytes(bench / "model/config.json", "{\"model_type\": \"gpt2\",");
  refused(3, {"config.json"});
  write_bytes(bench / "taken", "there already");
  check_refusal(bench.headlab({"import", (kModels / "gpt2").string(), "--out", "taken"}), 4,
                {"taken"});
  CHECK(read_bytes(bench / "taken") == "there already");
}

// BPE of some bytes; the others vanish.
Json byte_level(const Json& vocabulary) {
  return {
      {"normalizer", nullptr},
      {"added_tokens", Json::array()},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

class ModelFolder {
 public:
  explicit ModelFolder(const Bench& bench) : folder_(bench / "model") {
    fs::create_directory(folder_);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(kModels / "llama_gqa" / file, folder_ / file);
  }
  fs::path operator/(const char* name) const { return folder_ / name; }

 private:
  fs::path folder_;
};

TEST_CASE("ids that no token has, and tokens that the model has no row for, do not end an import") {
  const Bench bench;
  const ModelFolder model(bench);
  const auto rows = json_of(model / "config.json").at("vocab_size").get<int64_t>();
  Json ids{{"a", 0}, {"b", 1}, {"c", rows - 1}};  // the ids between are none
  write_bytes(model / "tokenizer.json", byte_level(ids).dump());
  CHECK(imported(bench, "model").at("tokenizer") == "bpe");
  const Outcome written = bench.headlab({"generate", "taken", "--prompt", "abc", "--tokens", "0"});
  CHECK(written.code == 0);
  CHECK(written.out == "abc\n");
  fs::remove_all(bench / "taken");

  ids["c"] = rows;
  write_bytes(model / "tokenizer.json", byte_level(ids).dump());
  const Outcome taken = bench.headlab({"import", "model", "--out", "taken"});
  INFO(taken.err);
  CHECK(taken.code == 0);
  CHECK_THAT(taken.err, Catch::Contains("the tokenizer has " + std::to_string(rows + 1) +
                                        " tokens, the model " + std::to_string(rows)));
  CHECK(bench.headlab({"eval", "taken", "--text", "a b a b a b a b a b"}).code == 0);
  check_refusal(bench.headlab({"eval", "taken", "--text", "a b a b c"}), 3,
                {"--text:1: 'c' is token " + std::to_string(rows)});
  fs::remove_all(bench / "taken");

  ids["b"] = rows;  // two tokens of one id
  write_bytes(model / "tokenizer.json", byte_level(ids).dump());
  const Json said = imported(bench, "model");
  CHECK(said.at("tokenizer").is_null());
  CHECK_THAT(said.at("no_tokenizer").get<std::string>(), Catch::Contains("'b' and 'c' have id"));
}

TEST_CASE("a pointer of Git LFS is refused as such, whatever it stands for") {
  const Bench bench;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e"
      "adbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const std::vector<std::string> said{"is a pointer of Git LFS", "git lfs pull"};
  const auto refused = [&](const Arguments& arguments, const std::string& file, int code = 3) {
    auto parts = said;
    parts.push_back(file);
    check_refusal(bench.headlab(arguments), code, parts);
    CHECK_FALSE(fs::exists(bench / "taken"));
  };
  const ModelFolder model(bench);
  write_bytes(bench / "model.gguf", pointer);
  refused({"import", "model.gguf", "--out", "taken"}, "model.gguf");
  const auto spoiled = [&](const char* file) {
    const bool there = fs::exists(model / file);
    const std::string kept = there ? read_bytes(model / file) : "";
    write_bytes(model / file, pointer);
    refused({"import", "model", "--out", "taken"}, file);
    there ? write_bytes(model / file, kept) : static_cast<void>(fs::remove(model / file));
  };
  for (const char* file : {"model.safetensors", "config.json", "generation_config.json",
                           "tokenizer_config.json", "tokenizer.json", "vocab.txt"})
    spoiled(file);
  write_bytes(model / "vocab.json", "{}");
  spoiled("merges.txt");
  fs::remove(model / "vocab.json");
  write_bytes(bench / "text.txt", pointer);
  refused({"run", "tiny.yaml"}, "text.txt");
  write_bytes(bench / "tiny.yaml", pointer);
  refused({"run", "tiny.yaml"}, "tiny.yaml", 2);
  write_bytes(bench / "log.h5", pointer);
  refused({"inspect", "log.h5"}, "log.h5", 4);
}

TEST_CASE("a model's own length of texts goes out as it came in") {
  const Bench bench;
  const ModelFolder model(bench);
  write_bytes(model / "tokenizer.json", byte_level({{"a", 0}, {"b", 1}}).dump());
  write_bytes(model / "tokenizer_config.json", R"({"model_max_length": 48})");
  imported(bench, "model");
  REQUIRE(bench.headlab({"export", "taken", "out"}).code == 0);
  CHECK(json_of(bench / "out/tokenizer_config.json").at("model_max_length") == 48);
}

}  // namespace
}  // namespace headlab::test_command_import
