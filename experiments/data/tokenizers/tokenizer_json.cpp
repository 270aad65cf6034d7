#include "experiments/data/tokenizers/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/data/tokenizers/char_tokenizer.h"
#include "experiments/data/tokenizers/word_tokenizer.h"
#include "experiments/data/tokenizers/wordpiece_tokenizer.h"

namespace headlab {
namespace {

using nlohmann::json;
using Places = std::vector<JsonPlace>;

// What stands under `key`: nothing, one step, or a Sequence of them under `list`.
Places steps_of(const JsonPlace& file, const std::string& key, const std::string& list) {
  const auto found = file.find(key);
  if (!found) return {};
  if (found->at("type").text() != "Sequence") return {*found};
  return found->at(list).elements();
}

// A key that may be missing must have this value.
void require(const JsonPlace& place, const std::string& key, const json& only) {
  const auto found = place.find(key);
  if (found && found->value() != only)
    found->unknown(fmt::format("{} is not known here, only {}", found->value().dump().substr(0, 60),
                               only.dump()));
}

void require_type(const JsonPlace& step, const std::string& only) {
  if (step.at("type").text() != only)
    step.unknown(fmt::format("{} is not known here, only {}", step.at("type").text(), only));
}

// Tokens that are cut out verbatim.
std::vector<std::string> added_tokens(const JsonPlace& file) {
  std::vector<std::string> added;
  const auto list = file.find("added_tokens");
  if (!list) return added;
  for (const auto& one : list->elements()) {
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) require(one, flag, false);
    if (file.find("normalizer")) require(one, "normalized", false);
    one.at("id").integer();  // the library gives another one where this is not the next
    added.push_back(one.at("content").text());
  }
  return added;
}

// The only token of a special that a template names.
int64_t template_token(const JsonPlace& post, const JsonPlace& item) {
  const auto name = item.at("SpecialToken").at("id").text();
  const auto ids = post.at("special_tokens").at(name).at("ids").elements();
  if (ids.size() != 1) item.unknown("is not one token");
  return ids[0].integer();
}

void add_template(const JsonPlace& post, TextFrame& frame) {
  bool behind = false;
  for (const auto& item : post.at("single").elements()) {
    if (item.find("Sequence")) {
      behind = true;
      continue;
    }
    auto& side = behind ? frame.end : frame.begin;
    if (side) item.unknown("more than one token on a side of a text");
    side = template_token(post, item);
  }
}

TextFrame frame_of(const JsonPlace& file) {
  TextFrame frame;
  for (const auto& post : steps_of(file, "post_processor", "processors")) {
    const auto type = post.at("type").text();
    const auto token = [&](const char* key) {
      const auto pair = post.at(key).elements();
      if (pair.size() != 2) post.at(key).refuse("is no token and its id");
      return pair[1].integer();
    };
    if (type == "TemplateProcessing")
      add_template(post, frame);
    else if (type == "BertProcessing")
      frame = {token("cls"), token("sep")};
    else
      require_type(post, "ByteLevel");  // which trims places alone
  }
  return frame;
}

std::shared_ptr<const Tokenizer> read_wordpiece_json(const JsonPlace& file) {
  const auto model = file.at("model");
  require(model, "continuing_subword_prefix", "##");
  require(model, "max_input_chars_per_word", 100);
  const auto normalizers = steps_of(file, "normalizer", "normalizers");
  const auto cutters = steps_of(file, "pre_tokenizer", "pretokenizers");
  if (normalizers.size() != 1) file.unknown("WordPiece is known here with one normalizer only");
  if (cutters.size() != 1) file.unknown("WordPiece is known here with one pre_tokenizer only");
  const auto& normalizer = normalizers[0];
  require_type(normalizer, "BertNormalizer");
  require(normalizer, "clean_text", true);
  require(normalizer, "handle_chinese_chars", true);
  require_type(cutters[0], "BertPreTokenizer");
  auto table = token_table(model.at("vocab"), added_tokens(file));
  const bool lower_case = normalizer.truth("lowercase", true);
  WordPieceModel made{.tokens = std::move(table.tokens),
                      .specials = std::move(table.specials),
                      .unknown = model.at("unk_token").text(),
                      .lower_case = lower_case,
                      .strip_accents = normalizer.truth("strip_accents", lower_case),
                      .frame = frame_of(file)};
  return made_of(model.name(), [&] { return wordpiece_tokenizer(std::move(made)); });
}

// Of the steps before ByteLevel, and its own.
BpePattern pattern_of(const JsonPlace& file) {
  const auto steps = steps_of(file, "pre_tokenizer", "pretokenizers");
  if (steps.empty()) file.unknown("BPE is known here with a pre_tokenizer only");
  const auto& bytes = steps.back();
  require_type(bytes, "ByteLevel");
  if (bytes.truth("add_prefix_space", true)) bytes.unknown("add_prefix_space is not known here");
  const bool own = bytes.truth("use_regex", true);
  if (steps.size() == 1 && own) return BpePattern::kGpt2;
  if (steps.size() != 2)
    file.unknown(fmt::format("no known pattern of BPE has {} pre_tokenizers", steps.size()));
  const auto& first = steps[0];
  if (own) {
    require_type(first, "Digits");
    if (!first.truth("individual_digits", false)) first.unknown("digits that stay together");
    return BpePattern::kSmollm2;
  }
  require_type(first, "Split");
  require(first, "behavior", "Isolated");
  require(first, "invert", false);
  const auto regex = first.at("pattern").find("Regex");
  if (!regex) first.unknown("splits at something else than a regular expression");
  for (const auto& known : kWrittenPatterns)
    if (regex->text() == known.regex) return *bpe_pattern(known.name);
  regex->unknown(fmt::format("the pattern {} is not known here", regex->text().substr(0, 200)));
}

std::shared_ptr<const Tokenizer> read_bpe_json(const JsonPlace& file) {
  const auto model = file.at("model");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    require(model, key, "");
  require(model, "byte_fallback", false);
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0)
    dropout->unknown("merges that are left out at random are not known here");
  auto table = token_table(model.at("vocab"), added_tokens(file));
  BpeModel made{.tokens = std::move(table.tokens),
                .merges = {},
                .specials = std::move(table.specials),
                .pattern = pattern_of(file),
                .ignore_merges = model.truth("ignore_merges", false),
                .frame = frame_of(file)};
  made.drops_unknown_bytes = !have_all_symbols(made.tokens);
  if (made.drops_unknown_bytes && !model.text("unk_token", "").empty())
    model.unknown("bytes that become unk_token are not known here");
  const auto normalizers = steps_of(file, "normalizer", "normalizers");
  if (normalizers.size() != (made.pattern == BpePattern::kQwen2 ? 1 : 0))
    file.unknown(fmt::format("the pattern {} is not known with {} normalizers",
                             name_of(made.pattern), normalizers.size()));
  for (const auto& step : normalizers) require_type(step, "NFC");
  const auto list = model.at("merges").elements();
  made.merges.reserve(list.size());
  for (const auto& merge : list) {
    if (!merge.value().is_array()) {
      made.merges.push_back(bpe_merge(merge.text(), merge.name()));
      continue;
    }
    const auto pair = merge.elements();
    if (pair.size() != 2) merge.refuse("is no merge of two tokens");
    made.merges.emplace_back(pair[0].text(), pair[1].text());
  }
  return made_of(model.name(), [&] { return bpe_tokenizer(std::move(made)); });
}

