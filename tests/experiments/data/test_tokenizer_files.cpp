// Tokenizers of Hugging Face's files: what they say, what no tokenizer here does, what is damaged.
#include "core/config/config.h"
#include "core/errors.h"
#include "experiments/data/tokenizers/bpe_tokenizer.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/data/tokenizers/char_tokenizer.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "experiments/data/tokenizers/tokenizer_files.h"
#include "experiments/data/tokenizers/word_tokenizer.h"
#include "experiments/data/tokenizers/wordpiece_tokenizer.h"
#include "experiments/files/mapped_file.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/framed_text.h"
#include "tests/pretrained_testing.h"
#include "tests/tokenizer_testing.h"

namespace headlab::test_tokenizer_files {
namespace {

using namespace testing;
using nlohmann::json;
using Ids = std::vector<int64_t>;
using Texts = std::vector<std::string>;

const fs::path kGolden = fs::path(build::kSourceDir) / "tests/golden";

const char* const kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json added(int64_t id, const std::string& text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// As MiniLM's, with fewer tokens.
json bert_file() {
  return json::parse(R"({"version": "1.0",
    "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 128}, "direction": "Right", "pad_id": 0, "pad_token": "[PAD]"},
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
      "pair": [],
      "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                         "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100,
              "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##b": 4, "A": 5, "\u00e9": 6, "e": 7}},
    "added_tokens": [{"id": 2, "content": "[SEP]", "special": true, "normalized": false},
                     {"id": 1, "content": "[CLS]", "special": true, "normalized": false}]})");
}

// Bytes, <s> and what the merges make; as GPT-2's.
json bpe_file() {
  auto vocabulary = json::object();
  for (const auto& symbol : bpe_symbols()) vocabulary[symbol] = vocabulary.size();
  for (const char* token : {"ab", "abc", "<s>"}) vocabulary[token] = vocabulary.size();
  json file{{"normalizer", nullptr}, {"added_tokens", {added(258, "<s>")}}};
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  file["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b", "ab c"}}};
  return file;
}

