#include "experiments/pretrained/hugging_face_families.h"

#include <map>

#include "experiments/models/stack_options.h"

namespace headlab {
namespace {

std::string layer_name(const std::string& before, int64_t layer) {
  return fmt::format("{}{}.", before, layer);
}

// What training on drops; 0 where the file does not say.
std::string dropouts(const HuggingFaceSettings& s, const char* states, const char* weights) {
  return fmt::format("dropout: {}, attention_dropout: {}", shortest(s.get<double>(states, 0)),
                     shortest(s.get<double>(weights, 0)));
}

// ---- GPT-2 (Radford et al. 2019)

HuggingFacePlan gpt2_plan(const HuggingFaceSettings& s, const ForeignNames&) {
  s.require("scale_attn_weights", true);
  s.require("scale_attn_by_inverse_layer_idx", false);
  s.require("add_cross_attention", false);
  const int64_t D = s.size("n_embd");
  return {"decoder",
          fmt::format("{{layers: {}, d_model: {}, heads: {}, d_ff: {}, mlp: {}, bias: true, "
                      "norm_eps: {}, tie: {}, {}, attention: {{kind: mha, bias: true}}}}",
                      s.size("n_layer"), D, s.size("n_head"), s.size("n_inner", 4 * D),
                      s.activation("activation_function"),
                      shortest(s.get<double>("layer_norm_epsilon", 1e-5)),
                      s.get<bool>("tie_word_embeddings", true),
                      dropouts(s, "resid_pdrop", "attn_pdrop")),
          {.vocabulary = s.size("vocab_size"), .context = s.size("n_positions")}};
}

void gpt2_rules(ForeignTensorList& list, int64_t layers) {
  list.add("transformer.wte", "embed.token");
  list.add("transformer.wpe", "embed.position");
  for (int64_t l = 0; l < layers; ++l) {
    const auto theirs = layer_name("transformer.h.", l), ours = layer_name("blocks.", l);
    list.add(theirs + "attn.c_attn",
             {ours + "attention.q", ours + "attention.k", ours + "attention.v"},
             /*transposed=*/true);
    list.add(theirs + "attn.c_proj", {ours + "attention.o"}, true);
    list.add(theirs + "mlp.c_fc", {ours + "mlp.up"}, true);
    list.add(theirs + "mlp.c_proj", {ours + "mlp.down"}, true);
    list.add_all(theirs, ours, {{"ln_1", "norm1"}, {"ln_2", "norm2"}});
  }
  list.add("transformer.ln_f", "norm");
  list.add("lm_head", "head");
}

// ---- LLaMA (Touvron et al., arXiv 2302.13971)

double rope_base(const HuggingFaceSettings& s) {
  s.require("rope_scaling", nullptr);
  if (const auto* rope = s.find("rope_parameters")) {
    if (rope->value("rope_type", "default") != "default")
      s.unknown("rope_parameters.rope_type: only 'default' is known here");
    if (rope->contains("rope_theta")) return rope->at("rope_theta").get<double>();
  }
  return s.get<double>("rope_theta", 10000);
}

// What each layer's queries see, as `window` has it: of Mistral all layers alike; of Qwen those
// from max_window_layers on, and only where it is switched on.
std::string windows(const HuggingFaceSettings& s, const std::string& model_type) {
  const bool qwen = model_type.starts_with("qwen");
  if (!s.find("sliding_window") || (qwen && !s.get<bool>("use_sliding_window", false))) return "0";
  if (model_type == "llama") s.unknown("sliding_window: llama has none");
  const int64_t layers = s.size("num_hidden_layers"), window = s.size("sliding_window");
  const auto first = qwen ? s.get<int64_t>("max_window_layers", layers) : 0;
  const auto types = s.get<std::vector<std::string>>("layer_types", {});
  if (!types.empty() && std::ssize(types) != layers)
    s.refuse(fmt::format("layer_types are {}, the layers {}", types.size(), layers));
  std::string all;
  for (int64_t l = 0; l < layers; ++l) {
    const bool slides = types.empty() ? l >= first : types[l] == "sliding_attention";
    all += fmt::format("{}{}", l > 0 ? ", " : "", slides ? window : 0);
  }
  return "[" + all + "]";
}

// Mistral (arXiv 2310.06825), Qwen2 (2407.10671) and Qwen3 (2505.09388) have its names, too.
HuggingFacePlan llama_plan(const HuggingFaceSettings& s, const ForeignNames&) {
  const auto model_type = s.get<std::string>("model_type");
  if (s.activation("hidden_act") != "silu") s.unknown("hidden_act: only silu is known here");
  const int64_t D = s.size("hidden_size"), H = s.size("num_attention_heads");
  const bool biased = s.get<bool>("attention_bias", false);
  const std::string heads =
      model_type == "qwen2" ? "qkv_bias: true, o_bias: false" : fmt::format("bias: {}", biased);
  const auto eps = shortest(s.get<double>("rms_norm_eps", 1e-6));
  const auto normed =
      model_type == "qwen3" ? fmt::format(", qk_norm: true, qk_norm_eps: {}", eps) : "";
  return {
      "decoder",
      fmt::format("{{layers: {}, d_model: {}, heads: {}, kv_heads: {}, head_dim: {}, d_ff: {}, "
                  "norm: rms, norm_eps: {}, mlp: swiglu, bias: {}, tie: {}, dropout: 0, "
                  "attention_dropout: {}, window: {}, position: {{kind: rope, base: {}}}, "
                  "attention: {{kind: mha, {}{}}}}}",
                  s.size("num_hidden_layers"), D, H, s.size("num_key_value_heads", H),
                  s.size("head_dim", std::max<int64_t>(1, D / H)), s.size("intermediate_size"), eps,
                  s.get<bool>("mlp_bias", false), s.get<bool>("tie_word_embeddings", false),
                  shortest(s.get<double>("attention_dropout", 0)), windows(s, model_type),
                  shortest(rope_base(s)), heads, normed),
      {.vocabulary = s.size("vocab_size"),
       .context = s.size("max_position_embeddings"),
       .pad =
           s.find("pad_token_id") ? std::optional(s.get<int64_t>("pad_token_id")) : std::nullopt}};
}

void llama_rules(ForeignTensorList& list, int64_t layers) {
  list.add("model.embed_tokens", "embed.token");
  for (int64_t l = 0; l < layers; ++l)
    list.add_all(layer_name("model.layers.", l), layer_name("blocks.", l),
                 {{"self_attn.q_proj", "attention.q"},
                  {"self_attn.k_proj", "attention.k"},
                  {"self_attn.v_proj", "attention.v"},
                  {"self_attn.o_proj", "attention.o"},
                  {"self_attn.q_norm", "attention.q_norm"},
                  {"self_attn.k_norm", "attention.k_norm"},
                  {"mlp.up_proj", "mlp.up"},
                  {"mlp.gate_proj", "mlp.gate"},
                  {"mlp.down_proj", "mlp.down"},
                  {"input_layernorm", "norm1"},
                  {"post_attention_layernorm", "norm2"}});
  list.add("model.norm", "norm");
  list.add("lm_head", "head");
}

// ---- BERT (Devlin et al., arXiv 1810.04805)

const std::vector<std::pair<std::string, std::string>> kBertLayer{
    {"attention.self.query", "attention.q"},
    {"attention.self.key", "attention.k"},
    {"attention.self.value", "attention.v"},
    {"attention.output.dense", "attention.o"},
    {"attention.output.LayerNorm", "norm1"},
    {"intermediate.dense", "mlp.up"},
    {"output.dense", "mlp.down"},
    {"output.LayerNorm", "norm2"}};

int64_t labels(const HuggingFaceSettings& s) {
  const auto* labels = s.find("id2label");
  return labels ? std::ssize(*labels) : s.size("num_labels", 2);
}

HuggingFacePlan bert_plan(const HuggingFaceSettings& s, const ForeignNames& names) {
  s.require("is_decoder", false);
  s.require("add_cross_attention", false);
  s.require("position_embedding_type", "absolute");
  s.require("type_vocab_size", 2);
  const bool classes = names.contains("classifier.weight");
  const char* head = names.contains("cls.predictions.bias") ? "masked"
                     : classes                              ? "classes"
                                                            : "embedding";
  return {"encoder",
          fmt::format("{{layers: {}, d_model: {}, heads: {}, d_ff: {}, mlp: {}, norm_eps: {}, {}, "
                      "head: {}, pooler: {}, attention: {{kind: mha, bias: true}}}}",
                      s.size("num_hidden_layers"), s.size("hidden_size"),
                      s.size("num_attention_heads"), s.size("intermediate_size"),
                      s.activation("hidden_act"), shortest(s.get<double>("layer_norm_eps", 1e-12)),
                      dropouts(s, "hidden_dropout_prob", "attention_probs_dropout_prob"), head,
                      !classes && names.contains("bert.pooler.dense.weight")),
          {.vocabulary = s.size("vocab_size"),
           .context = s.size("max_position_embeddings"),
           .classes = classes ? labels(s) : 0,
           .pad = s.get<int64_t>("pad_token_id", 0)}};
}

void bert_rules(ForeignTensorList& list, int64_t layers) {
  list.add("bert.embeddings.word_embeddings", "embed.token");
  list.add("bert.embeddings.position_embeddings", "embed.position");
  list.add("bert.embeddings.token_type_embeddings", "embed.segment");
  list.add("bert.embeddings.LayerNorm", "embed.norm");
  for (int64_t l = 0; l < layers; ++l)
    list.add_all(layer_name("bert.encoder.layer.", l), layer_name("blocks.", l), kBertLayer);
  list.add("cls.predictions.transform.dense", "head.dense");
  list.add("cls.predictions.transform.LayerNorm", "head.norm");
  list.add_alone("cls.predictions.bias", "head.bias");
  list.add("bert.pooler.dense", "pooler");
  if (list.has("head.weight")) list.add("classifier", "head");  // masked words have a bias alone
}

// ---- ViT (Dosovitskiy et al., arXiv 2010.11929)

HuggingFacePlan vit_plan(const HuggingFaceSettings& s, const ForeignNames&) {
  const int64_t side = s.size("image_size");
  return {
      "vit",
      fmt::format("{{layers: {}, d_model: {}, heads: {}, d_ff: {}, mlp: {}, norm_eps: {}, {}, "
                  "patch: {}, attention: {{kind: mha, qkv_bias: {}, o_bias: true}}}}",
                  s.size("num_hidden_layers"), s.size("hidden_size"), s.size("num_attention_heads"),
                  s.size("intermediate_size"), s.activation("hidden_act"),
                  shortest(s.get<double>("layer_norm_eps", 1e-12)),
                  dropouts(s, "hidden_dropout_prob", "attention_probs_dropout_prob"),
                  s.size("patch_size"), s.get<bool>("qkv_bias", true)),
      {.classes = labels(s), .channels = s.size("num_channels", 3), .height = side, .width = side}};
}

void vit_rules(ForeignTensorList& list, int64_t layers) {
  list.add_alone("vit.embeddings.cls_token", "embed.cls");
  list.add_alone("vit.embeddings.position_embeddings", "embed.position.weight");
  list.add("vit.embeddings.patch_embeddings.projection", "embed.patch");
  for (int64_t l = 0; l < layers; ++l)
    list.add_all(layer_name("vit.encoder.layer.", l), layer_name("blocks.", l),
                 {{"attention.attention.query", "attention.q"},
                  {"attention.attention.key", "attention.k"},
                  {"attention.attention.value", "attention.v"},
                  {"attention.output.dense", "attention.o"},
                  {"layernorm_before", "norm1"},
                  {"layernorm_after", "norm2"},
                  {"intermediate.dense", "mlp.up"},
                  {"output.dense", "mlp.down"}});
  list.add("vit.layernorm", "norm");
  list.add("classifier", "head");
}

// ---- Marian (Junczys-Dowmunt et al., arXiv 1804.00344): the transformer of 2017

HuggingFacePlan marian_plan(const HuggingFaceSettings& s, const ForeignNames&) {
  for (const char* side : {"encoder_layerdrop", "decoder_layerdrop"})
    if (s.get<double>(side, 0) > 0)
      s.unknown(fmt::format("{}: layers are never dropped here", side));
  const bool shared = s.get<bool>("share_encoder_decoder_embeddings", true);
  const auto side = [&](const std::string& name) {
    return fmt::format("{}: {{layers: {}, heads: {}, d_ff: {}}}", name, s.size(name + "_layers"),
                       s.size(name + "_attention_heads"), s.size(name + "_ffn_dim"));
  };
  const int64_t V = s.size("vocab_size"), context = s.size("max_position_embeddings");
  return {
      "seq2seq",
      fmt::format(
          "{{d_model: {}, heads: {}, mlp: {}, share_embeddings: {}, {}, "
          "activation_dropout: {}, scale_embedding: {}, attention: {{kind: mha, bias: true}}, "
          "{}, {}}}",
          s.size("d_model"), s.size("encoder_attention_heads"), s.activation("activation_function"),
          shared, dropouts(s, "dropout", "attention_dropout"),
          shortest(s.get<double>("activation_dropout", 0)), s.get<bool>("scale_embedding", false),
          side("encoder"), side("decoder")),
      {.vocabulary = s.size("decoder_vocab_size", V),
       .context = context,
       .source_vocabulary = V,
       .source_context = context,
       .pad = s.get<int64_t>("pad_token_id"),
       .start = s.get<int64_t>("decoder_start_token_id"),
       .end = s.get<int64_t>("eos_token_id")}};
}

void marian_rules(ForeignTensorList& list, int64_t) {
  list.add("model.shared", "embed.token");
  for (const std::string side : {"encoder", "decoder"}) {
    list.add("model." + side + ".embed_tokens", {side + ".embed.token"});
    const bool reads = side == "encoder";
    for (int64_t l = 0;; ++l) {
      const auto before = list.rules.size();
      const auto theirs = layer_name("model." + side + ".layers.", l);
      const auto ours = layer_name(side + ".blocks.", l);
      for (const auto& [their, our] :
           {std::pair<std::string, std::string>{"self_attn", "attention"},
            {"encoder_attn", "cross"}})
        list.add_all(
            theirs + their, ours + our,
            {{".q_proj", ".q"}, {".k_proj", ".k"}, {".v_proj", ".v"}, {".out_proj", ".o"}});
      list.add_all(theirs, ours,
                   {{"self_attn_layer_norm", "norm1"},
                    {"encoder_attn_layer_norm", reads ? "none" : "norm2"},
                    {"final_layer_norm", reads ? "norm2" : "norm3"},
                    {"fc1", "mlp.up"},
                    {"fc2", "mlp.down"}});
      if (list.rules.size() == before) break;
    }
  }
  list.add_alone("final_logits_bias", "head.bias");
}

const HuggingFaceFamily kGpt2{.prefix = "transformer.",
                              .plan = gpt2_plan,
                              .list = gpt2_rules,
                              .copies = {{"lm_head.weight", "transformer.wte.weight"}}};
const HuggingFaceFamily kLlama{.prefix = "model.",
                               .plan = llama_plan,
                               .list = llama_rules,
                               .copies = {{"lm_head.weight", "model.embed_tokens.weight"}}};
const HuggingFaceFamily kBert{
    .prefix = "bert.",
    .plan = bert_plan,
    .list = bert_rules,
    .copies = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
               {"cls.predictions.decoder.bias", "cls.predictions.bias"}}};
const HuggingFaceFamily kVit{.prefix = "vit.", .plan = vit_plan, .list = vit_rules, .copies = {}};
const HuggingFaceFamily kMarian{
    .prefix = "model.",
    .plan = marian_plan,
    .list = marian_rules,
    .copies = {{"lm_head.weight", "model.shared.weight"},
               {"lm_head.weight", "model.decoder.embed_tokens.weight"},
               {"model.encoder.embed_tokens.weight", "model.shared.weight"},
               {"model.decoder.embed_tokens.weight", "model.shared.weight"}}};
const std::map<std::string, const HuggingFaceFamily*> kFamilies{
    {"gpt2", &kGpt2},   {"llama", &kLlama}, {"mistral", &kLlama}, {"qwen2", &kLlama},
    {"qwen3", &kLlama}, {"bert", &kBert},   {"vit", &kVit},       {"marian", &kMarian}};

}  // namespace

