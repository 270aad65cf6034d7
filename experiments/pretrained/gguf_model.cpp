// What llama.cpp calls what: gguf-py's constants.py and tensor_mapping.py.
#include "experiments/pretrained/gguf_model.h"

#include <array>

namespace headlab {
namespace {

using nlohmann::json;

struct Renaming {
  std::string_view theirs, here;
};
constexpr std::array kOfModel{Renaming{"token_embd", "model.embed_tokens"},
                              Renaming{"output_norm", "model.norm"}, Renaming{"output", "lm_head"}};
constexpr std::array kOfLayer{
    Renaming{"attn_norm", "input_layernorm"},    Renaming{"attn_q", "self_attn.q_proj"},
    Renaming{"attn_k", "self_attn.k_proj"},      Renaming{"attn_v", "self_attn.v_proj"},
    Renaming{"attn_output", "self_attn.o_proj"}, Renaming{"ffn_norm", "post_attention_layernorm"},
    Renaming{"ffn_gate", "mlp.gate_proj"},       Renaming{"ffn_up", "mlp.up_proj"},
    Renaming{"ffn_down", "mlp.down_proj"}};

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; itself where it is not known.
std::string renamed(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) return name;
  const std::string part = name.substr(dot);  // .weight, .bias
  const std::string_view stem(name.data(), dot);
  for (const auto& one : kOfModel)
    if (one.theirs == stem) return std::string(one.here) + part;
  const auto layer_end = stem.find('.', 4);
  if (!stem.starts_with("blk.") || layer_end == std::string_view::npos) return name;
  for (const auto& one : kOfLayer)
    if (one.theirs == stem.substr(layer_end + 1))
      return fmt::format("model.layers.{}.{}{}", stem.substr(4, layer_end - 4), one.here, part);
  return name;
}

class GgufSettings {
 public:
  GgufSettings(const GgufFile& file, std::string name) : file_(file), name_(std::move(name)) {}

  template <class T>
  const T* find(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) return nullptr;
    const auto* value = std::get_if<T>(&found->second);
    if (!value) throw DataError(fmt::format("{}: {} is of another type", name_, key));
    return value;
  }
  template <class T>
  T get(const std::string& key) const {
    const auto* value = find<T>(key);
    if (!value) throw DataError(fmt::format("{}: {} is missing", name_, key));
    return *value;
  }

  // What config.json would say.
  json as_config() const {
    const auto architecture = get<std::string_view>("general.architecture");
    if (architecture != "llama")
      throw ConfigError(fmt::format("{}: general.architecture: '{}' is not known here, only llama",
                                    name_, architecture));
    for (const char* key : {"llama.rope.scaling.type", "llama.expert_count"})
      if (const auto found = file_.metadata().find(key);
          found != file_.metadata().end() &&
          (!std::holds_alternative<std::string_view>(found->second) ||
           std::get<std::string_view>(found->second) != "none"))
        throw ConfigError(fmt::format("{}: {}: no model here has that", name_, key));
    const auto embedding = file_.tensors().find("token_embd.weight");
    if (embedding == file_.tensors().end() || embedding->second.shape.size() != 2)
      throw DataError(name_ + ": token_embd.weight is missing");
    json config{{"model_type", "llama"},
                {"hidden_act", "silu"},
                {"eos_token_id", nullptr},  // where the file names none, none is meant
                {"vocab_size", embedding->second.shape[0]},
                {"tie_word_embeddings", !file_.tensors().contains("output.weight")},
                {"attention_bias", file_.tensors().contains("blk.0.attn_q.bias")},
                {"num_hidden_layers", get<int64_t>("llama.block_count")},
                {"hidden_size", get<int64_t>("llama.embedding_length")},
                {"intermediate_size", get<int64_t>("llama.feed_forward_length")},
                {"num_attention_heads", get<int64_t>("llama.attention.head_count")},
                {"max_position_embeddings", get<int64_t>("llama.context_length")},
                {"rms_norm_eps", get<double>("llama.attention.layer_norm_rms_epsilon")}};
    const auto take = [&]<class T>(const char* here, const char* key, T) {
      if (const auto* value = find<T>(key)) config[here] = *value;
    };
    take("num_key_value_heads", "llama.attention.head_count_kv", int64_t{});
    take("head_dim", "llama.attention.key_length", int64_t{});
    take("rope_theta", "llama.rope.freq_base", double{});
    take("eos_token_id", "tokenizer.ggml.eos_token_id", int64_t{});
    take("bos_token_id", "tokenizer.ggml.bos_token_id", int64_t{});
    take("pad_token_id", "tokenizer.ggml.padding_token_id", int64_t{});
    return config;
  }

 private:
  const GgufFile& file_;
  std::string name_;
};

}  // namespace

PublishedFiles open_gguf(const std::filesystem::path& path) {
  const auto file = std::make_shared<GgufFile>(path);
  HuggingFaceSettings settings(GgufSettings(*file, path.string()).as_config(), path.string());
  const auto D = settings.size("hidden_size"), H = settings.size("num_attention_heads");
  const auto head_dim = settings.size("head_dim", std::max<int64_t>(1, D / H));
  return {settings, gguf_weights(file, path.string(), renamed), head_dim};
}

}  // namespace headlab