json split_bytes(const char* regex) {
  const json split{{"type", "Split"},
                   {"pattern", {{"Regex", regex}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  const json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

FoundTokenizer found_in(const Folder& folder, const json& file) {
  folder.write("tokenizer.json", file.dump());
  return read_tokenizer_folder(folder.path());
}

Texts encoded(const FoundTokenizer& found, const std::string& text) {
  INFO(found.reason);
  REQUIRE(found.tokenizer);
  return texts_of(*found.tokenizer, found.tokenizer->encode(text, "t").ids);
}

// The reason, or the error, without the folder.
std::string complaint(const Folder& folder, const json& file) {
  folder.write("tokenizer.json", file.dump());
  std::string reason;
  const auto error =
      error_of<DataError>([&] { reason = read_tokenizer_folder(folder.path()).reason; });
  const auto all = error == "no error" ? "here: " + reason : error;
  const auto at = all.find("tokenizer.json");
  return error == "no error" && at != all.npos ? "unknown: " + all.substr(at) : all.substr(at);
}

WordPieceModel cased() {
  auto model = read_wordpiece("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nA\n\u00e9\n", "v");
  model.lower_case = model.strip_accents = false;
  return model;
}

}  // namespace

TEST_CASE("tokenizer.json of BERT: its words, its specials, its frame; nothing is cut or padded",
          "[tokenizer][pretrained]") {
  const Folder folder;
  const auto found = found_in(folder, bert_file());
  CHECK(encoded(found, "Ab \u00c9x [SEP]") == Texts{"a", "##b", "[UNK]", "[SEP]"});
  CHECK(found.reason.empty());
  CHECK(found.files == std::vector{folder / "tokenizer.json"});
  CHECK(found.tokenizer->specials() == Ids{1, 2});
  const auto encoding = found.tokenizer->encode("ab", "t");
  CHECK(framed(*found.tokenizer, encoding).tokens.ids == Ids{1, 3, 4, 2});
  auto file = bert_file();
  file["normalizer"]["lowercase"] = false;
  CHECK(encoded(found_in(folder, file), "Ab \u00e9") == Texts{"A", "##b", "\u00e9"});
  file["normalizer"]["strip_accents"] = true;
  CHECK(encoded(found_in(folder, file), "Ab \u00e9") == Texts{"A", "##b", "e"});
  file["post_processor"] =
      json::parse(R"({"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]})");
  CHECK(found_in(folder, file).tokenizer->frame().end == 2);
  file.erase("post_processor");
  CHECK_FALSE(found_in(folder, file).tokenizer->frame().end);
}

TEST_CASE("tokenizer.json of BPE: merges of both spellings, tokens beside the vocabulary",
          "[tokenizer][pretrained]") {
  const Folder folder;
  auto file = bpe_file();
  CHECK(encoded(found_in(folder, file), "abc<s>ab1") == Texts{"abc", "<s>", "ab", "1"});
  CHECK(found_in(folder, file).tokenizer->specials() == Ids{258});
  file["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  file["added_tokens"].push_back(added(259, "<|x|>"));
  const auto found = found_in(folder, file);
  CHECK(encoded(found, "<|x|>abc") == Texts{"<|x|>", "abc"});
  CHECK(found.tokenizer->vocabulary() == 260);
  // The oldest files do not name the model.
  file["model"].erase("type");
  CHECK(encoded(found_in(folder, file), "abc") == Texts{"abc"});
  file["model"]["merges"] = {"b c", "a b"};
  file["model"]["vocab"].erase("<s>"), file["model"]["vocab"]["bc"] = 258;
  file["added_tokens"] = json::array();
  CHECK(encoded(found_in(folder, file), "abc") == Texts{"a", "bc"});
  file["model"]["ignore_merges"] = true;
  CHECK(encoded(found_in(folder, file), "abc") == Texts{"abc"});
}

TEST_CASE("tokenizer.json of BPE: the patterns of GPT-2, SmolLM2, LLaMA-3 and Qwen2",
          "[tokenizer][pretrained]") {
  const Folder folder;
  auto file = bpe_file();
  const auto pattern = [&] {
    const auto found = found_in(folder, file);
    INFO(found.reason);
    REQUIRE(found.tokenizer);
    return found.tokenizer->json().value("pattern", "gpt2");
  };
  CHECK(pattern() == "gpt2");
  const auto bytes = file["pre_tokenizer"];
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, bytes}}};
  CHECK(pattern() == "smollm2");
  file["pre_tokenizer"] = split_bytes(kLlama3);
  CHECK(pattern() == "llama3");
  file["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
     "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}}}]})");
  const auto found = found_in(folder, file);
  CHECK(found.tokenizer->frame().begin == 258);
  CHECK_FALSE(found.tokenizer->frame().end);
  file["pre_tokenizer"] = split_bytes(kQwen2);
  file["normalizer"] = {{"type", "NFC"}};
  CHECK(pattern() == "qwen2");
}

TEST_CASE("a byte without a token is none where nothing stands for it", "[tokenizer][pretrained]") {
  const Folder folder;
  auto file = bpe_file();
  auto& vocabulary = file["model"]["vocab"];
  vocabulary.erase("<s>"), file["added_tokens"] = json::array();
  vocabulary["abc"] = vocabulary["x"], vocabulary.erase("x");
  CHECK(encoded(found_in(folder, file), "axb c") == Texts{"ab", " ", "c"});
  file["model"]["unk_token"] = "ab";
  CHECK(complaint(folder, file) ==
        "unknown: tokenizer.json: model: bytes that become unk_token are not known here");
}

