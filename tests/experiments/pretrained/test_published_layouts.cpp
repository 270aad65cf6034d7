// What config.json and the file of weights may look like: classes, tied tensors under each of their
// names, keys that are left out, spellings of rope, heads that were pruned; of small models of the
// authors' code, changed.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/named_tensors.h"
#include "experiments/models/site_heads.h"
#include "experiments/pretrained/hugging_face.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_published_layouts {
namespace {

namespace fs = std::filesystem;
using Catch::Contains, Catch::Matchers::Equals, Catch::Matchers::StartsWith;
using nlohmann::json;

const fs::path kModels = fs::path(build::kSourceDir) / "tests/golden/models";

// A model of the golden files whose settings and tensors a test changes before it is read.
class Changed {
 public:
  explicit Changed(const std::string& name)
      : config(json::parse(std::ifstream(kModels / name / "config.json"))),
        tensors(read_tensors(kModels / name / "model.safetensors")) {}

  void rename(const std::string& from, const std::string& to) {
    REQUIRE(tensors.contains(from));
    tensors[to] = tensors.extract(from).mapped();
  }
  void drop(const std::string& beginning) {
    std::erase_if(tensors, [&](const auto& item) { return item.first.starts_with(beginning); });
  }
  HuggingFaceModel read() const {
    std::ofstream(*scratch_ / "config.json") << config;
    write_tensors(*scratch_ / "model.safetensors", tensors, metadata);
    return read_hugging_face(*scratch_ / "", at::kFloat);
  }
  // Exit code and message; "" where it is read.
  std::string complaint() const {
    try {
      read();
    } catch (const DataError& error) {
      return std::string("3 ") + error.what();
    } catch (const ConfigError& error) {
      return std::string("2 ") + error.what();
    }
    return "";
  }
  fs::path folder() const { return *scratch_ / ""; }

  json config;
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;

