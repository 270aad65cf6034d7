// Case files that say what cannot be: check and layer exit 3, name the file and what is wrong.
#include "tests/command_testing.h"

namespace headlab::testing::test_command_wrong_cases {
namespace {

const std::string kLayer = "mha/llama_gqa.safetensors";

// A golden file with other metadata; an empty value takes the key away.
void write_with(const std::filesystem::path& path, const std::string& golden,
                const std::map<std::string, std::string>& changes) {
  const SafetensorsFile original(kGolden / golden);
  auto metadata = original.metadata();
  for (const auto& [key, value] : changes) {
    metadata[key] = value;
    if (value.empty()) metadata.erase(key);
  }
  write_safetensors(path, original.entries(), metadata);
}

// By check, and by layer where the file is of a layer.
void check_wrong(const Bench& bench, bool layer, const std::vector<std::string>& said) {
  auto parts = said;
  parts.insert(parts.begin(), "wrong.safetensors");
  check_refusal(bench.headlab({"check", "wrong.safetensors"}), 3, parts);
  if (layer) check_refusal(bench.headlab({"layer", "wrong.safetensors"}), 3, parts);
}

struct WrongMetadata {
  std::string key, value;  // empty: it is missing
  std::vector<std::string> said;
};

TEST_CASE("a layer case whose metadata is wrong exits 3 and says what is wrong") {
  const auto wrong = GENERATE(values<WrongMetadata>({
      {"config", "", {"the metadata has no config"}},
      {"config", "{]", {"(config):1:2"}},
      {"config", "[1, 2]", {"(config):1:1", "mapping"}},
      {"config", "\"mha\"", {"(config):1:1", "mapping"}},
      {"config", "null", {"d_model: is missing"}},
      {"config", R"({"heads": 6})", {"d_model: is missing"}},
      {"config", R"({"d_model": 24})", {"heads: is missing"}},
      {"config", R"({"d_model": "wide", "heads": 6})", {"d_model: must be an integer"}},
      {"config", R"({"d_model": 24, "heads": [6]})", {"heads: must be "}},
      {"config", R"({"d_model": -24, "heads": 6})", {"d_model: must be "}},
      {"config", R"({"d_model": 24, "heads": 0})", {"heads: must be "}},
      {"config", R"({"d_model": 24, "heads": 5})", {"heads", "choose a divisor"}},
      {"config", R"({"d_model": 4000000000000000000, "heads": 1})", {"d_model: must be "}},
      {"config", R"({"d_model": 1048576, "heads": 1048576})", {"d_model", "in.x is 24 wide"}},
      {"config", R"({"d_model": 24, "heads": 6, "head_dim": 1048576})", {"head_dim", "weights"}},
      {"config",
       R"({"d_model": 24, "heads": 6, "hedas": 6})",
       {"hedas: unknown key; did you mean 'heads'?"}},
      {"config",
       R"({"d_model": 24, "heads": 6, "attention": {"kind": "mah"}})",
       {"attention.kind: must be one of ", "did you mean 'mha'?"}},
      {"config",
       R"({"d_model": 24, "heads": 6, "attention": {"kind": "mha", "biass": true}})",
       {"attention.biass: unknown key; did you mean 'bias'?"}},
      {"config",
       R"({"d_model": 24, "heads": 6, "attention": {"kind": "moh", "active": 60}})",
       {"attention.active"}},
      {"config",
       R"({"d_model": 24, "heads": 6, "causal": true, "attention": {"kind": "linformer"}})",
       {"(config):1:", "linformer"}},
      {"headlab_case", "", {"headlab_case"}},
      {"rtol", "small", {"metadata rtol: must be a number of at least 0, is 'small'"}},
      {"rtol", "-1", {"metadata rtol: must be a number of at least 0, is '-1'"}},
      {"atol", "nan", {"metadata atol: must be a number of at least 0, is 'nan'"}},
      {"mode", "trian", {"metadata mode: must be train or eval, is 'trian'"}},
  }));
  const Bench bench;
  INFO(wrong.key << ": " << wrong.value);
  write_with(bench / "wrong.safetensors", kLayer, {{wrong.key, wrong.value}});
  check_wrong(bench, /*layer=*/true, wrong.said);
}

struct WrongFile {
  std::string golden, key, value;
  std::vector<std::string> said;
};

TEST_CASE("a case of any format whose metadata is wrong exits 3 and says what is wrong") {
  const std::string training = "nanogpt/train.safetensors";
  const std::string conversion = "collaborative/convert_bert.safetensors";
  const std::string decomposition = "collaborative/convert_cp_random_r16.safetensors";
  const auto wrong = GENERATE_COPY(values<WrongFile>({
      {training, "headlab_train", "2", {"does not know the format 2"}},
      {training, "config", "{}", {"vocab"}},
      {training, "config", R"({"n_layer": 0})", {"n_layer: must be "}},
      {training, "config", R"({"n_layer": "two"})", {"n_layer: must be an integer"}},
      {training, "train", "", {"the metadata has no train"}},
      {training, "train", R"({"learning_rate": -1})", {"learning_rate: must be "}},
      {training, "rtol", "", {"the metadata has no rtol"}},
      {training, "atol", "x", {"metadata atol: must be a number"}},
      {conversion, "config", "", {"the metadata has no config"}},
      {conversion, "config", "{]", {"metadata config: has no layer 'from'"}},
      {conversion, "config", R"({"from": {}, "to": 3})", {"metadata config: has no layer 'to'"}},
      {conversion, "config", R"({"from": {}, "to": {}})", {"(from)", "d_model: is missing"}},
      {conversion,
       "config",
       R"({"from": {"d_model": 24, "heads": 4, "attention": {"kind": "mah"}}, "to": {}})",
       {"(from)", "did you mean 'mha'?"}},
      {decomposition, "cp_bound", "", {"the metadata has no cp_bound"}},
      {decomposition, "cp_bound", "tight", {"metadata cp_bound: must be a number"}},
      {decomposition, "cp_to_seed", "1e30", {"cp.out_error has no seed 1e+30"}},
      {"dependency/ewt_dev_20.safetensors",
       "offsets",
       "{]",
       {"metadata offsets: must be a list of integers"}},
      {"dependency/ewt_dev_20.safetensors",
       "relations",
       "[]",
       {"metadata relations: must be a list that begins"}},
      {"statistics/circuits.safetensors",
       "config",
       R"({"d_model": 20, "heads": 4, "layers": 99999999999})",
       {"layers: must be "}},
      {"statistics/circuits.safetensors",
       "config",
       R"({"d_model": 20, "heads": 4, "layers": 3, "attention": {"kind": "mah"}})",
       {"did you mean 'mha'?"}},
      {"statistics/fixtures_causal.safetensors", "causal", "maybe", {"metadata causal: must be"}},
      {"statistics/outputs.safetensors", "causal", "maybe", {"metadata causal: must be"}},
      {"gate_target/layer_target.safetensors", "config", "{", {"(config)"}},
      {"gate_target/layer_target.safetensors",
       "config",
       R"({"gamma": 1})",
       {"gamma: must be below 0"}},
      {"gate_target/subset_cold.safetensors", "config", R"({"k": 99})", {"k must be at most n"}},
      {"pruning/order_free.safetensors",
       "config",
       R"({"keep_per_layer": -1})",
       {"keep_per_layer: must be at least 0"}},
  }));
  const Bench bench;
  INFO(wrong.golden << " " << wrong.key << ": " << wrong.value);
  write_with(bench / "wrong.safetensors", wrong.golden, {{wrong.key, wrong.value}});
  check_wrong(bench, /*layer=*/false, wrong.said);
}

TEST_CASE("a layer case whose tensors do not fit exits 3 and names the tensor") {
  const Bench bench;
  const SafetensorsFile original(kGolden / kLayer);
  const std::vector<float> zeros(4096, 0.F);
  const auto write_wrong = [&](const TensorEntry& wrong) {
    auto entries = original.entries();
    std::erase_if(entries, [&](const TensorEntry& entry) { return entry.name == wrong.name; });
    if (wrong.data != nullptr) entries.push_back(wrong);
    write_safetensors(bench / "wrong.safetensors", entries, original.metadata());
  };
  const auto zero = [&](const std::string& name, const std::vector<int64_t>& shape, Dtype dtype) {
    size_t bytes = dtype_size(dtype);
    for (const int64_t size : shape) bytes *= size;
    return TensorEntry{name, dtype, shape, reinterpret_cast<const std::byte*>(zeros.data()), bytes};
  };
  const auto check = [&](const TensorEntry& wrong, const std::vector<std::string>& said) {
    INFO(wrong.name);
    write_wrong(wrong);
    check_wrong(bench, /*layer=*/true, said);
  };
  const auto missing = [](const std::string& name) {
    TensorEntry entry;
    entry.name = name;
    return entry;
  };
  check(missing("in.x"), {"in.x is missing"});
  check(missing("w.k.weight"), {"w.k.weight is missing"});
  check(zero("in.x", {2, 17}, Dtype::kF32), {"in.x must be floating point [B,T,D]"});
  check(zero("in.x", {2, 17, 24}, Dtype::kI32), {"in.x must be floating point [B,T,D]"});
  check(zero("in.x", {2, 17, 7}, Dtype::kF32), {"in.x is 7 wide", "d_model 24"});
  check(zero("w.k.weight", {3, 3}, Dtype::kF32), {"w.k.weight is Float [3, 3]", "[8, 24]"});
  check(zero("w.k.weight", {8, 24}, Dtype::kF64), {"w.k.weight is Double", "Float"});
  check(zero("w.r.weight", {3}, Dtype::kF32), {"does not know the tensor w.r.weight"});
  check(zero("cot.y", {2, 3}, Dtype::kF32), {"cot.y is Float [2, 3]", "[2, 17, 24]"});
  check(zero("in.mask", {5}, Dtype::kBool), {"wrong.safetensors: "});
  check(zero("in.bias", {7, 7, 7}, Dtype::kF32), {"wrong.safetensors: "});
  check(zero("in.memory", {3}, Dtype::kF32), {"in.memory"});
}

}  // namespace
}  // namespace headlab::testing::test_command_wrong_cases