TEST_CASE("what no tokenizer here does is said by file and key", "[tokenizer][pretrained]") {
  const Folder folder;
  const auto said = [&](json file, const char* pointer, const json& value) {
    file[json::json_pointer(pointer)] = value;
    const auto all = complaint(folder, file);
    REQUIRE(all.starts_with("unknown: tokenizer.json"));
    return all.substr(16 + 9);
  };
  CHECK(said(bert_file(), "/model/type", "Unigram") ==
        "model: Unigram is not known here, only WordPiece, byte-level BPE, characters and words");
  CHECK(said(bert_file(), "/model/continuing_subword_prefix", "@@") ==
        "model.continuing_subword_prefix: \"@@\" is not known here, only \"##\"");
  CHECK(said(bert_file(), "/normalizer/handle_chinese_chars", false) ==
        "normalizer.handle_chinese_chars: false is not known here, only true");
  CHECK(said(bert_file(), "/normalizer/type", "Lowercase") ==
        "normalizer: Lowercase is not known here, only BertNormalizer");
  CHECK(said(bert_file(), "/pre_tokenizer", nullptr) ==
        "WordPiece is known here with one pre_tokenizer only");
  CHECK(said(bert_file(), "/added_tokens/0/lstrip", true) ==
        "added_tokens[0].lstrip: true is not known here, only false");
  CHECK(said(bert_file(), "/added_tokens/1/normalized", true) ==
        "added_tokens[1].normalized: true is not known here, only false");
  CHECK(said(bert_file(), "/post_processor/type", "RobertaProcessing") ==
        "post_processor: RobertaProcessing is not known here, only ByteLevel");
  CHECK(said(bpe_file(), "/model/byte_fallback", true) ==
        "model.byte_fallback: true is not known here, only false");
  CHECK(said(bpe_file(), "/model/dropout", 0.1) ==
        "model.dropout: merges that are left out at random are not known here");
  CHECK(said(bpe_file(), "/pre_tokenizer/add_prefix_space", true) ==
        "pre_tokenizer: add_prefix_space is not known here");
  CHECK(said(bpe_file(), "/pre_tokenizer", nullptr) ==
        "BPE is known here with a pre_tokenizer only");
  CHECK(said(bpe_file(), "/pre_tokenizer/type", "Metaspace") ==
        "pre_tokenizer: Metaspace is not known here, only ByteLevel");
  CHECK(said(bpe_file(), "/pre_tokenizer", split_bytes("\\w+")) ==
        "pre_tokenizer.pretokenizers[0].pattern.Regex: the pattern \\w+ is not known here");
  CHECK(said(bpe_file(), "/pre_tokenizer", split_bytes(kQwen2)) ==
        "the pattern qwen2 is not known with 0 normalizers");
  CHECK(said(bpe_file(), "/normalizer", {{"type", "NFC"}}) ==
        "the pattern gpt2 is not known with 1 normalizers");
}

// The ids are those of tokenizers 0.23.3.
TEST_CASE("tokenizer.json may leave ids out: they have no token", "[tokenizer][pretrained]") {
  const Folder folder;
  auto file = bpe_file();
  auto& vocabulary = file["model"]["vocab"];
  vocabulary.erase("<s>"), vocabulary["z"] = 262;
  file["added_tokens"] = json::array();
  const auto found = found_in(folder, file);
  INFO(found.reason);
  REQUIRE(found.tokenizer);
  const auto& tokenizer = *found.tokenizer;
  CHECK(tokenizer.vocabulary() == 263);
  CHECK(tokenizer.encode("xyz", "t").ids == Ids{'x', 'y', 262});
  CHECK(tokenizer.decode({'x', 122, 258, 262}) == "xz");
  CHECK(tokenizer.token_texts()[258] == "<258>");
  CHECK(tokenizer.token_texts()[262] == "z");
  const Folder written;
  write_tokenizer_folder(tokenizer, written.path());
  CHECK(read_tokenizer_folder(written.path()).tokenizer->json() == tokenizer.json());
  CHECK(read_tokenizer(nlohmann::ordered_json::parse(tokenizer.json().dump()))->json() ==
        tokenizer.json());
  // Tokens that are added have the next ids, whatever the file says.
  file["added_tokens"] = {added(300, "<a>"), added(301, "<b>"), added(5, "z")};
  CHECK(found_in(folder, file).tokenizer->encode("<a><b>z", "t").ids == Ids{258, 259, 262});
  file["added_tokens"] = {added(5, "z"), added(300, "<a>")};
  CHECK(found_in(folder, file).tokenizer->encode("<a>z", "t").ids == Ids{263, 262});
  vocabulary["zz"] = 262;
  CHECK(complaint(folder, file) ==
        "unknown: tokenizer.json: model.vocab: 'z' and 'zz' have id 262; "
        "tokens are known here with an id each");
  vocabulary["zz"] = 4'000'000'000;
  CHECK(complaint(folder, file).ends_with("more than a million have none"));

  auto bert = bert_file();
  bert["model"]["vocab"]["##b"] = 11;
  const auto pieces = found_in(folder, bert);
  REQUIRE(pieces.tokenizer);
  CHECK(pieces.tokenizer->encode("ab", "t").ids == Ids{3, 11});
  CHECK(pieces.tokenizer->decode({4, 3, 11, 8}) == "ab");
  write_tokenizer_folder(*pieces.tokenizer, written.path());
  CHECK(read_tokenizer_folder(written.path()).tokenizer->json() == pieces.tokenizer->json());
}

