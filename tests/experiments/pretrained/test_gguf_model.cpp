// LLaMA in GGUF files: small numbers, keys that change what is computed, where a text ends.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <variant>

#include "core/config/config.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/named_tensors.h"
#include "experiments/models/stack_options.h"
#include "experiments/pretrained/hugging_face.h"
#include "tests/catch.h"
#include "tests/data_testing.h"
#include "tests/gguf_testing.h"
#include "tests/models_testing.h"
#include "tests/scratch.h"

namespace headlab::test_gguf_model {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;
using Value = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>,
                           std::vector<std::string>>;

// As main.cpp has it for the whole program.
class Flushing {
 public:
  Flushing() { at::globalContext().setFlushDenormal(true); }
  ~Flushing() { at::globalContext().setFlushDenormal(false); }
};

constexpr int64_t kVocabulary = 8, kWidth = 32, kLayers = 2;

// A model of two layers, two heads of 16 with keys and values of their own.
class LlamaFile {
 public:
  std::map<std::string, Value> pairs{{"general.architecture", std::string("llama")},
                                     {"llama.block_count", uint32_t{kLayers}},
                                     {"llama.context_length", 64U},
                                     {"llama.embedding_length", uint32_t{kWidth}},
                                     {"llama.feed_forward_length", 32U},
                                     {"llama.attention.head_count", 2U},
                                     {"llama.attention.layer_norm_rms_epsilon", 1e-6F}};
  uint32_t type = 0;     // of matrices
  std::string row = {};  // of 32 numbers, each of theirs; none: zeros

  std::string bytes() const {
    GgufBytes file;
    file.begin(2 + 9 * kLayers, pairs.size());
    for (const auto& [key, value] : pairs) put(file, key, value);
    std::vector<std::string> data;
    uint64_t offset = 0;
    const auto tensor = [&](const std::string& name, const std::vector<uint64_t>& dimensions) {
      const bool matrix = dimensions.size() > 1;
      std::string all;
      if (!matrix) {
        for (int64_t i = 0; i < kWidth; ++i) all.append("\0\0\x80\x3F", 4);  // 1
      } else {
        for (uint64_t i = 0; i < dimensions[1]; ++i) all += row.empty() ? std::string(128, 0) : row;
      }
      file.tensor(name, dimensions, matrix ? type : 0, offset);
      all.resize((all.size() + 31) / 32 * 32);
      offset += all.size();
      data.push_back(std::move(all));
    };
    tensor("token_embd.weight", {kWidth, kVocabulary});
    tensor("output_norm.weight", {kWidth});
    for (int64_t l = 0; l < kLayers; ++l) {
      for (const char* name :
           {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
        tensor(fmt::format("blk.{}.{}.weight", l, name), {kWidth, kWidth});
      for (const char* name : {"attn_norm", "ffn_norm"})
        tensor(fmt::format("blk.{}.{}.weight", l, name), {kWidth});
    }
    file.align();
    for (const auto& one : data) file.raw(one);
    return file.all();
  }

  HuggingFaceModel read(at::ScalarType into = at::kFloat) const {
    const Scratch scratch;
    write_bytes(scratch / "a.gguf", bytes());
    return read_hugging_face(scratch / "a.gguf", into);
  }

 private:
  static void put(GgufBytes& file, const std::string& key, const Value& value) {
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value))
      file.texts(key, *texts);
    else if (const auto* numbers = std::get_if<std::vector<int32_t>>(&value))
      file.numbers(key, *numbers);
    else if (const auto* text = std::get_if<std::string>(&value))
      file.text(key).number<uint32_t>(8).text(*text);
    else if (const auto* truth = std::get_if<bool>(&value))
      file.text(key).number<uint32_t>(7).number<uint8_t>(*truth ? 1 : 0);
    else if (const auto* whole = std::get_if<uint32_t>(&value))
      file.text(key).number<uint32_t>(4).number(*whole);
    else
      file.text(key).number<uint32_t>(6).number(std::get<float>(value));
  }
};

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// The numbers of a row, in double.
std::vector<double> row_read(const LlamaFile& file, at::ScalarType type) {
  const Flushing flushing;
  const auto made = file.read(type);
  const auto weight = made.model->named_parameters()["blocks.1.mlp.up.weight"];
  const auto row = weight[3].detach().contiguous();
  std::vector<double> numbers;
  for (int64_t i = 0; i < row.numel(); ++i) {  // by bits: a float may be subnormal
    const float number =
        type == at::kFloat
            ? row.data_ptr<float>()[i]
            : std::bit_cast<float>(uint32_t{row.data_ptr<at::BFloat16>()[i].x} << 16);
    numbers.push_back(number);
  }
  return numbers;
}

// "" where it is taken.
std::string refusal(const std::map<std::string, Value>& more) {
  LlamaFile file;
  for (const auto& [key, value] : more) file.pairs[key] = value;
  const Scratch scratch;
  write_bytes(scratch / "a.gguf", file.bytes());
  try {
    read_hugging_face(scratch / "a.gguf", at::kFloat);
  } catch (const ConfigError& error) {
    const std::string said = error.what();
    CHECK(said.starts_with((scratch / "a.gguf: ").string()));
    return said.substr((scratch / "a.gguf: ").string().size());
  } catch (const DataError& error) {
    return std::string("damaged: ") + error.what();
  }
  return "";
}

// A copy: the model goes.
StackOptions options_of(const HuggingFaceModel& made) { return made.options.as<StackOptions>(); }

}  // namespace

