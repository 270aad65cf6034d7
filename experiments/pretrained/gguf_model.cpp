// What llama.cpp calls what: gguf-py's constants.py and tensor_mapping.py.
#include "experiments/pretrained/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

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

// Keys below "llama." that this bench reads, or that llama.cpp does not compute with; the others
// are served only with these values, with which they change nothing.
constexpr std::array<std::string_view, 15> kRead{
    "block_count",          "context_length",
    "embedding_length",     "feed_forward_length",
    "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length",
    "rope.freq_base",       "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "attention.sliding_window",
    "rope.scaling.type",    "rope.scaling.factor",
    "rope.scale_linear"};
constexpr std::array<std::string_view, 6> kOfNoEffect{"vocab_size",
                                                      "tensor_data_layout",
                                                      "attention.layer_norm_epsilon",
                                                      "rope.scaling.original_context_length",
                                                      "rope.scaling.finetuned",
                                                      "expert_weights_norm"};
struct Neutral {
  double value, other;  // those that change nothing
  std::vector<std::string_view> keys;
};
const std::array kNeutral{
    Neutral{1, 1, {"attention.causal", "rope.scaling.attn_factor"}},
    Neutral{1, 0, {"logit_scale", "residual_scale", "embedding_scale", "expert_weights_scale"}},
    Neutral{0,
            0,
            {"attention.scale", "attention.max_alibi_bias", "attention.clamp_kqv",
             "attention.shared_kv_layers", "attn_logit_softcapping", "final_logit_softcapping",
             "use_parallel_residual", "pooling_type", "expert_count", "expert_used_count",
             "expert_shared_count", "expert_group_count", "leading_dense_block_count",
             "nextn_predict_layers"}}};

// Tokens that llama.cpp takes for ends of a text by what they are called (llama-vocab.cpp).
constexpr std::array<std::string_view, 13> kEndTexts{
    "<|eot_id|>",    "<|im_end|>",      "<|end|>",           "<|return|>", "<|call|>",
    "<end_of_turn>", "<|endoftext|>",   "<|eom_id|>",        "<EOT>",      "_<EOT>",
    "<|flush|>",     "<|end_of_text|>", "<end_of_utterance>"};

std::string shown(const GgufValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{:.7g}", *number);
  if (const auto* text = std::get_if<std::string_view>(&value)) return fmt::format("'{}'", *text);
  return "a list";
}

bool is_text(const GgufValue& value, std::string_view text) {
  const auto* found = std::get_if<std::string_view>(&value);
  return found && *found == text;
}

class GgufSettings {
 public:
  GgufSettings(const GgufFile& file, std::string name) : file_(file), name_(std::move(name)) {}

  // What config.json would say.
  json as_config() const {
    check_file();
    check_keys();
    const auto embedding = file_.tensors().find("token_embd.weight");
    if (embedding == file_.tensors().end() || embedding->second.shape.size() != 2)
      throw DataError(name_ + ": token_embd.weight is missing");
    const int64_t H = size("attention.head_count"), D = size("embedding_length");
    const int64_t head_dim = optional_size("attention.key_length", std::max<int64_t>(1, D / H));
    require("attention.value_length", std::max<int64_t>(1, D / H), head_dim);
    require("rope.dimension_count", head_dim, head_dim);
    check_scaling();
    json config{{"model_type", "llama"},
                {"hidden_act", "silu"},
                {"vocab_size", embedding->second.shape[0]},
                {"tie_word_embeddings", !file_.tensors().contains("output.weight")},
                {"attention_bias", file_.tensors().contains("blk.0.attn_q.bias")},
                {"num_hidden_layers", size("block_count")},
                {"hidden_size", D},
                {"intermediate_size", size("feed_forward_length")},
                {"num_attention_heads", H},
                {"num_key_value_heads", optional_size("attention.head_count_kv", H)},
                {"head_dim", head_dim},
                {"max_position_embeddings", size("context_length")},
                {"rms_norm_eps", number("attention.layer_norm_rms_epsilon", std::nullopt)},
                {"rope_theta", number("rope.freq_base", 10000)},
                {"eos_token_id", ends()}};  // where the file names none, none is meant
    if (const auto window = optional_size("attention.sliding_window", 0); window > 0)
      config["model_type"] = "mistral", config["sliding_window"] = window;
    if (const auto* pad = find("tokenizer.ggml.padding_token_id"))
      config["pad_token_id"] = integer("tokenizer.ggml.padding_token_id", *pad);
    return config;
  }

 private:
  // Null where it is missing.
  const GgufValue* find(std::string_view key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }
  const GgufValue* of_model(std::string_view key) const {
    return find(fmt::format("llama.{}", key));
  }
  [[noreturn]] void unknown(const std::string& key, const std::string& what) const {
    throw ConfigError(fmt::format("{}: {}: {}", name_, key, what));
  }
  [[noreturn]] void of_another_type(std::string_view key) const {
    throw DataError(fmt::format("{}: {} is of another type", name_, key));
  }