TEST_CASE("a token of BPE that is not made of the symbols of bytes stands for itself",
          "[tokenizer][pretrained]") {
  const Folder folder;
  auto file = bpe_file();
  file["model"]["vocab"]["\u4e2dx"] = 259;
  for (const bool whole : {false, true}) {
    file["model"]["ignore_merges"] = whole;
    const auto found = found_in(folder, file);
    CHECK(found.tokenizer->decode({259}) == "\u4e2dx");
    CHECK(found.tokenizer->encode("\u4e2dx", "t").ids.size() == 4);
  }
}

TEST_CASE("what texts are cut to is read and written", "[tokenizer][pretrained]") {
  const Folder folder;
  folder.write("tokenizer.json", bpe_file().dump());
  const auto length = [&](const char* config) {
    folder.write("tokenizer_config.json", config);
    return read_tokenizer_folder(folder.path()).max_length;
  };
  CHECK(length(R"({"model_max_length": 512})") == 512);
  CHECK_FALSE(length("{}"));
  CHECK_FALSE(length(R"({"model_max_length": 1000000000000000019884624838656})"));
  const Folder written;
  const auto tokenizer = read_tokenizer_folder(folder.path()).tokenizer;
  write_tokenizer_folder(*tokenizer, written.path(), 77);
  CHECK(read_tokenizer_folder(written.path()).max_length == 77);
  write_tokenizer_folder(*padded_tokenizer(tokenizer, 300), written.path(), 78);
  CHECK(read_tokenizer_folder(written.path()).max_length == 78);
}

TEST_CASE("a damaged tokenizer.json is refused by file and place", "[tokenizer][pretrained]") {
  const Folder folder;
  const auto refused = [&](json file, const char* pointer, const json& value) {
    file[json::json_pointer(pointer)] = value;
    return complaint(folder, file).substr(std::string("tokenizer.json").size());
  };
  CHECK(refused(bert_file(), "/model", nullptr) == " 'model' is missing");
  CHECK(refused(bert_file(), "/model", 1) == ": model is no object");
  CHECK(refused(bert_file(), "/model/vocab", nullptr) == ": model 'vocab' is missing");
  CHECK(refused(bert_file(), "/model/vocab", "x") == ": model.vocab is no object");
  for (const auto& [id, said] : {std::pair(json(1'000'000'000'000), "1000000000000"),
                                 std::pair(json(-1), "-1"), std::pair(json("x"), "\"x\"")})
    CHECK(refused(bert_file(), "/model/vocab/a", id) ==
          std::string(": model.vocab gives 'a' the id ") + said +
              "; ids are whole numbers from 0 to 4294967295");
  CHECK(refused(bert_file(), "/model/unk_token", "<unk>") ==
        ": model: the vocabulary of WordPiece has no '<unk>', for unknown words");
  CHECK(refused(bert_file(), "/added_tokens", 1) == ": added_tokens is no array");
  CHECK(refused(bert_file(), "/added_tokens/0/id", "x") == ": added_tokens[0].id is no integer");
  CHECK(refused(bert_file(), "/normalizer/lowercase", 1) ==
        ": normalizer.lowercase is neither true nor false");
  CHECK(refused(bert_file(), "/post_processor/special_tokens/[CLS]/ids/0", 99) ==
        ": model: token 99 is not in the vocabulary of 8");
  CHECK(refused(bpe_file(), "/model/merges", "a b") == ": model.merges is no array");
  CHECK(refused(bpe_file(), "/model/merges/1", "ab") ==
        ": model.merges[1]: 'ab' is no merge of two tokens");
  CHECK(refused(bpe_file(), "/model/merges/1", {"a", "b", "c"}) ==
        ": model.merges[1] is no merge of two tokens");
  CHECK(refused(bpe_file(), "/model/merges/1", "a x") ==
        ": model: the BPE vocabulary has no 'ax', made by a merge");
  folder.write("tokenizer.json", "{\n  \"model\": [}");
  CHECK(
      error_of<DataError>([&] {
        read_tokenizer_folder(folder.path());
      }).starts_with((folder / "tokenizer.json").string() + ": parse error at line 2, column 13:"));
}