TEST_CASE("small numbers of GGUF files are read as they are where subnormal ones count as 0",
          "[pretrained][gguf]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  LlamaFile file;
  SECTION("F16") {
    file.type = 1;
    for (uint16_t i = 0; i < 32; ++i)
      append(file.row, static_cast<uint16_t>((i % 2) << 15 | i * 32));  // 2^-24 times 32, ...
    const auto read = row_read(file, type);
    for (int i = 0; i < 32; ++i) CHECK(read[i] == (i % 2 ? -1 : 1) * std::ldexp(i * 32, -24));
  }
  SECTION("Q8_0") {
    file.type = 8;
    append(file.row, uint16_t{0x0200});  // 2^-15
    for (int8_t i = 0; i < 32; ++i) append(file.row, static_cast<int8_t>(4 * i - 64));
    const auto read = row_read(file, type);
    for (int i = 0; i < 32; ++i) CHECK(read[i] == std::ldexp(4 * i - 64, -15));
  }
  SECTION("Q4_1") {
    file.type = 3;
    append(file.row, uint16_t{0x0040});  // 2^-18
    append(file.row, uint16_t{0x8200});  // -2^-15
    for (uint8_t i = 0; i < 16; ++i) append(file.row, static_cast<uint8_t>(i | (15 - i) << 4));
    const auto read = row_read(file, type);
    for (int i = 0; i < 16; ++i) {
      CHECK(read[i] == std::ldexp(i - 8, -18));
      CHECK(read[i + 16] == std::ldexp(15 - i - 8, -18));
    }
  }
}

TEST_CASE("F16 weights of safetensors are read as they are where subnormal ones count as 0",
          "[pretrained]") {
  const Scratch scratch;
  const auto golden = fs::path(build::kSourceDir) / "tests/golden/models/llama_gqa";
  fs::copy(golden / "config.json", scratch / "config.json");
  auto tensors = read_tensors(golden / "model.safetensors");
  for (auto& [name, tensor] : tensors) {
    const auto steps = at::arange(tensor.numel(), at::kInt).remainder(2100).sub(1050);
    tensor = steps.mul(std::ldexp(1, -24)).to(at::kHalf).view(tensor.sizes());
  }
  write_tensors(scratch / "model.safetensors", tensors);
  const Flushing flushing;
  const auto made = read_hugging_face(scratch / "", at::kFloat);
  NamedTensors ours;
  for (const auto& p : made.model->named_parameters()) ours[p.key()] = p.value().detach();
  for (const auto& [name, read] : made.named_as_theirs(ours)) {
    INFO(name);
    const auto steps = read.to(at::kDouble).mul(std::ldexp(1, 24)).flatten();
    const auto wanted = at::arange(read.numel(), at::kDouble).remainder(2100).sub(1050);
    CHECK(at::equal(steps, wanted));
  }
}

