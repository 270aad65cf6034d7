#include "experiments/data/tokenizers/tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/data/tokenizers/tokenizer_json.h"
#include "experiments/data/tokenizers/wordpiece_tokenizer.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Texts = std::vector<std::string>;

constexpr const char* kEndOfText = "<|endoftext|>";

// tokenizer_config.json and what stands beside it.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const fs::path& folder) : folder_(folder) {
    if (has("tokenizer_config.json")) config_ = read("tokenizer_config.json");
  }

  bool has(const char* name) const { return fs::exists(folder_ / name); }
  fs::path path(const char* name) const { return folder_ / name; }
  JsonPlace config() const { return {config_, path("tokenizer_config.json").string()}; }
  // Of files that it asks for.
  json read(const char* name) {
    take(name);
    return read_json(path(name));
  }
  void take(const char* name) { files_.push_back(fs::canonical(path(name))); }
  const std::vector<fs::path>& files() const { return files_; }

  // "cls_token": "[CLS]", or {"content": "[CLS]", ...}.
  std::string token(const char* key, const std::string& otherwise) const {
    const auto found = config().find(key);
    if (!found) return otherwise;
    return found->value().is_object() ? found->at("content").text() : found->text();
  }
  // What transformers cuts texts to; what stands there where nothing does is beyond any integer.
  std::optional<int64_t> max_length() const {
    const auto found = config().find("model_max_length");
    if (!found || !found->value().is_number_integer() || found->value() < 1) return std::nullopt;
    return found->integer();
  }
  // The class without "Fast", which has the same files.
  std::string tokenizer_class() const {
    auto name = config().text("tokenizer_class", "");
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    return name;
  }

 private:
  fs::path folder_;
  json config_ = json::object();
  std::vector<fs::path> files_;
};

// Tokens that are cut out verbatim, of the files that may name them: by the ids that these say.
Texts added_beside(TokenizerFolder& folder) {
  std::vector<std::pair<int64_t, std::string>> added;
  if (folder.has("added_tokens.json")) {
    const auto more = folder.read("added_tokens.json");
    const JsonPlace place(more, folder.path("added_tokens.json").string());
    if (!more.is_object()) place.refuse("is no object");
    for (const auto& [token, id] : more.items())
      added.emplace_back(place.at(token).integer(), token);
  }
  if (const auto list = folder.config().find("added_tokens_decoder")) {
    if (!list->value().is_object()) list->refuse("is no object");
    for (const auto& item : list->value().items()) {
      const auto& id = item.key();
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != id.npos)
        list->refuse(fmt::format("has '{}', which is no id", id));
      const auto place = list->at(id);
      for (const char* flag : {"single_word", "lstrip", "rstrip"})
        if (place.truth(flag, false)) place.at(flag).unknown("true is not known here, only false");
      added.emplace_back(std::stoll(id), place.at("content").text());
    }
  }
  std::ranges::stable_sort(added, {}, &std::pair<int64_t, std::string>::first);
  Texts tokens;
  for (auto& [id, token] : added) tokens.push_back(std::move(token));
  return tokens;
}

