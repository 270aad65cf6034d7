// GPT-2, LLaMA, BERT, ViT and Marian of the authors' code.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/pretrained/hugging_face.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_published_models {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(build::kSourceDir) / "tests/golden/models";
const std::vector<std::string> kNames{"gpt2",     "llama_gqa", "llama_tied",
                                      "bert_mlm", "vit",       "marian"};

TEST_CASE("models of the authors' code: states, maps, losses, gradients, greedy ids and beams") {
  const auto name = GENERATE(from_range(kNames));
  INFO(name);
  const auto judged = judge_case(kModels / name / "golden.safetensors", at::kCPU, Backend::kAuto);
  CHECK(judged.verdicts.size() > 30);
  for (const auto& verdict : judged.verdicts) {
    INFO(verdict_line(verdict));
    CHECK(verdict.pass);
  }
}

TEST_CASE("a model's file without expected numbers gives the same ones") {
  const auto name = GENERATE(from_range(kNames));
  INFO(name);
  const Scratch scratch;
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy(kModels / name / file, scratch / file);
  std::map<std::string, std::string> metadata;
  auto tensors = read_tensors(kModels / name / "golden.safetensors", &metadata);
  const auto expected = take_expected(tensors);
  write_tensors(scratch / "golden.safetensors", tensors, metadata);
  const auto judged = judge_case(scratch / "golden.safetensors", at::kCPU, Backend::kAuto);
  CHECK(judged.verdicts.empty());
  for (const auto& [key, want] : expected) {
    INFO(key);
    REQUIRE(judged.computed.contains(key));
    CHECK(judged.computed.at(key).sizes() == want.sizes());
  }
}

TEST_CASE("a published model that does not fit its settings is refused by file and key") {
  const Scratch scratch;
  const auto config = [&](const std::string& key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(std::ifstream(kModels / "gpt2" / "config.json"));
    json[key] = value;
    std::ofstream(scratch / "config.json") << json;
    fs::copy_file(kModels / "gpt2" / "model.safetensors", scratch / "model.safetensors",
                  fs::copy_options::overwrite_existing);
  };
  const auto complaint = [&]() -> std::string {
    try {
      read_hugging_face(scratch / "", at::kFloat);
    } catch (const DataError& error) {
      return std::string("3 ") + error.what();
    } catch (const ConfigError& error) {
      return std::string("2 ") + error.what();
    }
    return "";
  };
  using Catch::Contains, Catch::Matchers::StartsWith;
  config("activation_function", "mish");
  CHECK_THAT(complaint(),
             StartsWith("2 ") && Contains("config.json: activation_function") && Contains("mish"));
  config("model_type", "t5");
  CHECK_THAT(complaint(),
             StartsWith("2 ") && Contains("config.json: model_type: 't5'") && Contains("marian"));
  config("scale_attn_by_inverse_layer_idx", true);
  CHECK_THAT(complaint(), StartsWith("2 ") && Contains("scale_attn_by_inverse_layer_idx"));
  config("n_layer", 3);  // all that is missing at once
  CHECK_THAT(complaint(), StartsWith("3 ") && Contains("model.safetensors: transformer.h.2.") &&
                              Contains("transformer.h.2.ln_1.bias is missing") &&
                              Contains("transformer.h.2.mlp.c_proj.weight is missing"));
  config("n_layer", 1);
  CHECK_THAT(complaint(), Contains("transformer.h.1.") && Contains("not known"));
  config("vocab_size", 98);
  CHECK_THAT(complaint(), Contains("transformer.wte.weight is [97,32], the settings mean [98,32]"));
  config("n_layer", 4000);
  CHECK_THAT(complaint(), Contains("asks for more weights"));
  config("n_layer", 1000000000);
  CHECK_THAT(complaint(), Contains("config.json") && Contains("layers") && Contains("4096"));
  config("n_head", 5);
  CHECK_THAT(complaint(), Contains("heads"));
  fs::remove(scratch / "config.json");
  CHECK_THAT(complaint(), Contains("config.json: cannot be opened"));
}

}  // namespace
}  // namespace headlab::test_published_models
