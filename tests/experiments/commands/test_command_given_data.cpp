// Imported models that read no text: cut without data, and measured on images, tokens and lines.
#include "tests/command_testing.h"

namespace headlab::test_command_given_data {
namespace {

namespace fs = std::filesystem;
using namespace testing;

const fs::path kModels = kGolden / "models";

class Imported : public Bench {
 public:
  explicit Imported(const std::string& name) {
    succeed({"import", (kModels / name).string(), "--out", "taken"});
  }
  Json succeed(Arguments arguments) const {
    arguments.emplace_back("--json");
    const Outcome outcome = headlab(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return Json::parse(outcome.out);
  }
};

// The logits that a run gives for the inputs of a golden file.
std::vector<float> logits_of(const Bench& bench, const std::string& run, const std::string& name) {
  const SafetensorsFile golden(kModels / name / "golden.safetensors");
  std::vector<TensorEntry> inputs;
  for (const auto& entry : golden.entries())
    if (entry.name.starts_with("in.") && entry.name != "in.targets") inputs.push_back(entry);
  write_safetensors(bench / "in.safetensors", inputs);
  const Outcome outcome =
      bench.headlab({"forward", run, "in.safetensors", "--out", "forward.safetensors"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const SafetensorsFile out(bench / "forward.safetensors");
  const auto* logits = out.find("out.logits");
  REQUIRE(logits != nullptr);
  std::vector<float> values(logits->bytes / sizeof(float));
  std::memcpy(values.data(), logits->data, logits->bytes);
  return values;
}

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t n = 0; n < a.size(); ++n)
    most = std::max(most, std::abs(static_cast<double>(a[n]) - b[n]));
  return most;
}

void check_without_data(const std::string& name) {
  INFO(name);
  const Imported bench(name);
  const std::string head = name == "marian" ? "encoder_self/0:1" : "0:1";
  const auto pruned = bench.succeed({"prune", "taken", "--heads", head, "--slice", "--out", "cut"});
  CHECK(pruned.at("removed") == Json{head});
  CHECK(pruned.at("measured").is_null());
  CHECK(pruned.at("parameters") < pruned.at("parameters_before"));
  CHECK_FALSE(pruned.contains("loss"));
  // The same numbers masked, sliced, and exported with zeros in the head's place.
  bench.succeed({"prune", "taken", "--heads", head, "--out", "masked"});
  bench.succeed({"export", "cut", "layout"});
  bench.succeed({"import", "layout", "--out", "again"});
  const auto whole = logits_of(bench, "taken", name), cut = logits_of(bench, "cut", name);
  CHECK(apart(whole, cut) > 1e-3);
  for (const char* run : {"masked", "again"}) CHECK(apart(logits_of(bench, run, name), cut) < 1e-5);

  const auto gated = bench.succeed({"convert", "taken", "--to", "gated", "--out", "gated"});
  CHECK(gated.at("measured").is_null());
  CHECK(apart(logits_of(bench, "gated", name), whole) < 1e-4);
  CHECK(bench.headlab({"convert", "taken", "--to", "collaborative"})
            .out.find("nothing was measured") != std::string::npos);

  CHECK(bench.succeed({"prune", "taken", "--count", "2", "--by", "random"}).at("removed").size() ==
        2);
  check_refusal(bench.headlab({"prune", "taken", "--count", "2"}), 2,
                {"--by importance", "--heads", "--data"});
  check_refusal(bench.headlab({"prune", "taken", "--heads", head, "--tune", "2", "--out", "on"}), 2,
                {"imported", "--data"});
  for (const char* command : {"eval", "ablate", "analyze"})
    check_refusal(bench.headlab({command, "taken"}), 2, {"imported", "--data"});
  check_refusal(bench.headlab({"ablate", "taken", "--text", "a few words"}), 2,
                {"--text", "--data"});
}

TEST_CASE("models that read no text are pruned, converted and exported without data") {
  check_without_data(GENERATE("vit", "marian"));
}

TEST_CASE("models of text without its tokenizer are cut without data too", "[.slow]") {
  check_without_data(GENERATE("gpt2", "bert_mlm"));
}

// An IDX file of bytes.
std::string idx(const std::vector<uint32_t>& sizes, const std::string& values) {
  std::string bytes{0, 0, 8, static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift);
  return bytes + values;
}

TEST_CASE("an imported vit is measured on images") {
  const Imported bench("vit");
  std::string pixels, labels;
  for (int n = 0; n < 10; ++n) {
    for (int i = 0; i < 28 * 28; ++i) pixels += static_cast<char>(i * (n + 3) % 251);
    labels += static_cast<char>(n);
  }
  write_bytes(bench / "some-images-idx3-ubyte", idx({10, 28, 28}, pixels));
  write_bytes(bench / "some-labels-idx1-ubyte", idx({10}, labels));
  const std::string block =
      "{kind: mnist, images: some-images-idx3-ubyte, labels: some-labels-idx1-ubyte}";
  write_bytes(bench / "images.yaml", "data: " + block + "\n");
  const auto by_file = bench.succeed({"eval", "taken", "--data", "some-images-idx3-ubyte"});
  CHECK(by_file.at("examples") == 2);  // every fifth
  for (const std::string& data : {block, std::string("images.yaml")})
    CHECK(bench.succeed({"eval", "taken", "--data", data}).at("loss") == by_file.at("loss"));
  bench.succeed({"ablate", "taken", "--data", block, "--heads", "0:1"});
  bench.succeed({"analyze", "taken", "--data", block});
  const auto pruned = bench.succeed({"prune", "taken", "--count", "1", "--data", block});
  CHECK(pruned.at("examples") == 2);
  const auto tuned = bench.succeed(
      {"prune", "taken", "--heads", "0:1", "--tune", "1", "--data", block, "--out", "tuned"});
  CHECK(bench.succeed({"eval", "tuned"}).at("split") == "val");
  check_refusal(bench.headlab({"eval", "taken", "--data", "{kind: digits}"}), 3,
                {"height of images is 8, that of the model 28"});
  check_refusal(bench.headlab({"eval", "taken", "--data", "text.txt"}), 2,
                {"text.txt", "images of 28 by 28"});
  check_refusal(bench.headlab({"eval", "taken", "--data", "{kind: mnits}"}), 2,
                {"did you mean 'mnist'"});
}

TEST_CASE("an imported model without a tokenizer is measured on tokens") {
  const Imported bench("gpt2");
  fs::create_directory(bench / "ids");
  std::string tokens;
  for (int n = 0; n < 200; ++n) (tokens += static_cast<char>(n * 7 % 90)) += '\0';
  for (const char* file : {"train.bin", "val.bin"}) write_bytes(bench / "ids" / file, tokens);
  write_bytes(bench / "ids/meta.json", R"({"vocab_size": 97, "dtype": "uint16"})");
  const auto measured = bench.succeed({"eval", "taken", "--data", "ids", "--context", "16"});
  CHECK(measured.at("examples") == 12);
  CHECK(measured.at("tokens") == 12 * 16);
  bench.succeed({"prune", "taken", "--count", "2", "--data", "ids", "--slice", "--out", "cut"});
  write_bytes(bench / "ids/meta.json", R"({"vocab_size": 98, "dtype": "uint16"})");
  check_refusal(bench.headlab({"eval", "taken", "--data", "ids"}), 3,
                {"vocabulary is 98, that of the model 97"});
  check_refusal(
      bench.headlab({"eval", "taken", "--data", "{kind: char, path: text.txt, context: 8}"}), 3,
      {"vocabulary"});
  fs::create_directory(bench / "empty");
  check_refusal(bench.headlab({"eval", "taken", "--data", "empty"}), 3, {"empty", "meta.json"});
  const Imported encoder("bert_mlm");
  fs::copy(bench / "ids", encoder / "ids");
  write_bytes(encoder / "ids/meta.json", R"({"vocab_size": 97, "dtype": "uint16"})");
  check_refusal(encoder.headlab({"eval", "taken", "--data", "ids"}), 2, {"model.kind", "follows"});
}

TEST_CASE("an imported model that translates is measured on lines of two texts") {
  const Imported bench("marian");
  write_bytes(bench / "lines.tsv", "5 6 7\t8 9\n10 11 0\t12 13 14 0\r\n");
  const auto measured = bench.succeed({"eval", "taken", "--data", "lines.tsv"});
  CHECK(measured.at("examples") == 2);
  CHECK(measured.at("tokens") == 3 + 4);  // with the end of each
  bench.succeed({"ablate", "taken", "--data", "lines.tsv", "--heads", "cross/0:1"});
  bench.succeed({"prune", "taken", "--count", "1", "--data", "lines.tsv"});
  bench.succeed({"analyze", "taken", "--data", "lines.tsv"});
  check_refusal(bench.headlab({"eval", "taken", "--data", "lines.tsv", "--beam", "2"}), 2,
                {"--beam", "no tokenizer"});
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"5 6\n", "lines.tsv:1: must be a text, a tab"},
      {"5\t6\n7\t97\n", "lines.tsv:2: '97' is no token of 97"},
      {"5\t6\n7\tword\n", "lines.tsv:2: 'word'"},
      {"5\t\n", "lines.tsv:1: one of the two texts is empty"},
      {"", "is empty"}};
  for (const auto& [text, said] : wrong) {
    INFO(text);
    write_bytes(bench / "lines.tsv", text);
    check_refusal(bench.headlab({"eval", "taken", "--data", "lines.tsv"}), 3, {said});
  }
}

}  // namespace
}  // namespace headlab::test_command_given_data
