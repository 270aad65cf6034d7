#include "experiments/pretrained/published_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/models/stack_options.h"
#include "experiments/pretrained/published_names.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// What the heads of all layers have in common.
struct Heads {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false, o_bias = false, qk_norm = false;
  double qk_norm_eps = 0;
  friend bool operator==(const Heads&, const Heads&) = default;
};

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError(what + ": no class of transformers is built so");
}
void require(bool holds, const std::string& what) {
  if (!holds) refuse(what);
}

bool is_true(const ConfigNode& node, const char* key, bool otherwise) {
  const auto* found = node.find(key);
  return found && found->kind == ConfigNode::Kind::kScalar ? found->text == "true" : otherwise;
}

Heads heads_of(const HeadShape& shape, const KindBlock& block) {
  ConfigNode options = block.write();
  if (const auto* inner = options.find("inner")) options = ConfigNode(*inner);
  const bool bias = is_true(options, "bias", false);
  Heads heads{.heads = shape.heads,
              .kv_heads = shape.kv_heads,
              .head_dim = shape.head_dim,
              .qkv_bias = is_true(options, "qkv_bias", bias),
              .o_bias = is_true(options, "o_bias", bias),
              .qk_norm = is_true(options, "qk_norm", false)};
  if (heads.qk_norm) heads.qk_norm_eps = std::stod(options.find("qk_norm_eps")->text);
  return heads;
}

Heads common_heads(const StackOptions& stack) {
  const auto first = heads_of(stack.shape(0), stack.attention_of(0));
  for (int64_t l = 1; l < stack.layers; ++l)
    require(heads_of(stack.shape(l), stack.attention_of(l)) == first,
            fmt::format("layers 0 and {} differ in their heads or biases", l));
  if (stack.cross())
    require(heads_of(stack.cross_shape(0), *stack.cross()) == first,
            "cross-attention differs from the decoder's own");
  return first;
}

// Of every layer, 0 where it has none; all that there are have the one width that a file names.
struct Windows {
  std::vector<int64_t> of_layer;
  int64_t width = 0;
  bool alike = true;  // of all layers

  explicit Windows(const StackOptions& stack) {
    for (int64_t l = 0; l < stack.layers; ++l) {
      of_layer.push_back(stack.window_of(l));
      if (of_layer[l] == 0) continue;
      require(width == 0 || of_layer[l] == width,
              fmt::format("windows of {} and of {} tokens in one model", width, of_layer[l]));
      width = of_layer[l];
    }
    for (const int64_t window : of_layer) alike &= window == of_layer[0];
  }

  // As Qwen's classes have them; those without layer_types know the last layers alone.
  void put(Json& json) const {
    json["use_sliding_window"] = width > 0;
    json["sliding_window"] = width > 0 ? Json(width) : Json();
    const auto first = std::find(of_layer.begin(), of_layer.end(), width);
    json["max_window_layers"] =
        width > 0 ? first - of_layer.begin() : static_cast<int64_t>(of_layer.size());
    auto& types = json["layer_types"] = Json::array();
    for (const int64_t window : of_layer)
      types.push_back(window > 0 ? "sliding_attention" : "full_attention");
  }
};

// Of all layouts but LLaMA's: heads that fill the width, each with keys of its own, layer norm.
void require_plain(const StackOptions& stack, const Heads& heads, bool pre_norm) {
  const std::string of = stack.name().empty() ? "model." : "model." + stack.name() + ".";
  require(stack.norm == "layer", of + "norm: rms without rope and swiglu");
  require(stack.pre_norm == pre_norm, fmt::format("{}pre_norm: {}", of, stack.pre_norm));
  require(stack.mlp != "swiglu", of + "mlp: swiglu in this model");
  require(heads.kv_heads == heads.heads, of + "kv_heads: heads that share keys");
  require(heads.heads * heads.head_dim == stack.d_model,
          fmt::format("{}head_dim: {} heads of {} do not fill {}", of, heads.heads, heads.head_dim,
                      stack.d_model));
  require(Windows(stack).width == 0, of + "window: windows in this model");
  require(!heads.qk_norm, of + "attention.qk_norm");
}

std::string activation(const std::string& mlp) { return mlp == "gelu_tanh" ? "gelu_new" : mlp; }

// Where there are none, null: transformers would assume ids of GPT-2's or LLaMA's own.
void put_ends(Json& json, const std::vector<int64_t>& ends) {
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = ends.empty() ? Json() : ends.size() == 1 ? Json(ends[0]) : Json(ends);
}

double weights_dropout(const StackOptions& s) { return s.attention_dropout.value_or(s.dropout); }