ForeignNames::ForeignNames(const WeightFiles& files, const std::string& prefix) {
  for (const auto& [own, shape] : files.shapes()) {
    std::string name = own;
    for (const auto& [old, now] :
         {std::pair<std::string, std::string>{"LayerNorm.gamma", "LayerNorm.weight"},
          {"LayerNorm.beta", "LayerNorm.bias"}})
      if (name.ends_with(old)) name.replace(name.size() - old.size(), old.size(), now);
    own_.emplace(name, own);
    own_.emplace(prefix + name, own);
  }
}

const std::string* ForeignNames::find(const std::string& name) const {
  const auto found = own_.find(name);
  return found == own_.end() ? nullptr : &found->second;
}

void ForeignTensorList::add(const std::string& theirs, const std::vector<std::string>& ours,
                            bool transposed) {
  for (const char* part : {".weight", ".bias"}) {
    ForeignTensor rule{.name = theirs + part, .ours = {}, .transposed = transposed};
    for (const auto& name : ours)
      if (ours_.contains(name + part)) rule.ours.push_back(name + part);
    rule.transposed &= std::string(part) == ".weight";
    if (!rule.ours.empty()) rules.push_back(rule);
  }
}

const HuggingFaceFamily& hugging_face_family(const HuggingFaceSettings& settings) {
  const auto model_type = settings.get<std::string>("model_type");
  const auto found = kFamilies.find(model_type);
  if (found != kFamilies.end()) return *found->second;
  std::vector<std::string> known;
  for (const auto& [name, family] : kFamilies) known.push_back(name);
  settings.unknown(fmt::format("model_type: '{}' is not known here; there are {}", model_type,
                               fmt::join(known, ", ")));
}

const HuggingFaceFamily& hugging_face_family(const std::string& model_type) {
  return *kFamilies.at(model_type);
}

}  // namespace headlab
