// The tokenizer in a GGUF file's settings.
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/models/named_tensors.h"
#include "tests/catch.h"
#include "tests/gguf_testing.h"
#include "tests/models_testing.h"
#include "tests/pretrained_testing.h"
#include "tests/tokenizer_testing.h"

namespace headlab::test_gguf_tokenizer {
namespace {

using namespace testing;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

// Bytes but 'x', then ab, abc and two specials.
struct Settings {
  std::string model = "gpt2", pre = "smollm";
  Texts tokens = [] {
    Texts all(bpe_symbols().begin(), bpe_symbols().end());
    std::erase(all, "x");
    all.insert(all.end(), {"ab", "abc", "<|end|>", "<tool>"});
    return all;
  }();
  Texts merges{"a b", "ab c"};
  std::vector<int32_t> types = [] {
    std::vector<int32_t> all(259, 1);
    all[257] = 3, all[258] = 4;
    return all;
  }();
  std::optional<bool> bos = {}, eos = {};
  std::optional<uint32_t> bos_id = 257;
};

GgufBytes& text(GgufBytes& file, const std::string& key, const std::string& value) {
  return file.text("tokenizer.ggml." + key).number<uint32_t>(8).text(value);
}
GgufBytes& truth(GgufBytes& file, const std::string& key, bool value) {
  return file.text("tokenizer.ggml." + key).number<uint32_t>(7).number<uint8_t>(value ? 1 : 0);
}

FoundTokenizer found(const Settings& settings) {
  GgufBytes file;
  file.begin(0, 6 + (settings.bos ? 1 : 0) + (settings.eos ? 1 : 0) + (settings.bos_id ? 1 : 0));
  text(file, "model", settings.model);
  text(file, "pre", settings.pre);
  file.texts("tokenizer.ggml.tokens", settings.tokens);
  file.texts("tokenizer.ggml.merges", settings.merges);
  file.numbers("tokenizer.ggml.token_type", settings.types);
  file.text("tokenizer.ggml.eos_token_id").number<uint32_t>(4).number<uint32_t>(257);
  if (settings.bos) truth(file, "add_bos_token", *settings.bos);
  if (settings.eos) truth(file, "add_eos_token", *settings.eos);
  if (settings.bos_id)
    file.text("tokenizer.ggml.bos_token_id").number<uint32_t>(4).number(*settings.bos_id);
  const Folder folder;
  folder.write("a.gguf", file.align().all());
  return read_gguf_tokenizer(GgufFile(folder / "a.gguf"), "a.gguf");
}

std::string pattern(const std::string& pre) {
  const auto one = found({.pre = pre});
  INFO(one.reason);
  REQUIRE(one.tokenizer);
  return one.tokenizer->json().value("pattern", "gpt2");
}

}  // namespace

TEST_CASE("a GGUF file's settings are a tokenizer", "[tokenizer][pretrained][gguf]") {
  const auto one = found({});
  REQUIRE(one.tokenizer);
  CHECK(one.tokenizer->vocabulary() == 259);
  CHECK(one.tokenizer->specials() == Ids{257, 258});
  CHECK(texts_of(*one.tokenizer, one.tokenizer->encode("xabc<|end|>1<tool>12", "t").ids) ==
        Texts{"abc", "<|end|>", "1", "<tool>", "1", "2"});
  CHECK_FALSE(one.tokenizer->frame().begin);
  CHECK_FALSE(one.tokenizer->frame().end);
}

TEST_CASE("an id of a GGUF file that no token has is none", "[tokenizer][pretrained][gguf]") {
  Settings settings;
  settings.tokens.insert(settings.tokens.end(), {"", "", "<|late|>"});
  settings.types.insert(settings.types.end(), {5, 5, 3});
  const auto one = found(settings);
  REQUIRE(one.tokenizer);
  CHECK(one.tokenizer->vocabulary() == 262);
  CHECK(one.tokenizer->encode("ab<|late|>", "t").ids == Ids{255, 261});
  CHECK(one.tokenizer->decode({255, 259, 261}) == "ab<|late|>");
  CHECK(one.tokenizer->token_texts()[260] == "<260>");
}

TEST_CASE("llama.cpp's names of patterns are known", "[tokenizer][pretrained][gguf]") {
  CHECK(pattern("gpt-2") == "gpt2");
  CHECK(pattern("smollm") == "smollm2");
  CHECK(pattern("llama-bpe") == "llama3");
  CHECK(pattern("qwen2") == "qwen2");
  CHECK(found({.pre = "llama-bpe"}).tokenizer->json().value("ignore_merges", false));
  CHECK_FALSE(found({.pre = "qwen2"}).tokenizer->json().contains("ignore_merges"));
  CHECK(found({.pre = "default"}).reason ==
        "a.gguf: tokenizer.ggml.pre: default is not known here, only gpt-2, smollm, llama-bpe and "
        "qwen2");
  CHECK(found({.pre = ""}).reason ==
        "a.gguf: tokenizer.ggml.pre: nothing is not known here, only gpt-2, smollm, llama-bpe and "
        "qwen2");
  CHECK(
      found({.model = "llama"}).reason ==
      "a.gguf: tokenizer.ggml.model: llama is not known here, only gpt2, which is byte-level BPE");
}

TEST_CASE("a GGUF file says what stands around a text", "[tokenizer][pretrained][gguf]") {
  CHECK(found({.bos = true}).tokenizer->frame().begin == 257);
  CHECK(found({.eos = true}).tokenizer->frame().end == 257);
  // Those of LLaMA-3 begin with it unless they say no.
  CHECK(found({.pre = "llama-bpe"}).tokenizer->frame().begin == 257);
  CHECK_FALSE(found({.pre = "llama-bpe", .bos = false}).tokenizer->frame().begin);
}

TEST_CASE("a GGUF file with a damaged tokenizer is refused", "[tokenizer][pretrained][gguf]") {
  const auto refusal = [](const std::function<void(Settings&)>& spoil) {
    Settings settings;
    spoil(settings);
    return error_of<DataError>([&] { found(settings); });
  };
  CHECK(refusal([](Settings& s) { s.types.pop_back(); }) ==
        "a.gguf: tokenizer.ggml.token_type has 258 numbers for 259 tokens");
  CHECK(refusal([](Settings& s) { s.merges.emplace_back("ab"); }) ==
        "a.gguf: tokenizer.ggml.merges: 'ab' is no merge of two tokens");
  CHECK(refusal([](Settings& s) { s.merges.emplace_back("a z"); }) ==
        "a.gguf: the BPE vocabulary has no 'az', made by a merge");
  CHECK(refusal([](Settings& s) {
          s.tokens[257] = "\xFF";
        }).starts_with("a.gguf: tokenizer.ggml.tokens: byte 0 (0xFF) is not UTF-8"));
  CHECK(refusal([](Settings& s) { s.bos = true, s.bos_id.reset(); }) ==
        "a.gguf: tokenizer.ggml.bos_token_id is missing");
  CHECK(refusal([](Settings& s) { s.bos = true, s.bos_id = 259; }) ==
        "a.gguf: token 259 is not in the vocabulary of 259");
}

TEST_CASE("SmolLM2's file gives its texts the ids that transformers gives them",
          "[tokenizer][pretrained][gguf][golden]") {
  const auto file = smollm2();
  if (file.empty()) return;
  const auto golden = shared_folder() / "golden/models/smollm2_forward.safetensors";
  if (!fs::exists(golden)) return skip("no shared golden files; HEADLAB_SHARED names their folder");
  const auto one = read_gguf_tokenizer(GgufFile(file), "SmolLM2");
  INFO(one.reason);
  REQUIRE(one.tokenizer);
  CHECK(one.tokenizer->vocabulary() == 49152);
  CHECK(one.tokenizer->specials().size() == 17);
  std::map<std::string, std::string> metadata;
  const auto tensors = read_tensors(golden, &metadata);
  auto texts = nlohmann::json::parse(metadata.at("texts")).get<Texts>();
  CHECK(texts.size() == 3);
  texts.push_back(metadata.at("chat"));
  for (size_t n = 0; n < texts.size(); ++n) {
    const auto name = n < 3 ? std::to_string(n) : "chat";
    const auto expected = tensors.at("in." + name + ".ids").flatten();
    auto ids = one.tokenizer->encode(texts[n], "t").ids;
    CHECK(one.tokenizer->decode(ids) == texts[n]);
    ids.resize(std::min<size_t>(ids.size(), 64));  // the file's are cut to as many
    CHECK(at::equal(at::tensor(ids, at::kLong), expected));
  }
}

}  // namespace headlab::test_gguf_tokenizer