std::shared_ptr<const Tokenizer> read_characters(const JsonPlace& file,
                                                 const std::vector<std::string>& tokens) {
  std::u32string characters;
  for (const auto& token : tokens) {
    const auto one = decode_utf8(token, file.name());
    if (one.size() != 1) file.unknown(fmt::format("'{}' is no single character", token));
    characters += one;
  }
  if (!std::ranges::is_sorted(characters))
    file.unknown("characters are known here in ascending order only");
  return made_of(file.name(), [&] { return char_tokenizer(characters); });
}

std::shared_ptr<const Tokenizer> read_words(const JsonPlace& file, TokenTable table) {
  const auto model = file.at("model");
  auto& tokens = table.tokens;
  WordRules rules{.specials = std::move(table.specials)};
  const auto count = std::ssize(rules.specials);
  if (!std::equal(rules.specials.begin(), rules.specials.end(), tokens.begin()))
    file.unknown("words are known here with added_tokens before all others only");
  const auto unknown = std::ranges::find(rules.specials, model.at("unk_token").text());
  if (unknown == rules.specials.end())
    model.unknown("words are known here with an unk_token among added_tokens only");
  rules.unknown = unknown - rules.specials.begin();
  for (const auto& step : steps_of(file, "normalizer", "normalizers")) {
    require_type(step, "Replace");
    if (step.at("pattern").at("String").text() != "\n" || !rules.line_end.empty())
      step.unknown("only ends of lines are known here to be replaced");
    rules.line_end = step.at("content").text();
    const auto begin = rules.line_end.find_first_not_of(' ');
    if (begin == std::string::npos) step.refuse("replaces ends of lines by nothing");
    rules.line_end = rules.line_end.substr(begin, rules.line_end.find_last_not_of(' ') + 1 - begin);
  }
  tokens.erase(tokens.begin(), tokens.begin() + count);
  return made_of(model.name(), [&] { return word_tokenizer(std::move(rules), std::move(tokens)); });
}

