// headlab export: models of runs in the layout that transformers opens. What transformers makes of
// them is tested in tests/test_export.py.
#include "tests/command_testing.h"

namespace headlab::test_command_export {
namespace {

namespace fs = std::filesystem;
using namespace testing;

const fs::path kModels = kGolden / "models";

Json exported(const Bench& bench, const std::string& run, const std::string& folder = "out") {
  const Outcome outcome = bench.headlab({"export", run, folder, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

void import_to(const Bench& bench, const fs::path& model, const std::string& run) {
  const Outcome outcome = bench.headlab({"import", model.string(), "--out", run});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
}

TEST_CASE("what was imported and is exported has the same bytes of tensors") {
  const std::string name = GENERATE("gpt2", "llama_gqa", "llama_tied", "bert_mlm", "vit", "marian");
  INFO(name);
  const Bench bench;
  import_to(bench, kModels / name, "taken");
  const Json said = exported(bench, "taken");
  const Json theirs = json_of(kModels / name / "config.json"),
             ours = json_of(bench / "out/config.json");
  CHECK(said.at("architecture") == theirs.at("architectures")[0]);
  CHECK(said.at("difference") == 0);
  const SafetensorsFile before(kModels / name / "model.safetensors"),
      after(bench / "out/model.safetensors");
  REQUIRE(before.entries().size() == after.entries().size());
  for (const auto& entry : before.entries()) {
    INFO(entry.name);
    const auto* found = after.find(entry.name);
    REQUIRE(found != nullptr);
    CHECK(found->shape == entry.shape);
    CHECK(std::string(reinterpret_cast<const char*>(found->data), found->bytes) ==
          std::string(reinterpret_cast<const char*>(entry.data), entry.bytes));
  }
  for (const char* key : {"vocab_size", "hidden_act", "num_key_value_heads", "n_embd",
                          "layer_norm_eps", "rms_norm_eps", "decoder_start_token_id"})
    if (theirs.contains(key)) CHECK(ours.at(key) == theirs.at(key));
  import_to(bench, bench / "out", "again");
  CHECK(read_bytes(bench / "again/ckpt/last/model.safetensors") ==
        read_bytes(bench / "taken/ckpt/last/model.safetensors"));
}

TEST_CASE("weights that are kept in bf16 go out as the numbers that they are") {
  const Bench bench;
  REQUIRE(
      bench
          .headlab({"import", (kModels / "llama_gqa").string(), "--dtype", "bf16", "--out", "half"})
          .code == 0);
  CHECK(exported(bench, "half").at("difference") == 0);
  const SafetensorsFile file(bench / "out/model.safetensors");
  for (const auto& entry : file.entries()) CHECK(entry.dtype == Dtype::kF32);
}

TEST_CASE("a trained model is exported, with heads pruned, sliced, grouped or gated") {
  const Bench bench;
  const std::string llama =
      "model={kind: decoder, layers: 2, d_model: 16, heads: 4, kv_heads: 2, norm: rms, mlp: "
      "swiglu, position: {kind: rope, layout: interleaved}, attention: {kind: mha, scale: 0.3}}";
  const std::string gpt =
      "model={kind: decoder, layers: 2, d_model: 16, heads: 4, attention: {kind: mha, bias: true}}";
  for (const auto& model : {llama, gpt}) {
    INFO(model);
    const std::string run = bench.train({model}).string();
    const std::string cut = (bench / ("cut" + run.substr(run.size() - 14))).string();
    CHECK(exported(bench, run, cut + "-whole").at("difference") < 1e-5);
    for (const bool slice : {false, true}) {
      const auto out = cut + (slice ? "-sliced" : "-masked");
      Arguments prune{"prune", run, "--heads", "0:1,3", "1:0", "--out", out};
      if (slice) prune.emplace_back("--slice");
      REQUIRE(bench.headlab(prune).code == 0);
      CHECK(exported(bench, out, out + "-out").at("difference") < 1e-5);
    }
    const auto gated = cut + "-gated";
    REQUIRE(
        bench.headlab({"convert", run, "--to", "gated", "--init", "0.3", "--out", gated}).code ==
        0);
    CHECK(exported(bench, gated, gated + "-out").at("difference") < 1e-5);
  }
}

TEST_CASE("windows of some layers go out as layer_types, and come in again") {
  const Bench bench;
  const std::string window = GENERATE("[4, 0]", "[0, 4]", "[4]", "[0]");
  const std::string heads = window[1] == '4' ? "qkv_bias: true" : "qk_norm: true";
  INFO(heads << ", " << window);
  const std::string run =
      bench
          .train({"train.steps=1",
                  "model={kind: decoder, layers: 2, d_model: 16, heads: 2, norm: rms, norm_eps: "
                  "1.0e-6, mlp: swiglu, position: rope, window: " +
                      window + ", attention: {kind: mha, " + heads + "}}"})
          .string();
  CHECK(exported(bench, run).at("difference") < 1e-5);
  const Json config = json_of(bench / "out/config.json");
  CHECK(config.at("model_type") == (heads.starts_with("qkv") ? "qwen2" : "qwen3"));
  const auto slides = [&](int layer) {
    return window == "[4]" || window[layer == 0 ? 1 : window.size() - 2] == '4';
  };
  Json types = Json::array();
  for (const int layer : {0, 1})
    types.push_back(slides(layer) ? "sliding_attention" : "full_attention");
  CHECK(config.at("layer_types") == types);
  CHECK(config.at("use_sliding_window") == (window != "[0]"));
  CHECK(config.at("sliding_window") == (window == "[0]" ? Json() : Json(4)));
  import_to(bench, bench / "out", "taken");
  exported(bench, "taken", "again");
  CHECK(json_of(bench / "again/config.json") == config);
}

TEST_CASE("what no class of transformers can be is refused with the reason") {
  const Bench bench;
  const auto refused = [&](const std::string& model, const std::vector<std::string>& parts) {
    const std::string run = bench.train({"train.steps=1", model}).string();
    check_refusal(bench.headlab({"export", run, "out"}), 2, parts);
    CHECK_FALSE(fs::exists(bench / "out"));
  };
  refused("model.attention.kind=moh", {"layer 0 has 'moh' heads", "'mha' of no other kind",
                                       "model.safetensors", "headlab forward"});
  refused("model.attention={kind: gated, inner: entmax}", {"has 'gated' around 'entmax' heads"});
  refused("model.position=rope", {"norm", "rope"});
  refused("model.mlp=swiglu", {"swiglu"});
  refused("model={kind: decoder, layers: 2, d_model: 16, heads: 2, window: [4, 0]}", {"windows"});
  const std::string rope =
      "model={kind: decoder, layers: 2, d_model: 16, heads: 2, norm: rms, mlp: "
      "swiglu, position: rope, window: ";
  refused(rope + "[4, 0]}", {"windows that differ from layer to layer"});
  refused(rope + "[4, 2], attention: {kind: mha, qkv_bias: true}}", {"windows of 4 and of 2"});
  refused("model.kv_heads=1", {"kv_heads"});
  const std::string bottleneck =
      bench
          .train({"train.steps=1", "data={kind: compression, context: 8}", "model.head=bottleneck"})
          .string();
  check_refusal(bench.headlab({"export", bottleneck, "out"}), 2, {"model.head: bottleneck"});
  const std::string run = bench.train({"train.steps=1"}).string();
  fs::create_directory(bench / "full");
  write_bytes(bench / "full/mine", "kept");
  check_refusal(bench.headlab({"export", run, "full"}), 2, {"full", "not empty"});
  CHECK(snapshot(bench / "full").size() == 1);
  fs::create_directory(bench / "empty");
  CHECK(bench.headlab({"export", run, "empty"}).code == 0);
}

}  // namespace
}  // namespace headlab::test_command_export