TEST_CASE("vocab.txt is WordPiece as tokenizer_config.json has it", "[tokenizer][pretrained]") {
  const Folder folder;
  folder.write("vocab.txt",
               "\xEF\xBB\xBF[PAD]\r\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nab\nAB\n\u00e9\ne\n");
  const auto reason = [&](const std::string& config) {
    folder.write("tokenizer_config.json", config);
    return read_tokenizer_folder(folder.path()).reason;
  };
  const auto found = read_tokenizer_folder(folder.path());
  CHECK(encoded(found, "AB \u00e9[MASK]") == Texts{"ab", "e", "[MASK]"});
  CHECK(found.files == std::vector{folder / "vocab.txt"});
  CHECK(found.tokenizer->specials() == Ids{0, 1, 2, 3, 4});
  CHECK(found.tokenizer->frame().begin == 2);
  CHECK(reason(R"({"do_lower_case": false, "strip_accents": null})").empty());
  CHECK(encoded(read_tokenizer_folder(folder.path()), "AB \u00e9") == Texts{"AB", "\u00e9"});
  CHECK(reason(R"({"do_lower_case": true, "strip_accents": false})").empty());
  CHECK(encoded(read_tokenizer_folder(folder.path()), "AB \u00c9") == Texts{"ab", "\u00e9"});
  CHECK(reason(R"({"cls_token": {"content": "ab"}, "tokenizer_class": "BertTokenizerFast"})")
            .empty());
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->frame().begin == 5);
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->specials() == Ids{0, 1, 3, 4, 5});
  CHECK(reason(R"({"added_tokens_decoder": {"0": {"content": "[PAD]"}, "9": {"content": "<x>"}}})")
            .empty());
  const auto more = read_tokenizer_folder(folder.path());
  CHECK(more.tokenizer->specials() == Ids{0, 1, 2, 3, 4, 9});
  CHECK(encoded(more, "ab<x>") == Texts{"ab", "<x>"});
  // The vocabulary has the last word.
  CHECK(reason(R"({"added_tokens_decoder": {"1": {"content": "[PAD]"}}})").empty());
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->specials() == Ids{0, 1, 2, 3, 4});
  const auto place = (folder / "tokenizer_config.json").string();
  CHECK(reason(R"({"tokenizer_class": "MPNetTokenizer"})") ==
        place + ": tokenizer_class MPNetTokenizer is not known here with vocab.txt");
  CHECK(reason(R"({"added_tokens_decoder": {"4": {"content": "[MASK]", "lstrip": true}}})") ==
        place + ": added_tokens_decoder.4.lstrip: true is not known here, only false");
  CHECK(reason(R"({"tokenize_chinese_chars": false})") ==
        place + ": tokenize_chinese_chars: only true is known here");
  CHECK(error_of<DataError>([&] { reason(R"({"do_lower_case": "no"})"); }) ==
        place + ": do_lower_case is neither true nor false");
  CHECK(error_of<DataError>([&] { reason("[]"); }) == place + " is no object");
  folder.write("tokenizer_config.json", "{}");
  folder.write("vocab.txt", "a\n");
  CHECK(error_of<DataError>([&] { read_tokenizer_folder(folder.path()); }) ==
        (folder / "vocab.txt").string() +
            ": the vocabulary of WordPiece has no '[UNK]', for unknown words");
  folder.write("vocab.txt", "a\n[UNK]\na\n");
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->encode("a", "t").ids == Ids{2});
  folder.write("vocab.txt", "a\n\xFF");
  CHECK(error_of<DataError>([&] {
          read_tokenizer_folder(folder.path());
        }).starts_with((folder / "vocab.txt").string() + ": byte 2 (0xFF) is not UTF-8"));
}

