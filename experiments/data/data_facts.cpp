#include "experiments/data/data_facts.h"

#include <fmt/format.h>

#include "core/errors.h"

namespace headlab {
namespace {

using Facts = nlohmann::ordered_json;

struct ShapeField {
  const char* name;
  int64_t DataShape::*value;
};
constexpr ShapeField kShapeFields[] = {{"vocabulary", &DataShape::vocabulary},
                                       {"context", &DataShape::context},
                                       {"source_vocabulary", &DataShape::source_vocabulary},
                                       {"source_context", &DataShape::source_context},
                                       {"classes", &DataShape::classes},
                                       {"channels", &DataShape::channels},
                                       {"height", &DataShape::height},
                                       {"width", &DataShape::width}};

int64_t size_in(const Facts& shape, const char* name) {
  const Facts& size = shape.at(name);
  if (!size.is_number_integer() || size < 0 || size > int64_t{1} << 32)
    throw DataError(fmt::format("shape.{} must be an integer from 0 to 2^32", name));
  return size;
}

DataShape read_shape(const Facts& json) {
  DataShape shape;
  for (const auto& field : kShapeFields) shape.*field.value = size_in(json, field.name);
  if (json.contains("pad")) shape.pad = size_in(json, "pad");
  return shape;
}

void check_count(const char* what, size_t count, int64_t vocabulary) {
  if (count != 0 && static_cast<int64_t>(count) != vocabulary)
    throw DataError(fmt::format("{} are {}, the vocabulary is {}", what, count, vocabulary));
}

}  // namespace

DataFacts facts_of(const DataSource& data) {
  return {data.shape(), data.tokenizer(), data.token_texts(), data.token_classes()};
}

Facts facts_json(const DataFacts& facts) {
  Facts shape;
  for (const auto& field : kShapeFields) shape[field.name] = facts.shape.*field.value;
  if (facts.shape.pad) shape["pad"] = *facts.shape.pad;
  Facts json{{"shape", shape}};
  if (facts.tokenizer) {
    json["tokenizer"] = facts.tokenizer->json();
  } else {
    json["token_texts"] = facts.token_texts;
    json["token_classes"] = facts.token_classes;
  }
  return json;
}

DataFacts read_facts(const Facts& json) {
  try {
    DataFacts facts{.shape = read_shape(json.at("shape"))};
    if (json.contains("tokenizer")) {
      facts.tokenizer = read_tokenizer(json["tokenizer"]);
      check_count("the tokenizer's tokens", facts.tokenizer->vocabulary(), facts.shape.vocabulary);
      facts.token_texts = facts.tokenizer->token_texts();
      facts.token_classes = facts.tokenizer->token_classes();
    } else {
      facts.token_texts = json.at("token_texts").get<std::vector<std::string>>();
      facts.token_classes = json.at("token_classes").get<std::vector<uint8_t>>();
    }
    check_count("token_texts", facts.token_texts.size(), facts.shape.vocabulary);
    check_count("token_classes", facts.token_classes.size(), facts.shape.vocabulary);
    return facts;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(error.what());
  }
}

}  // namespace headlab
