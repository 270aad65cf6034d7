// Weights that are NaN or infinite: every command that opens some names them, and none of them
// crashes or gives numbers.
#include <cmath>
#include <limits>

#include "experiments/files/sha256.h"
#include "tests/command_testing.h"

namespace headlab::testing::test_command_not_finite {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

const std::string kTensor = "blocks.0.attention.q.weight";

// Puts a number into a tensor of a safetensors file.
void put(const fs::path& path, const std::string& tensor, float number) {
  size_t at = 0;
  std::string bytes = read_bytes(path);
  {
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const Json entries = Json::parse(bytes.substr(8, header));
    REQUIRE(entries.at(tensor).at("dtype") == "F32");
    at = 8 + header + entries.at(tensor).at("data_offsets").at(0).get<size_t>();
  }
  std::memcpy(bytes.data() + at, &number, sizeof(number));
  fs::remove(path);
  write_bytes(path, bytes);
}

// The same in a run's last checkpoint, whose sums are right afterwards.
void put_in_run(const fs::path& run, const std::string& tensor, float number) {
  const fs::path weights = run / "ckpt/last/model.safetensors",
                 state = run / "ckpt/last/state.json";
  const std::string before = sha256(read_bytes(weights));
  put(weights, tensor, number);
  std::string text = replaced(read_bytes(state), before, sha256(read_bytes(weights)));
  const std::string seal = ",\n  \"sha256\": \"";
  text = text.substr(0, text.rfind(seal) + seal.size());
  fs::remove(state);
  write_bytes(state, text + sha256(text) + "\"\n}\n");
}

// Says which tensor is lost.
void check_named(const Outcome& outcome, const std::string& tensor = kTensor) {
  INFO("stdout: " << outcome.out << "\nstderr: " << outcome.err);
  CHECK_THAT(outcome.err, Contains(": 1 of ") &&
                              Contains("tensors hold NaN or infinity: " + tensor + " (1 of "));
  CHECK_THAT(outcome.err, !Contains("internal"));
}

TEST_CASE("weights that are not finite are named, and what cannot be measured ends with 5") {
  const Bench bench;
  const std::string run = bench.train({"train.eval_every=0"}).string();
  const float lost = GENERATE(std::nanf(""), std::numeric_limits<float>::infinity());
  put_in_run(run, kTensor, lost);

  const Outcome evaluated = headlab({"eval", run});
  check_named(evaluated);
  CHECK(evaluated.code == 5);
  CHECK_THAT(evaluated.out, Contains("loss nan") && !Contains("-nan"));
  const Outcome json = headlab({"eval", run, "--json"});
  CHECK(json.code == 5);
  CHECK(Json::parse(json.out).at("loss").is_null());

  std::vector<Arguments> measuring{
      {"analyze", run},
      {"analyze", run, "--stats", "all"},
      {"ablate", run, "--batches", "1"},
      {"prune", run, "--count", "1", "--out", (bench / "pruned").string()},
      {"prune", run, "--heads", "0:1", "--out", (bench / "pruned").string()},
      {"prune", run, "--count", "1", "--by", "ablation", "--out", (bench / "pruned").string()},
      {"convert", run, "--to", "collaborative", "--out", (bench / "converted").string()},
      {"convert", run, "--to", "gated", "--out", (bench / "converted").string()},
      {"convert", run, "--to", "mha", "--kv-heads", "1", "--align", "--out",
       (bench / "converted").string()},
      {"generate", run, "--tokens", "3"},
      {"generate", run, "--tokens", "3", "--temperature", "0"}};
  if (std::isinf(lost)) measuring.resize(1);  // what asks is the same for both
  for (const auto& arguments : measuring) {
    INFO(Json(arguments).dump());
    const Outcome outcome = headlab(arguments);
    check_named(outcome);
    CHECK(outcome.code == 5);
    CHECK_THAT(outcome.err, Contains("not finite"));
    CHECK(outcome.out.find("nan") == std::string::npos);
  }
  CHECK_FALSE(fs::exists(bench / "pruned"));
  CHECK_FALSE(fs::exists(bench / "converted"));
  CHECK_FALSE(fs::exists(fs::path(run) / "analysis.h5"));

  // What only moves weights does so, and names them.
  const Outcome exported = headlab({"export", run, (bench / "out").string()});
  check_named(exported);
  // Training ends as diverged, on what was trained and from it.
  const Outcome resumed =
      bench.headlab({"run", "tiny.yaml", "train.eval_every=0", "--resume", run});
  check_named(resumed);
  const Outcome begun =
      bench.headlab({"run", "tiny.yaml", "name=other", "init=" + run, "train.eval_every=0"});
  check_named(begun);
  CHECK(begun.code == 5);
}

TEST_CASE("training that leaves all numbers ends as diverged, whatever gives the weights") {
  // With dropout maps are held whole.
  const auto [attention, dropout] =
      GENERATE(table<std::string, std::string>({{"{kind: entmax}", "0.0"},
                                                {"{kind: entmax, alpha: 2}", "0.1"},
                                                {"{kind: entmax, learn_alpha: true}", "0.1"},
                                                {"{kind: softpick}", "0.0"},
                                                {"{kind: sigmoid}", "0.0"},
                                                {"{kind: sigmoid}", "0.1"},
                                                {"{kind: sink}", "0.0"},
                                                {"{kind: dcmha}", "0.1"},
                                                {"{kind: moh}", "0.0"},
                                                {"{kind: moh}", "0.1"},
                                                {"{kind: reattention, map: entmax}", "0.0"},
                                                {"{kind: switchhead}", "0.1"}}));
  INFO(attention + ", dropout " + dropout);
  const Bench bench;
  const Outcome outcome =
      bench.headlab({"run", "tiny.yaml", "model.attention=" + attention, "model.dropout=" + dropout,
                     "train.lr=1e30", "train.warmup=0", "train.clip=0", "train.steps=20"});
  INFO(outcome.err);
  CHECK(outcome.code == 5);
  CHECK_THAT(outcome.out, Contains("is not finite at step"));
}

TEST_CASE("an import names the tensors that are not finite by their own name and ours") {
  const Bench bench;
  const std::string name = GENERATE("gpt2", "llama_gqa");
  fs::copy(kGolden / "models" / name, bench / "model");
  const std::string theirs = name == "gpt2" ? "transformer.h.0.attn.c_attn.weight"
                                            : "model.layers.0.self_attn.q_proj.weight";
  put(bench / "model/model.safetensors", theirs, std::nanf(""));
  const Outcome imported = bench.headlab({"import", "model", "--out", "taken"});
  check_named(imported, theirs + ", here " + kTensor);
  CHECK(imported.code == 0);
  const std::string inputs = (kGolden / "models" / name / "golden.safetensors").string();
  check_named(bench.headlab({"forward", "taken", inputs, "--out", "made.safetensors"}));
}

}  // namespace
}  // namespace headlab::testing::test_command_not_finite