TEST_CASE("vocab.json and merges.txt are byte-level BPE", "[tokenizer][pretrained]") {
  const Folder folder;
  fs::copy_file(kGolden / "bpe/vocab.json", folder / "vocab.json");
  const auto reason = [&](const std::string& config) {
    folder.write("tokenizer_config.json", config);
    return read_tokenizer_folder(folder.path()).reason;
  };
  CHECK(
      reason("{}").ends_with("/: no tokenizer.json, no vocab.txt, no vocab.json with merges.txt"));
  fs::copy_file(kGolden / "bpe/merges.txt", folder / "merges.txt");
  fs::remove(folder / "tokenizer_config.json");
  const auto found = read_tokenizer_folder(folder.path());
  REQUIRE(found.tokenizer);
  CHECK(found.tokenizer->specials() == Ids{0});
  CHECK(found.files == std::vector{folder / "vocab.json", folder / "merges.txt"});
  const auto golden = json::parse(MappedFile(kGolden / "bpe/expected.json").text());
  for (const auto& sample : golden["special"])
    CHECK(found.tokenizer->encode(sample["text"].get<std::string>(), "t").ids ==
          sample["ids"].get<Ids>());
  CHECK(reason(R"({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>",
                   "added_tokens_decoder": {"757": {"content": "<|im_end|>"}}})")
            .empty());
  const auto qwen = read_tokenizer_folder(folder.path());
  CHECK(qwen.tokenizer->json()["pattern"] == "qwen2");
  CHECK(qwen.tokenizer->specials() == Ids{0, 757});
  folder.write("added_tokens.json", R"({"<x>": 757})");
  CHECK(reason(R"({"add_bos_token": true, "bos_token": "<x>"})").empty());
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->frame().begin == 757);
  const auto place = (folder / "tokenizer_config.json").string();
  CHECK(reason(R"({"pad_token": "[PAD]"})") == place + ": pad_token: '[PAD]' has no id");
  CHECK(reason(R"({"tokenizer_class": "RobertaTokenizer"})") ==
        place + ": tokenizer_class RobertaTokenizer is not known here with merges.txt");
  CHECK(reason(R"({"add_prefix_space": true})") == place + ": add_prefix_space is not known here");
  CHECK(error_of<DataError>([&] {
          reason(R"({"added_tokens_decoder": {"-1": {"content": "x"}}})");
        }) == place + ": added_tokens_decoder has '-1', which is no id");
  fs::remove(folder / "tokenizer_config.json");
  const std::string merges = read_bytes(kGolden / "bpe/merges.txt");
  std::string windows;
  for (const char c : merges) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  folder.write("merges.txt", windows);
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->encode("the cat", "t").ids ==
        found.tokenizer->encode("the cat", "t").ids);
  folder.write("merges.txt", "a b c\n");
  CHECK(error_of<DataError>([&] { read_tokenizer_folder(folder.path()); }) ==
        (folder / "merges.txt").string() + ":1: 'a b c' is no merge of two tokens");
}

TEST_CASE("tokenizer.json comes before vocab.txt, that before vocab.json",
          "[tokenizer][pretrained]") {
  const Folder folder;
  fs::copy_file(kGolden / "bpe/vocab.json", folder / "vocab.json");
  fs::copy_file(kGolden / "bpe/merges.txt", folder / "merges.txt");
  const auto kind = [&] { return read_tokenizer_folder(folder.path()).tokenizer->json()["kind"]; };
  CHECK(kind() == "bpe");
  folder.write("vocab.txt", "[UNK]\n");
  CHECK(kind() == "wordpiece");
  folder.write("tokenizer.json", bpe_file().dump());
  CHECK(kind() == "bpe");
  const Folder other;
  other.write("tokenizer.model", "");
  CHECK(read_tokenizer_folder(other.path()).reason ==
        (other / "tokenizer.model").string() + ": SentencePiece is not known here");
}