  // That it holds one whole model, of a kind that is known.
  void check_file() const {
    const auto* architecture = find("general.architecture");
    if (!architecture) throw DataError(name_ + ": general.architecture is missing");
    if (!is_text(*architecture, "llama"))
      unknown("general.architecture", shown(*architecture) + " is not known here, only 'llama'");
    if (const auto* type = find("general.type"); type && !is_text(*type, "model"))
      unknown("general.type", shown(*type) + " is not known here, only 'model'");
    if (const auto* parts = find("split.count"); parts && number_in(*parts).value_or(2) > 1)
      unknown("split.count", fmt::format("the file is one of {} parts of a model; llama-gguf-split "
                                         "--merge joins them",
                                         shown(*parts)));
  }

  void check_keys() const {
    for (const auto& [key, value] : file_.metadata()) {
      if (!key.starts_with("llama.")) continue;
      const auto own = std::string_view(key).substr(6);
      if (std::ranges::find(kRead, own) != kRead.end()) continue;
      if (std::ranges::find(kOfNoEffect, own) != kOfNoEffect.end()) continue;
      const auto neutral = std::ranges::find_if(
          kNeutral, [&](const auto& one) { return std::ranges::count(one.keys, own) > 0; });
      if (neutral == kNeutral.end()) unknown(key, "this key is not known here");
      const auto number = number_in(value);
      if (number != neutral->value && number != neutral->other)
        unknown(key, fmt::format("{} is not known here, only {}", shown(value), neutral->value));
    }
  }

  // A factor divides positions, whatever it is called; llama.cpp takes a missing type as linear.
  void check_scaling() const {
    if (const auto* type = of_model("rope.scaling.type")) {
      if (is_text(*type, "none")) return;
      if (!is_text(*type, "linear"))
        unknown("llama.rope.scaling.type",
                shown(*type) + " is not known here: no model here scales positions");
    }
    for (const char* key : {"rope.scaling.factor", "rope.scale_linear"})
      if (const auto* value = of_model(key)) {
        const auto factor = number_in(*value);
        if (!factor) of_another_type(fmt::format("llama.{}", key));
        if (*factor == 0 || *factor == 1) return;  // the first that is there counts
        unknown(fmt::format("llama.{}", key),
                shown(*value) + " is not known here: no model here scales positions");
      }
  }

  // A size that may be missing must have this value.
  void require(std::string_view key, int64_t otherwise, int64_t only) const {
    const auto found = optional_size(key, otherwise);
    if (found == only) return;
    unknown(fmt::format("llama.{}", key),
            fmt::format("{} is not known here, only {}, the width of a head", found, only));
  }

  int64_t integer(const std::string& key, const GgufValue& value) const {
    const auto* whole = std::get_if<int64_t>(&value);
    if (!whole) of_another_type(key);
    return *whole;
  }
  int64_t size(std::string_view key) const {
    if (!of_model(key)) throw DataError(fmt::format("{}: llama.{} is missing", name_, key));
    const auto found = optional_size(key, 0);
    if (found < 1) throw DataError(fmt::format("{}: llama.{} cannot be {}", name_, key, found));
    return found;
  }
  // One number, or one for each layer; these must be equal.
  int64_t optional_size(std::string_view key, int64_t otherwise) const {
    const auto* value = of_model(key);
    if (!value) return otherwise;
    const auto name = fmt::format("llama.{}", key);
    const auto* list = std::get_if<GgufNumbers>(value);
    const auto found = list && list->size() > 0 ? (*list)[0] : number_in(*value).value_or(-1);
    for (size_t layer = 1; list && layer < list->size(); ++layer)
      if ((*list)[layer] != found)
        unknown(name, "it differs from layer to layer, which no model here does");
    if (found < 0 || found != std::floor(found)) of_another_type(name);
    if (found > double{1u << 31})
      throw DataError(fmt::format("{}: {} cannot be {}", name_, name, found));
    return static_cast<int64_t>(found);
  }
  double number(std::string_view key, std::optional<double> otherwise) const {
    const auto* value = of_model(key);
    if (!value && otherwise) return *otherwise;
    if (!value) throw DataError(fmt::format("{}: llama.{} is missing", name_, key));
    const auto found = number_in(*value);
    if (!found) of_another_type(fmt::format("llama.{}", key));
    return *found;
  }

  // The tokens at which llama.cpp ends a text.
  std::vector<int64_t> ends() const {
    std::set<int64_t> ids;
    for (const char* which : {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {
      const auto key = fmt::format("tokenizer.ggml.{}_token_id", which);
      if (const auto* id = find(key)) ids.insert(integer(key, *id));
    }
    const auto* tokens = find("tokenizer.ggml.tokens");
    if (const auto* texts = tokens ? std::get_if<std::vector<std::string_view>>(tokens) : nullptr)
      for (size_t id = 0; id < texts->size(); ++id)
        if (std::ranges::find(kEndTexts, (*texts)[id]) != kEndTexts.end())
          ids.insert(static_cast<int64_t>(id));
    return {ids.begin(), ids.end()};
  }

  const GgufFile& file_;
  std::string name_;
};

}  // namespace

PublishedFiles open_gguf(const std::filesystem::path& path) {
  const auto file = std::make_shared<GgufFile>(path);
  HuggingFaceSettings settings(GgufSettings(*file, path.string()).as_config(), path.string());
  return {settings, gguf_weights(file, path.string(), renamed), settings.size("head_dim")};
}

}  // namespace headlab