 private:
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

std::string option(const HuggingFaceModel& made, const char* name) {
  const auto written = made.options.write();
  const auto* found = written.find(name);
  if (!found) return "";
  if (found->kind == ConfigNode::Kind::kScalar) return found->text;
  std::string items;
  for (const auto& item : found->items) items += (items.empty() ? "" : ",") + item.text;
  return items;
}

void check_same_weights(const HuggingFaceModel& a, const HuggingFaceModel& b) {
  const auto first = a.model->named_parameters(), second = b.model->named_parameters();
  REQUIRE(first.size() == second.size());
  for (const auto& item : first) {
    INFO(item.key());
    CHECK(at::equal(item.value(), second[item.key()]));
  }
}

Batch tokens(int64_t vocabulary) {
  Batch batch;
  batch.ids = (at::arange(12, at::kLong) * 7 + 3).remainder(vocabulary).view({2, 6});
  return batch;
}

struct Tie {
  const char *model, *held, *instead;
};
const std::vector<Tie> kTies{
    {"gpt2", "transformer.wte.weight", "lm_head.weight"},
    {"llama_tied", "model.embed_tokens.weight", "lm_head.weight"},
    {"marian", "model.shared.weight", "lm_head.weight"},
    {"marian", "model.shared.weight", "model.encoder.embed_tokens.weight"},
    {"marian", "model.shared.weight", "model.decoder.embed_tokens.weight"},
    {"bert_mlm", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
    {"bert_mlm", "cls.predictions.bias", "cls.predictions.decoder.bias"}};

TEST_CASE("of tensors that are tied a file may hold any one") {
  const auto tie = GENERATE(from_range(kTies));
  INFO(tie.model << ": " << tie.held << " as " << tie.instead);
  const Changed whole(tie.model);
  Changed changed(tie.model);
  changed.rename(tie.held, tie.instead);
  const bool told = GENERATE(false, true);  // as safetensors.torch.save_model tells
  if (told) changed.metadata = {{tie.held, tie.instead}};
  check_same_weights(changed.read(), whole.read());
}

TEST_CASE(
    "several tensors of a tied group must be the same, and without a tie each must be there") {
  Changed both("gpt2");
  both.tensors["lm_head.weight"] = both.tensors.at("transformer.wte.weight").clone();
  CHECK_THAT(both.complaint(), Equals(""));
  both.tensors["lm_head.weight"][3][4] += 1;
  CHECK_THAT(both.complaint(), StartsWith("3 ") && Contains("lm_head.weight is tied to"));
  both.config["tie_word_embeddings"] = false;
  CHECK_THAT(both.complaint(), Equals(""));
  both.drop("transformer.wte");
  CHECK_THAT(both.complaint(), StartsWith("3 ") && Contains("transformer.wte.weight is missing"));
  for (const char* name : {"marian", "bert_mlm"}) {
    INFO(name);
    Changed one(name);
    one.config["tie_word_embeddings"] = false;
    CHECK_THAT(one.complaint(), StartsWith("3 ") && Contains("tie_word_embeddings is false"));
  }
}

TEST_CASE("tensors that were one when they were saved are found by the metadata") {
  Changed changed("gpt2");
  const std::string kept = "transformer.h.0.ln_1.weight", gone = "transformer.h.1.ln_1.weight";
  changed.tensors[gone] = changed.tensors.at(kept).clone();
  const auto whole = changed.read();
  changed.drop(gone);
  CHECK_THAT(changed.complaint(), Contains(gone + " is missing"));
  changed.metadata = {{gone, kept}};
  check_same_weights(changed.read(), whole);
}

// BERT with a pooler and a head of classes in the place of that of masked words.
Changed classifier(int64_t classes) {
  Changed changed("bert_mlm");
  changed.drop("cls.");
  const at::TensorOptions options = at::kFloat;
  const auto wave = [&](std::vector<int64_t> sizes) {
    return (at::arange(c10::multiply_integers(sizes), options) * 0.37).sin().view(sizes) * 0.3;
  };
  changed.tensors["bert.pooler.dense.weight"] = wave({32, 32});
  changed.tensors["bert.pooler.dense.bias"] = wave({32});
  changed.tensors["classifier.weight"] = wave({classes, 32});
  changed.tensors["classifier.bias"] = wave({classes});
  changed.config["architectures"] = {"BertForSequenceClassification"};
  for (int64_t n = 0; n < classes; ++n)
    changed.config["id2label"][std::to_string(n)] = fmt::format("LABEL_{}", n);
  return changed;
}

TEST_CASE(
    "a BERT that tells classes of texts apart is its pooler and a layer over the first token") {
  torch::NoGradGuard no_grad;
  const auto changed = classifier(3);
  const auto made = changed.read();
  CHECK(made.shape.classes == 3);
  CHECK(made.notices.empty());
  HiddenStates hidden;
  ModelContext context;
  context.hidden = &hidden;
  made.model->eval();
  const auto logits = made.model->forward(tokens(97), context).logits;
  const auto tensor = [&](const char* name) { return changed.tensors.at(name); };
  const auto first = made.model->last_state(hidden).select(1, 0);
  const auto pooled = at::tanh(
      at::linear(first, tensor("bert.pooler.dense.weight"), tensor("bert.pooler.dense.bias")));
  const auto want = at::linear(pooled, tensor("classifier.weight"), tensor("classifier.bias"));
  CHECK(at::allclose(logits, want, 1e-5, 1e-5));
}

TEST_CASE("a class that does something else is refused by its name") {
  struct Refused {
    const char *model, *name;
  };
  const Refused classes[] = {{"bert_mlm", "BertForTokenClassification"},
                             {"bert_mlm", "BertForQuestionAnswering"},
                             {"bert_mlm", "BertForMultipleChoice"},
                             {"bert_mlm", "BertForNextSentencePrediction"},
                             {"bert_mlm", "BertLMHeadModel"},
                             {"bert_mlm", "RobertaForMaskedLM"},
                             {"gpt2", "GPT2ForSequenceClassification"},
                             {"gpt2", "GPT2ForTokenClassification"},
                             {"gpt2", "GPT2DoubleHeadsModel"},
                             {"llama_gqa", "LlamaForSequenceClassification"},
                             {"llama_gqa", "MistralForCausalLM"},
                             {"vit", "ViTModel"},
                             {"vit", "ViTForMaskedImageModeling"},
                             {"marian", "MarianForCausalLM"}};
  for (const auto& [model, name] : classes) {
    INFO(name);
    Changed changed(model);
    changed.config["architectures"] = {name};
    CHECK_THAT(changed.complaint(),
               StartsWith("2 ") && Contains("architectures: '" + std::string(name) + "'"));
    auto tokens_head = classifier(3);  // whatever the tensors are
    tokens_head.config["architectures"] = {name};
    CHECK_THAT(tokens_head.complaint(), !Equals(""));
  }
  Changed wrong("bert_mlm");
  wrong.config["architectures"] = 5;
  CHECK_THAT(wrong.complaint(), StartsWith("3 ") && Contains("architectures cannot be 5"));
}

TEST_CASE("without architectures the tensors tell, or are asked about") {
  Changed masked("bert_mlm");
  const auto whole = masked.read();
  masked.config.erase("architectures");
  check_same_weights(masked.read(), whole);
  CHECK(option(masked.read(), "head") == "masked");
  masked.drop("cls.");
  CHECK(option(masked.read(), "head") == "embedding");
  auto classes = classifier(2);
  classes.config.erase("architectures");
  CHECK_THAT(classes.complaint(), StartsWith("2 ") && Contains("architectures: is missing") &&
                                      Contains("BertForSequenceClassification"));
  for (const char* name : {"gpt2", "llama_gqa", "vit", "marian"}) {
    INFO(name);
    Changed other(name);
    other.config.erase("architectures");
    CHECK_THAT(other.complaint(), Equals(""));
  }
}

TEST_CASE("what an import leaves out is said in a sentence") {
  const auto notices = [](const Changed& changed) {
    std::string all;
    for (const auto& notice : changed.read().notices) all += notice + "\n";
    return all;
  };
  for (const char* name : {"gpt2", "llama_gqa", "bert_mlm", "vit", "marian"}) {
    INFO(name);
    CHECK_THAT(notices(Changed(name)), Equals(""));
  }
  Changed both("bert_mlm");
  both.config["architectures"] = {"BertForPreTraining"};
  both.tensors["cls.seq_relationship.weight"] = at::zeros({2, 32});
  both.tensors["cls.seq_relationship.bias"] = at::zeros({2});
  CHECK(notices(both) ==
        "cls.seq_relationship.* is left out: the head that tells whether a sentence follows\n");
  both.config["architectures"] = {"BertModel"};
  CHECK_THAT(notices(both), Contains("cls.predictions.* is left out") &&
                                Contains("cls.seq_relationship.* is left out"));
  Changed unknown("bert_mlm");
  unknown.tensors["cls.predictions.more"] = at::zeros({2});
  CHECK_THAT(unknown.complaint(), Contains("cls.predictions.more is not known"));

  Changed headless("bert_mlm");
  headless.drop("cls.");
  CHECK_THAT(notices(headless), Contains("lacks the head that fills in words"));

  auto classes = classifier(2);
  classes.config["id2label"] = {{"0", "NEGATIVE"}, {"1", "POSITIVE"}};
  classes.config["problem_type"] = "multi_label_classification";
  classes.config["classifier_dropout"] = 0.3;
  CHECK_THAT(notices(classes), Contains("id2label is left out: the 2 classes") &&
                                   Contains("problem_type 'multi_label_classification'") &&
                                   Contains("classifier_dropout 0.3 is left out"));
  Changed images("vit");
  images.tensors["vit.pooler.dense.weight"] = at::zeros({32, 32});
  std::ofstream(images.folder() / "preprocessor_config.json")
      << R"({"image_mean": [0.5], "image_std": [0.25]})";
  CHECK_THAT(notices(images), Contains("vit.pooler.* is left out") &&
                                  Contains("image_mean [0.5] and image_std [0.25]"));
  Changed bare("gpt2");
  bare.config["architectures"] = {"GPT2Model"};
  bare.config["embd_pdrop"] = 0.25;
  CHECK_THAT(notices(bare), Contains("has no head") && Contains("embd_pdrop 0.25 is left out"));
  Changed sentences("bert_mlm");
  sentences.drop("cls.");
  sentences.config["architectures"] = {"BertModel"};
  fs::create_directory(sentences.folder() / "1_Pooling");
  std::ofstream(sentences.folder() / "1_Pooling/config.json")
      << R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})";
  CHECK_THAT(notices(sentences), Contains("pooling_mode_cls_token"));
}

// LLaMA's golden file as one of its relatives, of `layers` layers.
Changed relative(const std::string& type, const std::string& classes, int64_t layers) {
  Changed changed("llama_gqa");
  const std::string first = "model.layers.0.";
  for (const auto& [name, tensor] : NamedTensors(changed.tensors)) {
    if (!name.starts_with(first)) continue;
    for (int64_t l = 0; l < layers; ++l) {
      const auto copy = fmt::format("model.layers.{}.{}", l, name.substr(first.size()));
      changed.tensors[copy] = tensor.clone();
      for (const char* biased : {"q_proj.weight", "k_proj.weight", "v_proj.weight"})
        if (type == "qwen2" && copy.ends_with(biased))
          changed.tensors[copy.substr(0, copy.size() - 6) + "bias"] = at::zeros({tensor.size(0)});
    }
  }
  for (int64_t l = layers; l < 2; ++l) changed.drop(fmt::format("model.layers.{}.", l));
  changed.config["model_type"] = type;
  changed.config["architectures"] = {classes + "ForCausalLM"};
  changed.config["num_hidden_layers"] = layers;
  return changed;
}

TEST_CASE("keys that config.json leaves out are what transformers takes them for") {
  auto late = relative("qwen2", "Qwen2", 30);  // max_window_layers: 28
  late.config["use_sliding_window"] = true;
  late.config["sliding_window"] = 4;
  std::string want;
  for (int64_t l = 0; l < 30; ++l) want += fmt::format("{}{}", l > 0 ? "," : "", l < 28 ? 0 : 4);
  CHECK(option(late.read(), "window") == want);
  auto mistral = relative("mistral", "Mistral", 1);  // sliding_window: 4096
  CHECK(option(mistral.read(), "window") == "4096");
  mistral.config["sliding_window"] = nullptr;
  CHECK(option(mistral.read(), "window") == "0");
  Changed gpt2("gpt2");
  for (const char* key :
       {"resid_pdrop", "layer_norm_epsilon", "activation_function", "tie_word_embeddings"})
    gpt2.config.erase(key);
  CHECK(option(gpt2.read(), "dropout") == "0.1");
  CHECK(option(gpt2.read(), "mlp") == "gelu_tanh");
  gpt2.config.erase("n_head");
  gpt2.config["num_attention_heads"] = 8;  // its other name
  CHECK(option(gpt2.read(), "heads") == "8");
  gpt2.config.erase("n_embd");
  CHECK_THAT(gpt2.complaint(), Contains("the settings mean [97,768]") || Contains("asks for more"));
  Changed llama("llama_gqa");
  for (const char* key : {"rms_norm_eps", "rope_parameters", "hidden_act", "eos_token_id"})
    llama.config.erase(key);
  CHECK(option(llama.read(), "norm_eps") == "1.0e-06");
  CHECK(llama.read().ends == std::vector<int64_t>{2});
  Changed bert("bert_mlm");
  for (const char* key : {"hidden_act", "layer_norm_eps", "type_vocab_size", "pad_token_id"})
    bert.config.erase(key);
  CHECK(bert.read().shape.pad == 0);
  bert.config["pad_token_id"] = 97;
  CHECK_THAT(bert.complaint(), StartsWith("3 ") && Contains("pad_token_id: 97 is no token of 97"));
  bert.config["pad_token_id"] = -1;  // as torch counts
  CHECK(bert.read().shape.pad == 96);
  bert.config["pad_token_id"] = nullptr;
  CHECK_FALSE(bert.read().shape.pad.has_value());
}

TEST_CASE("rope that turns otherwise is refused under each of its spellings") {
  struct Spelling {
    const char *key, *value, *named;
  };
  const Spelling refused[] = {
      {"rope_parameters", R"({"type": "linear", "factor": 4})", "rope_parameters.type"},
      {"rope_parameters", R"({"rope_type": "yarn", "factor": 4})", "rope_parameters.rope_type"},
      {"rope_parameters", R"({"factor": 4})", "rope_parameters.factor"},
      {"rope_parameters", R"({"full_attention": {"rope_type": "linear"}})",
       "rope_parameters.full_attention"},
      {"rope_parameters", R"({"rope_type": "default", "partial_rotary_factor": 0.5})",
       "rope_parameters.partial_rotary_factor"},
      {"rope_scaling", R"({"type": "linear", "factor": 4})", "rope_scaling.type"},
      {"rope_scaling", R"({"rope_type": "dynamic", "factor": 4})", "rope_scaling.rope_type"},
      {"rope_scaling", R"({"factor": 4})", "rope_scaling.factor"},
      {"partial_rotary_factor", "0.5", "partial_rotary_factor"}};
  for (const auto& [key, value, named] : refused) {
    INFO(key << ": " << value);
    Changed changed("llama_gqa");
    changed.config[key] = json::parse(value);
    CHECK_THAT(changed.complaint(), StartsWith("2 ") && Contains(named));
  }
  struct Base {
    const char *key, *value, *base;
  };
  const Base taken[] = {{"rope_scaling", R"({"type": "default"})", "5000.0"},
                        {"rope_scaling", R"({"rope_type": "default", "rope_theta": 70.5})", "70.5"},
                        {"rope_parameters", R"({"type": "default", "rope_theta": 300})", "300.0"},
                        {"rope_parameters", R"({"rope_theta": 300})", "300.0"},
                        {"rope_parameters", R"({"partial_rotary_factor": 1.0})", "5000.0"},
                        {"rope_parameters", "{}", "5000.0"}};
  for (const auto& [key, value, base] : taken) {
    INFO(key << ": " << value);
    Changed changed("llama_gqa");
    changed.config.erase("rope_parameters");
    changed.config["rope_theta"] = 5000;
    changed.config[key] = json::parse(value);
    const auto written = changed.read().options.write();
    CHECK(written.find("position")->find("base")->text == base);
  }
}

TEST_CASE("layer_types are those of the windows, or are refused") {
  auto qwen = relative("qwen2", "Qwen2", 3);
  qwen.config["use_sliding_window"] = true;
  qwen.config["sliding_window"] = 4;
  qwen.config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  CHECK(option(qwen.read(), "window") == "4,0,4");
  qwen.config["use_sliding_window"] = false;
  CHECK_THAT(qwen.complaint(), StartsWith("2 ") && Contains("layer_types: sliding_attention"));
  qwen.config["layer_types"] = {"full_attention", "full_attention", "chunked_attention"};
  CHECK_THAT(qwen.complaint(), StartsWith("2 ") && Contains("layer_types: 'chunked_attention'"));
  qwen.config["layer_types"] = {"full_attention"};
  CHECK_THAT(qwen.complaint(), StartsWith("3 ") && Contains("layer_types are 1, the layers 3"));
  auto mistral = relative("mistral", "Mistral", 2);
  mistral.config["layer_types"] = {"sliding_attention", "full_attention"};
  CHECK_THAT(mistral.complaint(), StartsWith("2 ") && Contains("slides in every layer"));
  Changed llama("llama_gqa");
  llama.config["layer_types"] = {"sliding_attention", "full_attention"};
  CHECK_THAT(llama.complaint(), StartsWith("2 ") && Contains("llama slides in no layer"));
}

// Rows (or columns) of the heads that stay, of width 8.
Tensor without_heads(const Tensor& t, int64_t dim, const std::vector<int64_t>& gone) {
  std::vector<Tensor> kept;
  for (int64_t h = 0; h < t.size(dim) / 8; ++h)
    if (std::find(gone.begin(), gone.end(), h % 4) == gone.end())
      kept.push_back(t.narrow(dim, h * 8, 8));
  return at::cat(kept, dim);
}

TEST_CASE("heads that transformers has pruned are gone here, too") {
  torch::NoGradGuard no_grad;
  const std::string name = GENERATE("gpt2", "bert_mlm");
  INFO(name);
  Changed changed(name);
  const auto whole = changed.read();
  const std::vector<HeadId> gone{{0, 1}, {0, 3}, {1, 0}};
  changed.config["pruned_heads"] = {{"0", {1, 3}}, {"1", {0}}};
  CHECK_THAT(changed.complaint(),
             StartsWith("3 ") && Contains(name == "gpt2" ? "the settings mean [32,48]"
                                                         : "the settings mean [16,32]"));
  for (auto& [tensor_name, tensor] : changed.tensors) {
    // clang 14 captures no structured binding but by a name of its own.
    const auto has = [&name = tensor_name](const char* part) {
      return name.find(part) != std::string::npos;
    };
    const std::vector<int64_t> heads =
        has(".0.") ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{0};
    if (has("attn.c_attn.") || has("self.query") || has("self.key") || has("self.value"))
      tensor = without_heads(tensor, name == "gpt2" ? tensor.dim() - 1 : 0, heads);
    if (has("attn.c_proj.weight")) tensor = without_heads(tensor, 0, heads);
    if (has("attention.output.dense.weight")) tensor = without_heads(tensor, 1, heads);
  }
  const auto cut = changed.read();
  CHECK(alive_count(*cut.model) == 5);
  remove_heads(*whole.model, gone);
  whole.model->eval(), cut.model->eval();
  const auto want = whole.model->forward(tokens(97), {}).logits;
  CHECK(at::allclose(cut.model->forward(tokens(97), {}).logits, want, 1e-5, 1e-5));
  for (const char* wrong : {R"({"2": [0]})", R"({"0": [4]})", R"({"x": [0]})", R"([[0]])"}) {
    INFO(wrong);
    changed.config["pruned_heads"] = json::parse(wrong);
    CHECK_THAT(changed.complaint(), StartsWith("3 ") && Contains("pruned_heads"));
  }
  Changed other("llama_gqa");
  other.config["pruned_heads"] = {{"0", {1}}};
  CHECK_THAT(other.complaint(), StartsWith("2 ") && Contains("pruned_heads"));
}

}  // namespace
}  // namespace headlab::test_published_layouts
