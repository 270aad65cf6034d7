#include <fmt/format.h>

#include <algorithm>

#include "experiments/data/tokenizers/bpe_pieces.h"
#include "experiments/data/tokenizers/tokenizer_json.h"

namespace headlab {
namespace {

using nlohmann::json;
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

void fill_wordpiece(json& file, const nlohmann::ordered_json& from, const Texts& tokens) {
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

void fill_words(json& file, const nlohmann::ordered_json& from, const Texts& tokens) {
  const auto line_end = from.at("line_end").get<std::string>();
  if (!line_end.empty())
    file["normalizer"] = {
        {"type", "Replace"}, {"pattern", {{"String", "\n"}}}, {"content", " " + line_end + " "}};
  file["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  file["model"] = word_level(tokens, tokens.at(from.at("unknown").get<size_t>()));
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

}  // namespace headlab
