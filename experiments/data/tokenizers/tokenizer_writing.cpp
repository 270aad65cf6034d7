// tokenizer.json, and the files of old where these say all of it.
#include <fmt/format.h>

#include <algorithm>

#include "core/config/config.h"
#include "experiments/data/tokenizers/bpe_pieces.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/data/tokenizers/tokenizer_json.h"
#include "experiments/files/replacement_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

json ids_of(const Texts& tokens) {
  auto ids = json::object();
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) ids[tokens[id]] = id;
  return ids;
}

json special(int64_t id, const std::string& text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json template_of(const Tokenizer& tokenizer, const Texts& texts) {
  const auto [begin, end] = tokenizer.frame();
  if (!begin && !end) return nullptr;
  auto specials = json::object();
  auto single = json::array(), pair = json::array();
  const auto add = [&](json& list, const std::optional<int64_t>& id, int type) {
    if (!id) return;
    const auto& text = texts[*id];
    specials[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
    list.push_back({{"SpecialToken", {{"id", text}, {"type_id", type}}}});
  };
  const auto add_text = [](json& list, const char* name, int type) {
    list.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
  };
  for (auto* list : {&single, &pair}) {
    add(*list, begin, 0);
    add_text(*list, "A", 0);
    add(*list, end, 0);
  }
  add_text(pair, "B", 1);
  add(pair, end, 1);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", specials}};
}

json split_of(const char* regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

json byte_level(bool own_pattern) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", own_pattern}};
}

json sequence(const json& first, const json& second) {
  return {{"type", "Sequence"}, {"pretokenizers", {first, second}}};
}

json word_level(const Texts& tokens, const std::string& unknown) {
  return {{"type", "WordLevel"}, {"vocab", ids_of(tokens)}, {"unk_token", unknown}};
}

void fill_bpe(json& file, const Texts& tokens, const json& merges, const std::string& pattern,
              bool ignore_merges) {
  if (pattern == "gpt2") file["pre_tokenizer"] = byte_level(true);
  if (pattern == "smollm2")
    file["pre_tokenizer"] =
        sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(true));
  for (const auto& known : kWrittenPatterns)
    if (pattern == known.name && pattern != "gpt2")
      file["pre_tokenizer"] = sequence(split_of(known.regex), byte_level(false));
  if (pattern == "qwen2") file["normalizer"] = {{"type", "NFC"}};
  file["decoder"] = byte_level(true);
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", ignore_merges},
                   {"vocab", ids_of(tokens)},
                   {"merges", merges}};
}

void fill_wordpiece(json& file, const OrderedJson& from, const Texts& tokens) {
  file["normalizer"] = {{"type", "BertNormalizer"},
                        {"clean_text", true},
                        {"handle_chinese_chars", true},
                        {"strip_accents", from.at("strip_accents").get<bool>()},
                        {"lowercase", from.at("lower_case").get<bool>()}};
  file["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  file["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  file["model"] = {{"type", "WordPiece"},
                   {"unk_token", from.at("unknown").get<std::string>()},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100},
                   {"vocab", ids_of(tokens)}};
}

