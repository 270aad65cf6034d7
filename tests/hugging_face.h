// Published decoders for tests: files in Hugging Face's layout under this project's names.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/models/named_tensors.h"
#include "tests/models_testing.h"

namespace headlab::testing {

class PublishedDecoder {
 public:
  explicit PublishedDecoder(const std::filesystem::path& folder)
      : config_(nlohmann::json::parse(std::ifstream(folder / "config.json"))),
        weights_(read_tensors(folder / "model.safetensors")) {
    gpt2_ = config_["model_type"] == "gpt2";
  }

  std::shared_ptr<Model> build(at::ScalarType type) const {
    const auto& c = config_;
    std::string yaml;
    if (gpt2_)
      yaml = fmt::format(
          "{{layers: {}, d_model: {}, heads: {}, mlp: gelu_tanh, bias: true, norm_eps: {}, "
          "attention: {{kind: mha, bias: true}}}}",
          c["n_layer"].get<int>(), c["n_embd"].get<int>(), c["n_head"].get<int>(),
          c["layer_norm_epsilon"].get<double>());
    else
      yaml = fmt::format(
          "{{layers: {}, d_model: {}, heads: {}, kv_heads: {}, head_dim: {}, d_ff: {}, norm: rms, "
          "norm_eps: {}, mlp: swiglu, tie: {}, position: {{kind: rope, base: {}}}}}",
          c["num_hidden_layers"].get<int>(), c["hidden_size"].get<int>(),
          c["num_attention_heads"].get<int>(), c["num_key_value_heads"].get<int>(),
          c["head_dim"].get<int>(), c["intermediate_size"].get<int>(),
          c["rms_norm_eps"].get<double>(), c["tie_word_embeddings"].get<bool>(),
          c["rope_parameters"]["rope_theta"].get<double>());
    const int64_t context = c[gpt2_ ? "n_positions" : "max_position_embeddings"];
    auto model = model_kind("decoder").make(*decoder_options(yaml),
                                            {.vocabulary = c["vocab_size"], .context = context});
    model->to(type);
    model->eval();
    at::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(find(item.key(), weights_));
    return model;
  }

  // The tensor of our name among tensors of their names, which `prefix` stands before.
  Tensor find(const std::string& name, const NamedTensors& tensors,
              const std::string& prefix = "") const {
    const auto [theirs, part] = gpt2_ ? gpt2_name(name) : std::pair(llama_name(name), -1);
    auto tensor = tensors.at(prefix + theirs);
    const bool is_linear = theirs.find(".c_") != std::string::npos;
    if (is_linear && tensor.dim() == 2) tensor = tensor.t();
    return part < 0 ? tensor : tensor.chunk(3, 0)[part];
  }

 private:
  static std::string replaced(std::string text,
                              const std::vector<std::pair<std::string, std::string>>& words) {
    for (const auto& [from, to] : words)
      if (auto at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
    return text;
  }

  // Their name, and which third of its rows (-1: all).
  static std::pair<std::string, int> gpt2_name(const std::string& name) {
    int part = -1;
    for (int i = 0; i < 3; ++i)
      if (name.find(std::string("attention.") + "qkv"[i] + ".") != std::string::npos) part = i;
    auto theirs = replaced(name, {{"embed.token", "wte"},
                                  {"embed.position", "wpe"},
                                  {"blocks.", "h."},
                                  {".norm1", ".ln_1"},
                                  {".norm2", ".ln_2"},
                                  {"attention.q.", "attn.c_attn."},
                                  {"attention.k.", "attn.c_attn."},
                                  {"attention.v.", "attn.c_attn."},
                                  {"attention.o", "attn.c_proj"},
                                  {"mlp.up", "mlp.c_fc"},
                                  {"mlp.down", "mlp.c_proj"}});
    if (theirs.starts_with("norm.")) theirs = "ln_f" + theirs.substr(4);
    return {"transformer." + theirs, part};
  }

  static std::string llama_name(const std::string& name) {
    if (name == "head.weight") return "lm_head.weight";
    auto theirs = replaced(name, {{"embed.token", "embed_tokens"},
                                  {"blocks.", "layers."},
                                  {".norm1", ".input_layernorm"},
                                  {".norm2", ".post_attention_layernorm"},
                                  {"attention.", "self_attn."}});
    for (const char* end : {".q", ".k", ".v", ".o", ".up", ".gate", ".down"})
      if (theirs.ends_with(std::string(end) + ".weight"))
        theirs.insert(theirs.size() - std::string(".weight").size(), "_proj");
    return "model." + theirs;
  }

  nlohmann::json config_;
  NamedTensors weights_;
  bool gpt2_ = false;
};

}  // namespace headlab::testing
