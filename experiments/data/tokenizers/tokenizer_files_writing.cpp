#include <fmt/format.h>

#include "core/config/config.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/data/tokenizers/tokenizer_json.h"
#include "experiments/files/replacement_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Texts = std::vector<std::string>;

constexpr const char* kGpt2EndOfText = "<|endoftext|>";

// What transformers' classes take for granted, so that the files of old say all of it.
bool is_of_gpt2(const nlohmann::ordered_json& of) {
  return of.at("kind") == "bpe" && of.at("specials") == nlohmann::ordered_json{kGpt2EndOfText} &&
         !of.contains("pattern") && !of.contains("ignore_merges") && !of.contains("begin") &&
         !of.contains("end");
}
bool is_of_bert(const nlohmann::ordered_json& of) {
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

void write_gpt2(const nlohmann::ordered_json& of, json& config, const fs::path& folder) {
  const auto tokens = of.at("tokens").get<Texts>();
  auto ids = json::object();
  for (size_t id = 0; id < tokens.size(); ++id)
    if (!tokens[id].empty()) ids[tokens[id]] = id;
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : of.at("merges")) merges += merge.get<std::string>() + "\n";
  replace_file(folder / "vocab.json", ids.dump() + "\n");
  replace_file(folder / "merges.txt", merges);
  config["tokenizer_class"] = "GPT2Tokenizer";
  for (const char* key : {"bos_token", "eos_token", "unk_token"}) config[key] = kGpt2EndOfText;
}

void write_bert(const nlohmann::ordered_json& of, json& config, const fs::path& folder) {
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