std::shared_ptr<const Tokenizer> read_vocab_txt(TokenizerFolder& folder) {
  const auto config = folder.config();
  const auto name = folder.tokenizer_class();
  if (!name.empty() && name != "BertTokenizer" && name != "DistilBertTokenizer" &&
      name != "ElectraTokenizer")
    config.unknown(fmt::format("tokenizer_class {} is not known here with vocab.txt", name));
  for (const char* key : {"tokenize_chinese_chars", "do_basic_tokenize"})
    if (!config.truth(key, true)) config.unknown(fmt::format("{}: only true is known here", key));
  folder.take("vocab.txt");
  const auto path = folder.path("vocab.txt");
  auto model = read_wordpiece(MappedFile(path).text(), path.string());
  auto ids =
      json::object();  // of a token that is there twice the last line, as transformers has it
  for (size_t line = 0; line < model.tokens.size(); ++line) ids[model.tokens[line]] = line;
  auto added = added_beside(folder);
  const auto named = [&](const char* key, const char* bert) {
    auto token = folder.token(key, bert);
    if (ids.contains(token)) added.push_back(token);
    return token;
  };
  named("pad_token", "[PAD]"), named("mask_token", "[MASK]");
  model.unknown = named("unk_token", "[UNK]");
  const auto begin = named("cls_token", "[CLS]"), end = named("sep_token", "[SEP]");
  auto table = token_table(JsonPlace(ids, path.string()), added);
  model.frame = {table.id(begin), table.id(end)};
  model.tokens = std::move(table.tokens);
  model.specials = std::move(table.specials);
  model.lower_case = config.truth("do_lower_case", true);
  model.strip_accents = config.truth("strip_accents", model.lower_case);
  return made_of(path.string(), [&] { return wordpiece_tokenizer(std::move(model)); });
}

std::shared_ptr<const Tokenizer> read_vocab_and_merges(TokenizerFolder& folder) {
  const auto config = folder.config();
  const auto name = folder.tokenizer_class();
  const bool qwen = name == "Qwen2Tokenizer";
  if (!name.empty() && !qwen && name != "GPT2Tokenizer")
    config.unknown(fmt::format("tokenizer_class {} is not known here with merges.txt", name));
  if (config.truth("add_prefix_space", false)) config.unknown("add_prefix_space is not known here");
  const auto ids = folder.read("vocab.json");
  const JsonPlace vocabulary(ids, folder.path("vocab.json").string());
  if (!ids.is_object()) vocabulary.refuse("is no object");
  auto added = added_beside(folder);
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto token = folder.token(key, kEndOfText);
    const bool is_added = std::ranges::find(added, token) != added.end();
    if (ids.contains(token))
      added.push_back(token);
    else if (config.find(key) && !is_added)
      config.at(key).unknown(fmt::format("'{}' has no id", token));
  }
  folder.take("merges.txt");
  auto table = token_table(vocabulary, added);
  TextFrame frame;
  if (config.truth("add_bos_token", false))
    frame.begin = table.id(folder.token("bos_token", kEndOfText));
  BpeModel model{.tokens = std::move(table.tokens),
                 .merges = read_merges(folder.path("merges.txt")),
                 .specials = std::move(table.specials),
                 .pattern = qwen ? BpePattern::kQwen2 : BpePattern::kGpt2,
                 .frame = frame};
  model.drops_unknown_bytes = !have_all_symbols(model.tokens);
  return made_of(vocabulary.name(), [&] { return bpe_tokenizer(std::move(model)); });
}

std::shared_ptr<const Tokenizer> read_first_that_is_there(TokenizerFolder& folder) {
  if (folder.has("tokenizer.json")) {
    const auto file = folder.read("tokenizer.json");
    return read_tokenizer_json(JsonPlace(file, folder.path("tokenizer.json").string()));
  }
  if (folder.has("vocab.txt")) return read_vocab_txt(folder);
  if (folder.has("vocab.json") && folder.has("merges.txt")) return read_vocab_and_merges(folder);
  for (const char* name :
       {"tokenizer.model", "spiece.model", "source.spm", "sentencepiece.bpe.model"})
    if (folder.has(name))
      throw NotKnownHere(folder.path(name).string() + ": SentencePiece is not known here");
  throw NotKnownHere(folder.path("").string() +
                     ": no tokenizer.json, no vocab.txt, no vocab.json with merges.txt");
}

}  // namespace

FoundTokenizer read_tokenizer_folder(const fs::path& path) {
  FoundTokenizer found;
  TokenizerFolder folder(path);
  try {
    found.tokenizer = read_first_that_is_there(folder);
  } catch (const NotKnownHere& unknown) {
    found.reason = unknown.what();
  }
  found.files = folder.files();
  found.max_length = folder.max_length();
  return found;
}

}  // namespace headlab