std::shared_ptr<const Tokenizer> read_word_level(const JsonPlace& file) {
  auto table = token_table(file.at("model").at("vocab"), added_tokens(file));
  if (std::ranges::find(table.tokens, "") != table.tokens.end())
    file.at("model").at("vocab").unknown("WordLevel is known here without ids that have no token");
  const auto cutters = steps_of(file, "pre_tokenizer", "pretokenizers");
  if (cutters.size() != 1) file.unknown("WordLevel is known here with one pre_tokenizer only");
  const auto& cutter = cutters[0];
  if (cutter.at("type").text() == "WhitespaceSplit") return read_words(file, std::move(table));
  require_type(cutter, "Split");
  require(cutter, "behavior", "Isolated");
  require(cutter, "invert", false);
  require(cutter.at("pattern"), "Regex", kEveryCharacter);
  if (!table.specials.empty()) file.unknown("characters are known here without added_tokens only");
  if (file.find("normalizer"))
    file.at("normalizer").unknown("characters are known without one only");
  return read_characters(file.at("model").at("vocab"), table.tokens);
}

// The oldest files do not name it.
std::string model_type(const JsonPlace& model) {
  if (const auto type = model.find("type")) return type->text();
  if (model.find("merges")) return "BPE";
  if (model.find("max_input_chars_per_word")) return "WordPiece";
  return model.at("vocab").value().is_array() ? "Unigram" : "WordLevel";
}

}  // namespace

std::optional<int64_t> TokenTable::id(const std::string& token) const {
  const auto found = std::ranges::find(tokens, token);
  if (token.empty() || found == tokens.end()) return std::nullopt;
  return found - tokens.begin();
}

TokenTable token_table(const JsonPlace& vocabulary, const std::vector<std::string>& added) {
  constexpr int64_t kMostId = std::numeric_limits<uint32_t>::max(), kMostUnused = 1 << 20;
  if (!vocabulary.value().is_object()) vocabulary.refuse("is no object");
  std::map<int64_t, std::string> by_id;
  std::unordered_map<std::string, int64_t> ids;
  const auto put = [&](const std::string& token, int64_t id) {
    const auto [other, fresh] = by_id.emplace(id, token);
    if (!fresh)
      vocabulary.unknown(
          fmt::format("'{}' and '{}' have id {}; tokens are known here with an id "
                      "each",
                      other->second, token, id));
    ids[token] = id;
  };
  for (const auto& [token, id] : vocabulary.value().items()) {
    if (!id.is_number_integer() || id < 0 || id > kMostId)
      vocabulary.refuse(fmt::format("gives '{}' the id {}; ids are whole numbers from 0 to {}",
                                    token, id.dump(), kMostId));
    if (!token.empty()) put(token, id);
  }
  const auto count = std::ssize(vocabulary.value());
  int64_t next = count;
  TokenTable table;
  std::unordered_set<std::string> seen;
  for (const auto& token : added) {
    if (token.empty() || !seen.insert(token).second) continue;
    if (!ids.contains(token)) put(token, next);
    next = std::max(next, ids[token] + 1);
    table.specials.push_back(token);
  }
  std::ranges::sort(table.specials, {}, [&](const auto& token) { return ids[token]; });
  const int64_t size = by_id.empty() ? 0 : by_id.rbegin()->first + 1;
  if (size - std::ssize(by_id) > kMostUnused)
    vocabulary.unknown(
        fmt::format("{} ids for {} tokens: more than a million have none", size, by_id.size()));
  table.tokens.resize(size);
  for (auto& [id, token] : by_id) table.tokens[id] = std::move(token);
  return table;
}

std::shared_ptr<const Tokenizer> read_tokenizer_json(const JsonPlace& file) {
  const auto model = file.at("model");
  const auto type = model_type(model);
  if (type == "WordPiece") return read_wordpiece_json(file);
  if (type == "BPE") return read_bpe_json(file);
  if (type == "WordLevel") return read_word_level(file);
  model.unknown(fmt::format(
      "{} is not known here, only WordPiece, byte-level BPE, characters and words", type));
}

}  // namespace headlab