PublishedConfig gpt2(const StackOptions& s, const DataShape& data, bool tied,
                     const std::vector<int64_t>& ends) {
  const auto heads = common_heads(s);
  require(s.position->kind == "learned",
          "model.position: " + s.position->kind + " beside a layer norm");
  require_plain(s, heads, true);
  Json json{{"model_type", "gpt2"},
            {"architectures", {"GPT2LMHeadModel"}},
            {"vocab_size", data.vocabulary},
            {"n_positions", data.context},
            {"n_embd", s.d_model},
            {"n_layer", s.layers},
            {"n_head", heads.heads},
            {"n_inner", s.hidden_width()},
            {"activation_function", activation(s.mlp)},
            {"layer_norm_epsilon", s.norm_eps},
            {"resid_pdrop", s.dropout},
            {"embd_pdrop", s.dropout},
            {"attn_pdrop", weights_dropout(s)},
            {"tie_word_embeddings", tied}};
  put_ends(json, ends);
  return {"gpt2", json};
}

PublishedConfig llama(const StackOptions& s, const DataShape& data, bool tied,
                      const std::vector<int64_t>& ends) {
  const auto heads = common_heads(s);
  const auto& rope = s.position;
  require(rope->kind == "rope" && rope->fraction == 1,
          "model.position: " + (rope->kind == "rope" ? "rope.fraction below 1" : rope->kind) +
              " beside an RMS norm");
  require(s.position_at.ranges().empty(), "model.position_at: layers with other positions");
  require(s.norm == "rms", "model.norm: layer beside rope");
  require(s.pre_norm, "model.pre_norm: false beside rope");
  require(s.mlp == "swiglu", "model.mlp: " + s.mlp + " beside rope");
  require(s.d_model % heads.heads == 0,
          fmt::format("model.heads: {} do not divide d_model {}", heads.heads, s.d_model));
  require(s.dropout == 0, "model.dropout beside rope, on more than attention weights");
  const Windows windows(s);
  const bool qkv_only = heads.qkv_bias && !heads.o_bias;
  require(!qkv_only || !heads.qk_norm, "qkv_bias beside qk_norm");
  require(!heads.qk_norm || heads.qk_norm_eps == s.norm_eps,
          "model.attention.qk_norm_eps that differs from norm_eps");
  const std::string type = qkv_only            ? "qwen2"
                           : heads.qk_norm     ? "qwen3"
                           : windows.width > 0 ? "mistral"
                                               : "llama";
  require(type.starts_with("qwen") || windows.alike,
          "model.window: windows that differ from layer to layer, without qkv_bias or qk_norm");
  const std::string name =
      type == "llama" ? "Llama" : std::string(1, type[0] - 32) + type.substr(1);
  require(!s.bias || type == "llama", "model.bias of the MLP in " + type + "'s layout");
  require(!heads.o_bias || type == "llama" || type == "qwen3",
          "model.attention.bias in " + type + "'s layout");
  Json json{{"model_type", type},
            {"architectures", {name + "ForCausalLM"}},
            {"vocab_size", data.vocabulary},
            {"hidden_size", s.d_model},
            {"intermediate_size", s.hidden_width()},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", heads.heads},
            {"num_key_value_heads", heads.kv_heads},
            {"head_dim", heads.head_dim},
            {"max_position_embeddings", data.context},
            {"rms_norm_eps", s.norm_eps},
            {"hidden_act", "silu"},
            {"attention_dropout", weights_dropout(s)},
            {"tie_word_embeddings", tied},
            {"rope_theta", rope->base},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", rope->base}}}};
  if (type == "llama" || type == "qwen3") json["attention_bias"] = heads.o_bias;
  if (type == "llama") json["mlp_bias"] = s.bias;
  if (type == "mistral") json["sliding_window"] = windows.width;
  if (type.starts_with("qwen")) windows.put(json);
  json["pad_token_id"] = data.pad ? Json(*data.pad) : Json();
  put_ends(json, ends);
  return {type, json};
}

Json labels(int64_t classes, bool to_id) {
  Json all = Json::object();
  for (int64_t n = 0; n < classes; ++n) {
    const auto name = fmt::format("LABEL_{}", n);
    to_id ? all[name] = n : all[std::to_string(n)] = name;
  }
  return all;
}

Json of_width(const StackOptions& s, const Heads& heads) {
  return {
      {"hidden_size", s.d_model},           {"num_hidden_layers", s.layers},
      {"num_attention_heads", heads.heads}, {"intermediate_size", s.hidden_width()},
      {"hidden_act", activation(s.mlp)},    {"layer_norm_eps", s.norm_eps},
      {"hidden_dropout_prob", s.dropout},   {"attention_probs_dropout_prob", weights_dropout(s)}};
}

void require_no_numbers(const DataShape& data, const char* model) {
  require(data.values == 0, fmt::format("numbers that {} predicts", model));
}

PublishedConfig bert(const StackOptions& s, const ConfigNode& options, const DataShape& data) {
  const auto heads = common_heads(s);
  require(s.position->kind == "learned", "model.position: " + s.position->kind + " of an encoder");
  require_plain(s, heads, false);
  require_no_numbers(data, "an encoder");
  auto head = options.find("head")->text;
  if (head == "auto") head = data.classes > 0 ? "classes" : "masked";
  Json json{{"model_type", "bert"},
            {"architectures",
             {head == "masked"    ? "BertForMaskedLM"
              : head == "classes" ? "BertForSequenceClassification"
                                  : "BertModel"}}};
  json.update(of_width(s, heads));
  json.update(Json{{"vocab_size", data.vocabulary},
                   {"max_position_embeddings", data.context},
                   {"type_vocab_size", 2},
                   {"pad_token_id", data.pad ? Json(*data.pad) : Json()},
                   {"tie_word_embeddings", true}});
  if (head == "classes") {
    json["id2label"] = labels(data.classes, false);
    json["label2id"] = labels(data.classes, true);
  }
  return {"bert", json};
}

PublishedConfig vit(const StackOptions& s, const ConfigNode& options, const DataShape& data) {
  const auto heads = common_heads(s);
  require(s.position->kind == "learned", "model.position: " + s.position->kind + " of a vit");
  require_plain(s, heads, true);
  require_no_numbers(data, "a vit");
  require(data.height == data.width, "images that are no squares");
  Json json{{"model_type", "vit"}, {"architectures", {"ViTForImageClassification"}}};
  json.update(of_width(s, heads));
  json.update(Json{{"image_size", data.height},
                   {"patch_size", std::stoll(options.find("patch")->text)},
                   {"num_channels", data.channels},
                   {"qkv_bias", true},
                   {"id2label", labels(data.classes, false)},
                   {"label2id", labels(data.classes, true)}});
  return {"vit", json};
}

PublishedConfig marian(const ModelOptions& model, const ConfigNode& options,
                       const DataShape& data) {
  const auto stacks = model.stacks();
  const auto &reads = *stacks.at(0), &writes = *stacks.at(1);
  require(reads.mlp == writes.mlp, "another activation on each side");
  for (const auto* side : {&reads, &writes}) {
    require(side->position->kind == "sinusoidal",
            "model.position: " + side->position->kind + " of a model that translates");
    require_plain(*side, common_heads(*side), false);
    require(side->norm_eps == 1e-5, "model.norm_eps other than 1e-5 of a model that translates");
  }
  const bool shared = is_true(options, "share_embeddings", false);
  Json json{{"model_type", "marian"},
            {"architectures", {"MarianMTModel"}},
            {"is_encoder_decoder", true},
            {"d_model", reads.d_model},
            {"activation_function", activation(reads.mlp)},
            {"vocab_size", data.source_vocabulary},
            {"decoder_vocab_size", data.vocabulary},
            {"share_encoder_decoder_embeddings", shared},
            {"tie_word_embeddings", true},
            {"scale_embedding", reads.scales_embedding()},
            {"max_position_embeddings", std::max(data.context, data.source_context)},
            {"dropout", reads.dropout},
            {"attention_dropout", weights_dropout(reads)},
            {"activation_dropout", reads.activation_dropout},
            {"pad_token_id", *data.pad},
            {"decoder_start_token_id", *data.start},
            {"bos_token_id", nullptr},
            {"eos_token_id", *data.end},
            {"forced_eos_token_id", nullptr}};
  for (const auto* side : {&reads, &writes}) {
    json[side->name() + "_layers"] = side->layers;
    json[side->name() + "_attention_heads"] = common_heads(*side).heads;
    json[side->name() + "_ffn_dim"] = side->hidden_width();
  }
  return {"marian", json};
}

}  // namespace

PublishedConfig published_config(const KindBlock& model, const DataShape& data, bool tied,
                                 const std::vector<int64_t>& ends) {
  const auto& options = model.as<ModelOptions>();
  const auto written = model.write();
  if (model.kind() == "seq2seq") return marian(options, written, data);
  const auto& stack = *options.stacks().at(0);
  if (model.kind() == "encoder") return bert(stack, written, data);
  if (model.kind() == "vit") return vit(stack, written, data);
  require(is_true(written, "causal", true), "model.causal: false of a decoder");
  const auto* head = written.find("head");
  require(!head || head->text == "tokens", "model.head: " + head->text + " of a decoder");
  return published_type(model.kind(), options) == "gpt2" ? gpt2(stack, data, tied, ends)
                                                         : llama(stack, data, tied, ends);
}

}  // namespace headlab