TEST_CASE("keys of a GGUF file that change what is computed are read or refused by their names",
          "[pretrained][gguf]") {
  CHECK(refusal({}).empty());
  const auto scales = [](const std::string& key, const std::string& factor) {
    return "llama." + key + ": " + factor + " is not known here: no model here scales positions";
  };
  // A missing type is linear, and both keys divide positions.
  CHECK(refusal({{"llama.rope.scaling.factor", 4.0F}}) == scales("rope.scaling.factor", "4"));
  CHECK(refusal({{"llama.rope.scale_linear", 4.0F}}) == scales("rope.scale_linear", "4"));
  CHECK(refusal({{"llama.rope.scaling.type", std::string("linear")},
                 {"llama.rope.scaling.factor", 0.5F}}) == scales("rope.scaling.factor", "0.5"));
  CHECK(refusal({{"llama.rope.scaling.type", std::string("yarn")}}) ==
        scales("rope.scaling.type", "'yarn'"));
  CHECK(refusal({{"llama.rope.scaling.type", std::string("longrope")},
                 {"llama.rope.scaling.factor", 1.0F}}) ==
        scales("rope.scaling.type", "'longrope'"));
  CHECK(refusal({{"llama.rope.scaling.factor", 1.0F}, {"llama.rope.scale_linear", 4.0F}}).empty());
  CHECK(refusal(
            {{"llama.rope.scaling.type", std::string("none")}, {"llama.rope.scaling.factor", 4.0F}})
            .empty());
  CHECK(refusal({{"llama.rope.scaling.factor", 0.0F}}).empty());

  CHECK(refusal({{"llama.rope.dimension_count", 16U}}).empty());
  CHECK(refusal({{"llama.rope.dimension_count", 8U}}) ==
        "llama.rope.dimension_count: 8 is not known here, only 16, the width of a head");
  CHECK(refusal({{"llama.attention.value_length", 8U}}) ==
        "llama.attention.value_length: 8 is not known here, only 16, the width of a head");
  CHECK(refusal({{"llama.attention.key_length", 16U}, {"llama.attention.value_length", 16U}})
            .empty());

  const std::vector<std::tuple<std::string, Value, Value>> neutral{
      {"rope.scaling.attn_factor", 1.0F, 0.5F},
      {"attention.causal", true, false},
      {"attention.clamp_kqv", 0.0F, 8.0F},
      {"attention.max_alibi_bias", 0.0F, 8.0F},
      {"attention.scale", 0.0F, 0.25F},
      {"attn_logit_softcapping", 0.0F, 50.0F},
      {"final_logit_softcapping", 0.0F, 30.0F},
      {"logit_scale", 1.0F, 16.0F},
      {"residual_scale", 1.0F, 0.2F},
      {"embedding_scale", 1.0F, 12.0F},
      {"expert_count", 0U, 8U},
      {"use_parallel_residual", false, true}};
  for (const auto& [key, harmless, other] : neutral) {
    INFO(key);
    CHECK(refusal({{"llama." + key, harmless}}).empty());
    CHECK(refusal({{"llama." + key, other}}).starts_with("llama." + key + ": "));
  }
  CHECK(refusal({{"llama.attention.new_trick", 0U}}) ==
        "llama.attention.new_trick: this key is not known here");
  CHECK(refusal({{"llama.attn_logit_softcapping", 50.0F}}) ==
        "llama.attn_logit_softcapping: 50 is not known here, only 0");
  for (const auto& [key, value] : std::map<std::string, Value>{
           {"llama.vocab_size", 8U},
           {"llama.tensor_data_layout", std::string("Meta AI original pth")},
           {"general.file_type", 7U},
           {"tokenizer.chat_template", std::string("{{ messages }}")},
           {"quantize.imatrix.file", std::string("x")}}) {
    INFO(key);
    CHECK(refusal({{key, value}}).empty());
  }
}