void fill_words(json& file, const OrderedJson& from, const Texts& tokens) {
  const auto line_end = from.at("line_end").get<std::string>();
  if (!line_end.empty())
    file["normalizer"] = {
        {"type", "Replace"}, {"pattern", {{"String", "\n"}}}, {"content", " " + line_end + " "}};
  file["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  file["model"] = word_level(tokens, tokens.at(from.at("unknown").get<size_t>()));
}

constexpr const char* kGpt2EndOfText = "<|endoftext|>";

// What transformers' classes take for granted, so that the files of old say all of it.
bool is_of_gpt2(const OrderedJson& of) {
  return of.at("kind") == "bpe" && of.at("specials") == OrderedJson{kGpt2EndOfText} &&
         !of.contains("pattern") && !of.contains("ignore_merges") && !of.contains("begin") &&
         !of.contains("end");
}
bool is_of_bert(const OrderedJson& of) {
  if (of.at("kind") != "wordpiece") return false;
  const auto tokens = of.at("tokens").get<Texts>();
  const auto is = [&](const char* key, const char* token) {
    return of.contains(key) && tokens.at(of.at(key).get<size_t>()) == token;
  };
  return std::ranges::find(tokens, "") == tokens.end() &&  // a line has no other number
         std::ranges::is_permutation(of.at("specials").get<Texts>(),
                                     Texts{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) &&
         of.at("unknown") == "[UNK]" && is("begin", "[CLS]") && is("end", "[SEP]");
}

void write_gpt2(const OrderedJson& of, json& config, const fs::path& folder) {
  const auto tokens = of.at("tokens").get<Texts>();
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : of.at("merges")) merges += merge.get<std::string>() + "\n";
  replace_file(folder / "vocab.json", ids_of(tokens).dump() + "\n");
  replace_file(folder / "merges.txt", merges);
  config["tokenizer_class"] = "GPT2Tokenizer";
  for (const char* key : {"bos_token", "eos_token", "unk_token"}) config[key] = kGpt2EndOfText;
}

void write_bert(const OrderedJson& of, json& config, const fs::path& folder) {
  std::string lines;
  for (const auto& token : of.at("tokens")) {
    const auto text = token.get<std::string>();
    if (text.find_first_of("\r\n") != text.npos)
      throw ConfigError("vocab.txt cannot hold a token that has an end of a line in it");
    lines += text + "\n";
  }
  replace_file(folder / "vocab.txt", lines);
  const bool lower_case = of.at("lower_case").get<bool>();
  const bool strip_accents = of.at("strip_accents").get<bool>();
  config["tokenizer_class"] = "BertTokenizer";
  config["do_lower_case"] = lower_case;
  if (strip_accents != lower_case) config["strip_accents"] = strip_accents;
}

void write_fast(const Tokenizer& tokenizer, json& config, const fs::path& folder) {
  const auto file = tokenizer_json(tokenizer);
  replace_file(folder / "tokenizer.json", file.dump(1) + "\n");
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  // The unknown of characters is none.
  const auto unknown = file.at("model").value("unk_token", json());
  if (unknown.is_string() && file.at("model").at("vocab").contains(unknown))
    config["unk_token"] = unknown;
}

}  // namespace

json tokenizer_json(const Tokenizer& tokenizer) {
  const auto from = tokenizer.json();
  const auto kind = from.at("kind").get<std::string>();
  Texts tokens = from.contains("tokens") ? from["tokens"].get<Texts>() : tokenizer.token_texts();
  json file{{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", json::array()},
            {"normalizer", nullptr},
            {"pre_tokenizer", nullptr},
            {"post_processor", template_of(tokenizer, tokens)},
            {"decoder", nullptr},
            {"model", nullptr}};
  if (kind == "char") {
    file["pre_tokenizer"] = split_of(kEveryCharacter);
    file["decoder"] = {{"type", "Fuse"}};
    file["model"] = word_level(tokens, "<unk>");  // which is none: others are an error
  } else if (kind == "words") {
    fill_words(file, from, tokens);
  } else if (kind == "wordpiece") {
    fill_wordpiece(file, from, tokens);
  } else if (kind == "bpe") {
    fill_bpe(file, tokens, from.at("merges"), from.value("pattern", "gpt2"),
             from.value("ignore_merges", false));
  } else if (kind == "bytes") {  // BPE without a merge
    fill_bpe(file, {bpe_symbols().begin(), bpe_symbols().end()}, json::array(), "gpt2", false);
  } else {
    throw NotKnownHere(fmt::format("tokenizer.json has no tokenizers of kind {}", kind));
  }
  auto specials = tokenizer.specials();
  std::ranges::sort(specials);
  for (int64_t id : specials) file["added_tokens"].push_back(special(id, tokens.at(id)));
  return file;
}

void write_tokenizer_folder(const Tokenizer& tokenizer, const fs::path& folder,
                            std::optional<int64_t> max_length) {
  const auto of = tokenizer.json();
  if (of.at("kind") == "padded")  // the model's settings say how many there are
    return write_tokenizer_folder(*read_tokenizer(of.at("tokenizer")), folder, max_length);
  json config{{"clean_up_tokenization_spaces", false}};
  if (max_length) config["model_max_length"] = *max_length;
  try {
    if (is_of_gpt2(of))
      write_gpt2(of, config, folder);
    else if (is_of_bert(of))
      write_bert(of, config, folder);
    else
      write_fast(tokenizer, config, folder);
  } catch (const NotKnownHere& unknown) {
    throw ConfigError(unknown.what());
  }
  replace_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace headlab
