#include "experiments/pretrained/hugging_face_families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "experiments/models/stack_options.h"

namespace headlab {
namespace {

std::string layer_name(const std::string& before, int64_t layer) {
  return fmt::format("{}{}.", before, layer);
}

// What training on drops.
std::string dropouts(const HuggingFaceSettings& s, const char* states, const char* weights) {
  return fmt::format("dropout: {}, attention_dropout: {}", shortest(s.get<double>(states)),
                     shortest(s.get<double>(weights)));
}

// A rate of its own for something that drops out as the states do here.
void say_dropout(const HuggingFaceSettings& s, const char* key, const char* states,
                 HuggingFacePlan& plan) {
  if (s.find(key) && s.get<double>(key) != s.get<double>(states))
    plan.notices.push_back(fmt::format("{} {} is left out: {} holds there, too", key,
                                       shortest(s.get<double>(key)), states));
}

// How many classes there are; what else is said of them has no place here.
int64_t labels(const HuggingFaceSettings& s, std::vector<std::string>& notices) {
  if (s.find("problem_type") && s.get<std::string>("problem_type") != "single_label_classification")
    notices.push_back(
        fmt::format("problem_type '{}' is left out: the loss and the accuracy are those of one "
                    "class an example",
                    s.get<std::string>("problem_type")));
  const auto* names = s.find("id2label");
  if (!names) return s.size("num_labels");
  if (!names->is_object() || names->empty()) s.refuse("id2label must name the classes");
  for (const auto& [id, name] : names->items())
    if (name != "LABEL_" + id) {
      notices.push_back(fmt::format(
          "id2label is left out: the {} classes keep their numbers and lose their names",
          names->size()));
      break;
    }
  return std::ssize(*names);
}

// Of a model whose head is always tied: a file that says otherwise holds both.
void require_copy(const HuggingFaceSettings& s, const ForeignNames& names, const char* source,
                  const char* copy) {
  const auto *held = names.find(source), *other = names.find(copy);
  if (!s.get<bool>("tie_word_embeddings") && held && other && *held == *other)
    s.refuse(fmt::format("tie_word_embeddings is false, but the file has one of {} and {} alone",
                         source, copy));
}

// Of decoders, whose logits are made by the embedding then.
void say_bare(const HuggingFaceSettings& s, const std::string& task, HuggingFacePlan& plan) {
  if (task == "bare" && s.get<bool>("tie_word_embeddings"))
    plan.notices.emplace_back(
        "the file's class has no head: the token embedding makes the logits, as where both are "
        "tied");
}

// ---- GPT-2 (Radford et al. 2019)

HuggingFacePlan gpt2_plan(const HuggingFaceSettings& s, const ForeignNames&,
                          const std::string& task) {
  s.require("scale_attn_weights", true);
  s.require("scale_attn_by_inverse_layer_idx", false);
  s.require("add_cross_attention", false);
  const int64_t D = s.size("n_embd");
  HuggingFacePlan plan{
      "decoder",
      fmt::format("{{layers: {}, d_model: {}, heads: {}, d_ff: {}, mlp: {}, bias: true, "
                  "norm_eps: {}, tie: {}, {}, attention: {{kind: mha, bias: true}}}}",
                  s.size("n_layer"), D, s.size("n_head"), s.size("n_inner", 4 * D),
                  s.activation("activation_function"),
                  shortest(s.get<double>("layer_norm_epsilon")), s.get<bool>("tie_word_embeddings"),
                  dropouts(s, "resid_pdrop", "attn_pdrop")),
      {.vocabulary = s.size("vocab_size"), .context = s.size("n_positions")}};
  say_dropout(s, "embd_pdrop", "resid_pdrop", plan);
  say_bare(s, task, plan);
  return plan;
}

std::vector<TiedNames> gpt2_tied(const HuggingFaceSettings& s) {
  if (!s.get<bool>("tie_word_embeddings")) return {};
  return {{"transformer.wte.weight", "lm_head.weight"}};
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

// The base of positions that turn queries and keys as they are. `rope_scaling` is what older files
// call rope_parameters, and `type` what they call rope_type.
double rope_base(const HuggingFaceSettings& s) {
  s.require("partial_rotary_factor", 1.0);
  std::optional<double> base;
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const auto* rope = s.find(key);
    if (!rope) continue;
    if (!rope->is_object()) s.refuse(key + " must be an object");
    bool typed = false;
    for (const char* type : {"rope_type", "type"})
      if (const auto found = rope->find(type); found != rope->end()) {
        typed = true;
        if (*found != "default")
          s.unknown(
              fmt::format("{}.{}: {} is not known here, only 'default'", key, type, found->dump()));
      }
    for (const auto& [name, value] : rope->items()) {
      if (name == "rope_theta") continue;
      const bool whole = name == "partial_rotary_factor" && value == 1;
      if (value.is_object() || (!typed && !whole) || (name == "partial_rotary_factor" && !whole))
        s.unknown(fmt::format("{}.{}: is not known here", key, name));
    }
    if (const auto theta = rope->find("rope_theta"); theta != rope->end() && !base) {
      if (!theta->is_number()) s.refuse(fmt::format("{}.rope_theta must be a number", key));
      base = theta->get<double>();
    }
  }
  return base ? *base : s.get<double>("rope_theta");
}

// The kinds of attention that layer_types names: true where a layer slides. Empty where it is null.
std::vector<bool> sliding_layers(const HuggingFaceSettings& s) {
  if (!s.find("layer_types")) return {};
  const auto types = s.get<std::vector<std::string>>("layer_types");
  if (std::ssize(types) != s.size("num_hidden_layers"))
    s.refuse(fmt::format("layer_types are {}, the layers {}", types.size(),
                         s.size("num_hidden_layers")));
  std::vector<bool> slide;
  for (const auto& type : types) {
    if (type != "full_attention" && type != "sliding_attention")
      s.unknown(fmt::format(
          "layer_types: '{}' is not known here, only full_attention and sliding_attention", type));
    slide.push_back(type == "sliding_attention");
  }
  return slide;
}

// What each layer's queries see, as `window` has it: of Mistral all layers alike; of Qwen those
// that layer_types names, else those from max_window_layers on, and only where it is switched on.
std::string windows(const HuggingFaceSettings& s) {
  const bool qwen = s.model_type().starts_with("qwen"), llama = s.model_type() == "llama";
  const auto named = sliding_layers(s);
  const bool some = std::find(named.begin(), named.end(), true) != named.end();
  if (!s.find("sliding_window") || (qwen && !s.get<bool>("use_sliding_window"))) {
    if (some)
      s.unknown(fmt::format("layer_types: sliding_attention, but {}",
                            llama  ? "llama slides in no layer"
                            : qwen ? "use_sliding_window is false or sliding_window is null"
                                   : "sliding_window is null"));
    return "0";
  }
  if (llama) s.unknown("sliding_window: llama has none");
  if (!qwen && std::find(named.begin(), named.end(), false) != named.end())
    s.unknown("layer_types: full_attention, but mistral slides in every layer");
  const int64_t layers = s.size("num_hidden_layers"), window = s.size("sliding_window");
  const int64_t first = qwen ? s.get<int64_t>("max_window_layers") : 0;
  std::string all;
  for (int64_t l = 0; l < layers; ++l) {
    const bool slides = named.empty() ? l >= first : named[l];
    all += fmt::format("{}{}", l > 0 ? ", " : "", slides ? window : 0);
  }
  return "[" + all + "]";
}

// Mistral (arXiv 2310.06825), Qwen2 (2407.10671) and Qwen3 (2505.09388) have its names, too.
HuggingFacePlan llama_plan(const HuggingFaceSettings& s, const ForeignNames&,
                           const std::string& task) {
  const auto& type = s.model_type();
  if (s.activation("hidden_act") != "silu") s.unknown("hidden_act: only silu is known here");
  const int64_t D = s.size("hidden_size"), H = s.size("num_attention_heads");
  // Of the others' classes these keys say nothing.
  const bool biased = (type == "llama" || type == "qwen3") && s.get<bool>("attention_bias");
  const bool mlp_biased = type == "llama" && s.get<bool>("mlp_bias");
  const std::string heads =
      type == "qwen2" ? "qkv_bias: true, o_bias: false" : fmt::format("bias: {}", biased);
  const auto eps = shortest(s.get<double>("rms_norm_eps"));
  const auto normed = type == "qwen3" ? fmt::format(", qk_norm: true, qk_norm_eps: {}", eps) : "";
  const int64_t V = s.size("vocab_size");
  HuggingFacePlan plan{
      "decoder",
      fmt::format("{{layers: {}, d_model: {}, heads: {}, kv_heads: {}, head_dim: {}, d_ff: {}, "
                  "norm: rms, norm_eps: {}, mlp: swiglu, bias: {}, tie: {}, dropout: 0, "
                  "attention_dropout: {}, window: {}, position: {{kind: rope, base: {}}}, "
                  "attention: {{kind: mha, {}{}}}}}",
                  s.size("num_hidden_layers"), D, H, s.size("num_key_value_heads", H),
                  s.size("head_dim", std::max<int64_t>(1, D / H)), s.size("intermediate_size"), eps,
                  mlp_biased, s.get<bool>("tie_word_embeddings"),
                  shortest(s.get<double>("attention_dropout")), windows(s), shortest(rope_base(s)),
                  heads, normed),
      {.vocabulary = V,
       .context = s.size("max_position_embeddings"),
       .pad = s.token("pad_token_id", V)}};
  say_bare(s, task, plan);
  return plan;
}

std::vector<TiedNames> llama_tied(const HuggingFaceSettings& s) {
  if (!s.get<bool>("tie_word_embeddings")) return {};
  return {{"model.embed_tokens.weight", "lm_head.weight"}};
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

HuggingFacePlan bert_plan(const HuggingFaceSettings& s, const ForeignNames& names,
                          const std::string& asked) {
  s.require("is_decoder", false);
  s.require("add_cross_attention", false);
  s.require("position_embedding_type", "absolute");
  s.require("type_vocab_size", 2);
  const bool headless = asked == "masked" && !names.has_any("cls.predictions.transform.") &&
                        !names.contains("cls.predictions.bias");
  const std::string task = headless ? "bare" : asked;
  const bool classes = task == "classes";
  if (task == "masked")
    require_copy(s, names, "bert.embeddings.word_embeddings.weight",
                 "cls.predictions.decoder.weight");
  const int64_t V = s.size("vocab_size");
  HuggingFacePlan plan{
      "encoder",
      fmt::format("{{layers: {}, d_model: {}, heads: {}, d_ff: {}, mlp: {}, norm_eps: {}, {}, "
                  "head: {}, pooler: {}, attention: {{kind: mha, bias: true}}}}",
                  s.size("num_hidden_layers"), s.size("hidden_size"), s.size("num_attention_heads"),
                  s.size("intermediate_size"), s.activation("hidden_act"),
                  shortest(s.get<double>("layer_norm_eps")),
                  dropouts(s, "hidden_dropout_prob", "attention_probs_dropout_prob"),
                  task == "bare" ? "embedding" : task,
                  !classes && names.contains("bert.pooler.dense.weight")),
      {.vocabulary = V,
       .context = s.size("max_position_embeddings"),
       .pad = s.token("pad_token_id", V)}};
  if (headless)
    plan.notices.emplace_back(
        "the file lacks the head that fills in words, which its class has: the model only embeds");
  if (classes) {
    plan.shape.classes = labels(s, plan.notices);
    say_dropout(s, "classifier_dropout", "hidden_dropout_prob", plan);
  }
  return plan;
}

std::vector<TiedNames> bert_tied(const HuggingFaceSettings&) {
  return {{"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
          {"cls.predictions.bias", "cls.predictions.decoder.bias"}};
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
  list.add("bert.pooler.dense", "pooler");
  if (list.has("head.weight")) {
    list.add("classifier", "head");
  } else {  // of masked words a bias alone
    list.add_alone("cls.predictions.bias", "head.bias");
  }
}

// ---- ViT (Dosovitskiy et al., arXiv 2010.11929)

HuggingFacePlan vit_plan(const HuggingFaceSettings& s, const ForeignNames&, const std::string&) {
  const int64_t side = s.size("image_size");
  HuggingFacePlan plan{
      "vit",
      fmt::format("{{layers: {}, d_model: {}, heads: {}, d_ff: {}, mlp: {}, norm_eps: {}, {}, "
                  "patch: {}, attention: {{kind: mha, qkv_bias: {}, o_bias: true}}}}",
                  s.size("num_hidden_layers"), s.size("hidden_size"), s.size("num_attention_heads"),
                  s.size("intermediate_size"), s.activation("hidden_act"),
                  shortest(s.get<double>("layer_norm_eps")),
                  dropouts(s, "hidden_dropout_prob", "attention_probs_dropout_prob"),
                  s.size("patch_size"), s.get<bool>("qkv_bias")),
      {.channels = s.size("num_channels"), .height = side, .width = side}};
  plan.shape.classes = labels(s, plan.notices);
  return plan;
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

HuggingFacePlan marian_plan(const HuggingFaceSettings& s, const ForeignNames& names,
                            const std::string& task) {
  for (const char* side : {"encoder_layerdrop", "decoder_layerdrop"})
    if (s.get<double>(side) > 0) s.unknown(fmt::format("{}: layers are never dropped here", side));
  if (task != "bare") require_copy(s, names, "model.decoder.embed_tokens.weight", "lm_head.weight");
  const auto side = [&](const std::string& name) {
    return fmt::format("{}: {{layers: {}, heads: {}, d_ff: {}}}", name, s.size(name + "_layers"),
                       s.size(name + "_attention_heads"), s.size(name + "_ffn_dim"));
  };
  const int64_t source = s.size("vocab_size"), V = s.size("decoder_vocab_size", source);
  const int64_t context = s.size("max_position_embeddings");
  const auto token = [&](const char* key) {
    const auto id = s.token(key, V);
    return id ? *id : s.get<int64_t>(key);  // which names the key
  };
  HuggingFacePlan plan{
      "seq2seq",
      fmt::format(
          "{{d_model: {}, heads: {}, mlp: {}, share_embeddings: {}, {}, "
          "activation_dropout: {}, scale_embedding: {}, attention: {{kind: mha, bias: true}}, "
          "{}, {}}}",
          s.size("d_model"), s.size("encoder_attention_heads"), s.activation("activation_function"),
          s.get<bool>("share_encoder_decoder_embeddings"),
          dropouts(s, "dropout", "attention_dropout"),
          shortest(s.get<double>("activation_dropout")), s.get<bool>("scale_embedding"),
          side("encoder"), side("decoder")),
      {.vocabulary = V,
       .context = context,
       .source_vocabulary = source,
       .source_context = context,
       .pad = token("pad_token_id"),
       .start = token("decoder_start_token_id"),
       .end = token("eos_token_id")}};
  say_bare(s, task, plan);
  return plan;
}

std::vector<TiedNames> marian_tied(const HuggingFaceSettings& s) {
  if (!s.get<bool>("share_encoder_decoder_embeddings"))
    return {{"model.decoder.embed_tokens.weight", "lm_head.weight"}};
  return {{"model.shared.weight", "model.encoder.embed_tokens.weight",
           "model.decoder.embed_tokens.weight", "lm_head.weight"}};
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

std::vector<TiedNames> none_tied(const HuggingFaceSettings&) { return {}; }

const HuggingFaceFamily kGpt2{.prefix = "transformer.",
                              .plan = gpt2_plan,
                              .list = gpt2_rules,
                              .tied = gpt2_tied,
                              .tasks = {{"LMHeadModel", "words"}, {"Model", "bare"}}};
const HuggingFaceFamily kLlama{.prefix = "model.",
                               .plan = llama_plan,
                               .list = llama_rules,
                               .tied = llama_tied,
                               .tasks = {{"ForCausalLM", "words"}, {"Model", "bare"}}};
const HuggingFaceFamily kBert{
    .prefix = "bert.",
    .plan = bert_plan,
    .list = bert_rules,
    .tied = bert_tied,
    .tasks = {{"ForMaskedLM", "masked"},
              {"ForPreTraining", "masked"},
              {"ForSequenceClassification", "classes"},
              {"Model", "bare"}},
    .left_out = {{"cls.seq_relationship.", "the head that tells whether a sentence follows"},
                 {"cls.predictions.", "the head that fills in words"},
                 {"classifier.", "the head that tells classes apart"},
                 {"qa_outputs.", "the head that finds answers"}}};
const HuggingFaceFamily kVit{
    .prefix = "vit.",
    .plan = vit_plan,
    .list = vit_rules,
    .tied = none_tied,
    .tasks = {{"ForImageClassification", "classes"}},
    .left_out = {{"vit.pooler.", "a pooler, which its class never reads"}}};
const HuggingFaceFamily kMarian{.prefix = "model.",
                                .plan = marian_plan,
                                .list = marian_rules,
                                .tied = marian_tied,
                                .tasks = {{"MTModel", "words"}, {"Model", "bare"}}};

// A model_type: its family, and how the names of its classes begin.
struct KnownType {
  const HuggingFaceFamily* family;
  std::string classes;
};
const std::map<std::string, KnownType> kTypes{
    {"gpt2", {&kGpt2, "GPT2"}},        {"llama", {&kLlama, "Llama"}},
    {"mistral", {&kLlama, "Mistral"}}, {"qwen2", {&kLlama, "Qwen2"}},
    {"qwen3", {&kLlama, "Qwen3"}},     {"bert", {&kBert, "Bert"}},
    {"vit", {&kVit, "ViT"}},           {"marian", {&kMarian, "Marian"}}};

// What the file of a BERT holds where nobody says of which class it is.
std::string task_by_tensors(const HuggingFaceSettings& settings, const ForeignNames& names) {
  if (names.has_any("cls.predictions.transform.")) return "masked";  // the others may be tied
  for (const char* head : {"classifier.", "qa_outputs."})
    if (names.has_any(head))
      settings.unknown(
          fmt::format("architectures: is missing, and {}* may tell texts, words or answers apart; "
                      "name the class "
                      "there, as [\"BertForSequenceClassification\"]",
                      head));
  return "bare";
}

}  // namespace

ForeignNames::ForeignNames(const WeightFiles& files, const std::string& prefix,
                           const std::vector<TiedNames>& tied) {
  const auto add = [&](std::string name, const std::string& own) {
    for (const auto& [old, now] :
         {std::pair<std::string, std::string>{"LayerNorm.gamma", "LayerNorm.weight"},
          {"LayerNorm.beta", "LayerNorm.bias"}})
      if (name.ends_with(old)) name.replace(name.size() - old.size(), old.size(), now);
    own_.emplace(name, own);
    own_.emplace(prefix + name, own);
  };
  for (const auto& [own, shape] : files.shapes()) add(own, own);
  for (const auto& [name, kept] : files.aliases())
    if (files.contains(kept) && !files.contains(name)) add(name, kept);
  for (const auto& names : tied)
    for (const auto& held : names)
      if (const auto* own = find(held)) {
        const std::string kept = *own;
        for (const auto& name : names) own_.emplace(name, kept);
        break;
      }
}

bool ForeignNames::has_any(const std::string& beginning) const {
  const auto found = own_.lower_bound(beginning);
  return found != own_.end() && found->first.starts_with(beginning);
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
  const auto found = kTypes.find(settings.model_type());
  if (found != kTypes.end()) return *found->second.family;
  std::vector<std::string> known;
  for (const auto& [name, type] : kTypes) known.push_back(name);
  settings.unknown(fmt::format("model_type: '{}' is not known here; there are {}",
                               settings.model_type(), fmt::join(known, ", ")));
}

const HuggingFaceFamily& hugging_face_family(const std::string& model_type) {
  return *kTypes.at(model_type).family;
}

std::string hugging_face_task(const HuggingFaceSettings& settings, const ForeignNames& names) {
  const auto& [family, classes] = kTypes.at(settings.model_type());
  const auto* named = settings.find("architectures");
  const auto all =
      named ? settings.get<std::vector<std::string>>("architectures") : std::vector<std::string>();
  if (all.empty())
    return family == &kBert  ? task_by_tensors(settings, names)
           : family == &kVit ? "classes"
                             : "words";
  if (all.front().starts_with(classes))
    if (const auto found = family->tasks.find(all.front().substr(classes.size()));
        found != family->tasks.end())
      return found->second;
  std::vector<std::string> known;
  for (const auto& [end, task] : family->tasks) known.push_back(classes + end);
  settings.unknown(fmt::format("architectures: '{}' is not known here; of {} there {} {}",
                               all.front(), settings.model_type(), known.size() > 1 ? "are" : "is",
                               fmt::join(known, ", ")));
}

}  // namespace headlab