TEST_CASE("a GGUF file of something else than one whole LLaMA is refused", "[pretrained][gguf]") {
  CHECK(refusal({{"general.architecture", std::string("gemma")}}) ==
        "general.architecture: 'gemma' is not known here, only 'llama'");
  CHECK(refusal({{"general.type", std::string("adapter")}}) ==
        "general.type: 'adapter' is not known here, only 'model'");
  CHECK(refusal({{"general.type", std::string("model")}}).empty());
  CHECK(refusal({{"split.count", 2U}}) ==
        "split.count: the file is one of 2 parts of a model; llama-gguf-split --merge joins them");
  CHECK(refusal({{"split.count", 1U}}).empty());
}

TEST_CASE("sizes of a GGUF file may be said layer by layer, and are refused where they differ",
          "[pretrained][gguf]") {
  LlamaFile file;
  file.pairs["llama.attention.head_count_kv"] = std::vector<int32_t>{2, 2};
  file.pairs["llama.feed_forward_length"] = std::vector<int32_t>{32, 32};
  CHECK(options_of(file.read()).kv_heads == 2);
  CHECK(refusal({{"llama.attention.head_count_kv", std::vector<int32_t>{2, 1}}}) ==
        "llama.attention.head_count_kv: it differs from layer to layer, which no model here does");
  CHECK(refusal({{"llama.attention.head_count", 0U}})
            .ends_with("llama.attention.head_count cannot be 0"));
  CHECK(refusal({{"llama.block_count", std::string("two")}})
            .ends_with("llama.block_count is of another type"));
}

TEST_CASE("a GGUF file's window is the model's", "[pretrained][gguf]") {
  LlamaFile file;
  CHECK(options_of(file.read()).window_of(1) == 0);
  file.pairs["llama.attention.sliding_window"] = 5U;
  CHECK(options_of(file.read()).window_of(0) == 5);
  CHECK(options_of(file.read()).window_of(1) == 5);
}

TEST_CASE("a text ends where llama.cpp ends it", "[pretrained][gguf]") {
  LlamaFile file;
  CHECK(file.read().ends.empty());
  file.pairs["tokenizer.ggml.eos_token_id"] = 2U;
  CHECK(file.read().ends == Ids{2});
  file.pairs["tokenizer.ggml.eot_token_id"] = 5U;
  file.pairs["tokenizer.ggml.eom_token_id"] = 4U;
  CHECK(file.read().ends == Ids{2, 4, 5});
  file.pairs["tokenizer.ggml.eom_token_id"] = ~0U;  // llama.cpp's "none"
  CHECK(file.read().ends == Ids{2, 5});
  // By what the token is called.
  file.pairs["tokenizer.ggml.tokens"] =
      std::vector<std::string>{"a", "b", "<|end|>", "d", "e", "f", "<|eot_id|>", "h"};
  CHECK(file.read().ends == Ids{2, 5, 6});
}

TEST_CASE("a text ends where generation_config.json says, else config.json", "[pretrained]") {
  const Scratch scratch;
  const auto golden = fs::path(build::kSourceDir) / "tests/golden/models/llama_gqa";
  fs::copy(golden / "model.safetensors", scratch / "model.safetensors");
  auto config = nlohmann::json::parse(read_bytes(golden / "config.json"));
  config["eos_token_id"] = 7;
  write_bytes(scratch / "config.json", config.dump());
  const auto ends = [&] { return read_hugging_face(scratch / "", at::kFloat).ends; };
  const auto generation = [&](const std::string& text) {
    write_bytes(scratch / "generation_config.json", text);
  };
  CHECK(ends() == Ids{7});
  generation(R"({"eos_token_id": [3, 9]})");
  CHECK(ends() == Ids{3, 9});
  const auto files = read_hugging_face(scratch / "", at::kFloat).files;
  CHECK(std::ranges::find(files, scratch / "generation_config.json") != files.end());
  generation(R"({"eos_token_id": 4})");
  CHECK(ends() == Ids{4});
  generation(R"({"do_sample": true})");
  CHECK(ends() == Ids{7});
  generation(R"({"eos_token_id": "x"})");
  CHECK(error_of<DataError>(ends) ==
        (scratch / "generation_config.json").string() + ": eos_token_id is no integer");
}

}  // namespace headlab::test_gguf_model