TEST_CASE("a tokenizer that was written is read as it was", "[tokenizer][pretrained]") {
  auto golden = read_bpe(kGolden / "bpe/vocab.json", kGolden / "bpe/merges.txt", {"<|endoftext|>"});
  std::vector<std::pair<std::shared_ptr<const Tokenizer>, std::set<std::string>>> all;
  const std::set<std::string> fast{"tokenizer.json", "tokenizer_config.json"};
  const std::set<std::string> gpt2{"vocab.json", "merges.txt", "tokenizer_config.json"};
  const std::set<std::string> bert{"vocab.txt", "tokenizer_config.json"};
  all.emplace_back(char_tokenizer(U"\n abc\u00e9"), fast);
  all.emplace_back(word_tokenizer({.specials = {"<unk>", "[SEP]"}, .unknown = 0}, {"a", "b,"}),
                   fast);
  all.emplace_back(
      word_tokenizer({.specials = {"<unk>", "<eos>"}, .unknown = 0, .line_end = "<eos>"}, {"a"}),
      fast);
  all.emplace_back(bpe_tokenizer(golden), gpt2);
  golden.ignore_merges = true, golden.frame = {.begin = 0, .end = 3};
  for (const auto pattern :
       {BpePattern::kGpt2, BpePattern::kSmollm2, BpePattern::kLlama3, BpePattern::kQwen2}) {
    golden.pattern = pattern;
    all.emplace_back(bpe_tokenizer(golden), fast);
  }
  auto model = cased();
  for (bool lower : {false, true})
    for (bool strip : {false, true}) {
      model.lower_case = lower, model.strip_accents = strip;
      all.emplace_back(wordpiece_tokenizer(model), bert);
    }
  model.specials.emplace_back("A");
  all.emplace_back(wordpiece_tokenizer(model), fast);
  for (const auto& [tokenizer, names] : all) {
    const Folder folder;
    write_tokenizer_folder(*tokenizer, folder.path());
    CHECK(names_in(folder.path()) == names);
    const auto again = read_tokenizer_folder(folder.path());
    INFO(again.reason);
    REQUIRE(again.tokenizer);
    CHECK(again.tokenizer->json() == tokenizer->json());
  }
}

TEST_CASE("bytes are written as BPE without a merge", "[tokenizer][pretrained]") {
  const Folder folder;
  write_tokenizer_folder(*byte_tokenizer(), folder.path());
  const auto again = read_tokenizer_folder(folder.path());
  REQUIRE(again.tokenizer);
  const std::string text = "a \u00e9\n\u4e2d";
  CHECK(again.tokenizer->encode(text, "t").ids == byte_tokenizer()->encode(text, "t").ids);
}

TEST_CASE("a padded tokenizer is written without what pads it", "[tokenizer][pretrained]") {
  const Folder folder;
  write_tokenizer_folder(*padded_tokenizer(char_tokenizer(U"abc"), 64), folder.path());
  CHECK(read_tokenizer_folder(folder.path()).tokenizer->json() == char_tokenizer(U"abc")->json());
}

TEST_CASE("a tokenizer that no file describes is not written", "[tokenizer][pretrained]") {
  class Own : public Tokenizer {
    int64_t vocabulary() const override { return 1; }
    Encoding encode(std::string_view, const std::string&) const override { return {}; }
    std::string bytes(int64_t, std::optional<int64_t>) const override { return "a"; }
    Texts token_texts() const override { return {"a"}; }
    nlohmann::ordered_json json() const override { return {{"kind", "own"}}; }
  };
  const Folder folder;
  CHECK(error_of<ConfigError>([&] { write_tokenizer_folder(Own(), folder.path()); }) ==
        "tokenizer.json has no tokenizers of kind own");
  CHECK(names_in(folder.path()).empty());
  auto model = cased();
  model.tokens.emplace_back("a\nb");
  CHECK(error_of<ConfigError>([&] {
          write_tokenizer_folder(*wordpiece_tokenizer(model), folder.path());
        }) == "vocab.txt cannot hold a token that has an end of a line in it");
  CHECK(names_in(folder.path()).empty());
}

TEST_CASE("MiniLM's files give the pieces of the golden texts", "[tokenizer][pretrained][golden]") {
  const auto package = minilm();
  if (package.empty()) return;
  const auto golden = json::parse(MappedFile(kGolden / "wordpiece.json").text());
  for (const char* file : {"tokenizer.json", "vocab.txt"}) {
    const Folder folder;
    for (const char* name : {file, "tokenizer_config.json"})
      fs::copy_file(package / name, folder / name);
    const auto found = read_tokenizer_folder(folder.path());
    INFO(found.reason);
    REQUIRE(found.tokenizer);
    for (const auto& sample : golden["cases"]) {
      const auto text = sample["text"].get<std::string>();
      const auto encoding = framed(*found.tokenizer, found.tokenizer->encode(text, "t")).tokens;
      CHECK(encoding.ids == sample["ids"].get<Ids>());
    }
  }
}

}  // namespace headlab::test_tokenizer_files
