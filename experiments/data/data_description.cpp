#include "experiments/data/data_description.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/tokenizers/padded_tokenizer.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

struct ShapeField {
  const char* name;
  int64_t DataShape::*value;
};
constexpr ShapeField kShapeFields[] = {{"vocabulary", &DataShape::vocabulary},
                                       {"context", &DataShape::context},
                                       {"source_vocabulary", &DataShape::source_vocabulary},
                                       {"source_context", &DataShape::source_context},
                                       {"classes", &DataShape::classes},
                                       {"values", &DataShape::values},
                                       {"channels", &DataShape::channels},
                                       {"height", &DataShape::height},
                                       {"width", &DataShape::width}};

struct TokenField {
  const char* name;
  std::optional<int64_t> DataShape::*value;
};
constexpr TokenField kTokenFields[] = {{"pad", &DataShape::pad},
                                       {"start", &DataShape::start},
                                       {"end", &DataShape::end},
                                       {"mask", &DataShape::mask}};

int64_t size_in(const Json& shape, const char* name) {
  const Json& size = shape.at(name);
  if (!size.is_number_integer() || size < 0 || size > int64_t{1} << 32)
    throw DataError(fmt::format("shape.{} must be an integer from 0 to 2^32", name));
  return size;
}

void require_token(const std::string& what, int64_t id, int64_t vocabulary) {
  if (id < 0 || id >= vocabulary)
    throw DataError(fmt::format("{}: {} is no token of {}", what, id, vocabulary));
}

DataShape read_shape(const Json& json) {
  DataShape shape;
  for (const auto& field : kShapeFields) shape.*field.value = size_in(json, field.name);
  for (const auto& field : kTokenFields)
    if (json.contains(field.name)) {
      const int64_t token = whole_number(json[field.name]);
      require_token(std::string("shape.") + field.name, token, shape.vocabulary);
      shape.*field.value = token;
    }
  return shape;
}

void check_count(const std::string& what, size_t count, int64_t vocabulary) {
  if (count != 0 && static_cast<int64_t>(count) != vocabulary)
    throw DataError(fmt::format("{} are {}, the vocabulary is {}", what, count, vocabulary));
}

std::shared_ptr<const Tokenizer> tokenizer_in(const Json& json, const std::string& key,
                                              int64_t vocabulary) {
  auto tokenizer = read_tokenizer(json[key]);
  check_count("the tokens of " + key, tokenizer->vocabulary(), vocabulary);
  return tokenizer;
}

void read_texts(DataDescription& description) {
  description.token_texts = description.tokenizer->token_texts();
  description.token_classes = description.tokenizer->token_classes();
}

}  // namespace

DataDescription describe_data(const DataSource& data) {
  return {data.shape(), data.tokenizer(), data.source_tokenizer(), data.token_texts(),
          data.token_classes()};
}

void add_tokenizer(DataDescription& description, std::shared_ptr<const Tokenizer> tokenizer) {
  auto& shape = description.shape;
  // Published models have rows behind their tokens' own, which no text uses.
  tokenizer = padded_tokenizer(std::move(tokenizer), shape.vocabulary);
  const auto frame = tokenizer->frame();
  const auto texts = tokenizer->token_texts();
  const auto special = [&](const char* text) -> std::optional<int64_t> {
    for (const auto id : tokenizer->specials())
      if (texts[id] == text) return id;
    return std::nullopt;
  };
  const auto fill = [](std::optional<int64_t>& to, const std::optional<int64_t>& id) {
    if (!to) to = id;
  };
  fill(shape.start, frame.begin), fill(shape.end, frame.end);
  fill(shape.pad, special("[PAD]")), fill(shape.mask, special("[MASK]"));
  description.tokenizer = std::move(tokenizer);
  read_texts(description);
}

DataDescription described_tokens(std::shared_ptr<const Tokenizer> tokenizer) {
  DataDescription description{.shape = {.vocabulary = tokenizer->vocabulary()}};
  add_tokenizer(description, std::move(tokenizer));
  return description;
}

Json description_json(const DataDescription& description) {
  Json shape;
  for (const auto& field : kShapeFields) shape[field.name] = description.shape.*field.value;
  for (const auto& field : kTokenFields)
    if (const auto& token = description.shape.*field.value) shape[field.name] = *token;
  Json json{{"shape", shape}};
  if (description.tokenizer) {
    json["tokenizer"] = description.tokenizer->json();
  } else {
    json["token_texts"] = description.token_texts;
    json["token_classes"] = description.token_classes;
  }
  if (!description.ends.empty()) json["ends"] = description.ends;
  if (description.max_length) json["model_max_length"] = *description.max_length;
  if (description.source_tokenizer) json["source_tokenizer"] = description.source_tokenizer->json();
  return json;
}

DataDescription read_description(const Json& json) {
  try {
    DataDescription description{.shape = read_shape(json.at("shape"))};
    if (json.contains("tokenizer")) {
      description.tokenizer = tokenizer_in(json, "tokenizer", description.shape.vocabulary);
      read_texts(description);
    } else {
      description.token_texts = json.at("token_texts").get<std::vector<std::string>>();
      for (const auto& bits : json.at("token_classes"))
        description.token_classes.push_back(static_cast<uint8_t>(whole_number(bits)));
    }
    if (json.contains("source_tokenizer"))
      description.source_tokenizer =
          tokenizer_in(json, "source_tokenizer", description.shape.source_vocabulary);
    if (json.contains("ends"))
      for (const auto& id : json["ends"]) description.ends.push_back(whole_number(id));
    for (const auto id : description.ends) require_token("ends", id, description.shape.vocabulary);
    if (json.contains("model_max_length"))
      description.max_length = whole_number(json["model_max_length"]);
    check_count("token_texts", description.token_texts.size(), description.shape.vocabulary);
    check_count("token_classes", description.token_classes.size(), description.shape.vocabulary);
    return description;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(error.what());
  }
}

std::string data_text(const DataDescription& description) {
  return description_json(description).dump(2) + '\n';
}

std::optional<DataDescription> read_data_text(const std::filesystem::path& run) {
  const std::filesystem::path path = run / "data.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    constexpr size_t kMost = size_t{256} << 20;  // ten times what the largest vocabularies take
    const MappedFile file(path);
    if (file.size() > kMost) throw DataError("has more than 256 MiB");
    const auto json = parse_json<Json>(file.text());
    if (!json) throw DataError("is no JSON");
    return read_description(*json);
  } catch (const nlohmann::json::exception&) {
    throw RunError(path.string() + ": is damaged; without this file the run reads its data");
  } catch (const DataError& error) {
    throw RunError(fmt::format("{}: is damaged: {}; without this file the run reads its data",
                               path.string(), error.what()));
  }
}

}  // namespace headlab
