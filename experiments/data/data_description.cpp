#include "experiments/data/data_description.h"

#include <fmt/format.h>

#include "core/errors.h"

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
                                       {"channels", &DataShape::channels},
                                       {"height", &DataShape::height},
                                       {"width", &DataShape::width}};

int64_t size_in(const Json& shape, const char* name) {
  const Json& size = shape.at(name);
  if (!size.is_number_integer() || size < 0 || size > int64_t{1} << 32)
    throw DataError(fmt::format("shape.{} must be an integer from 0 to 2^32", name));
  return size;
}

DataShape read_shape(const Json& json) {
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

DataDescription describe_data(const DataSource& data) {
  return {data.shape(), data.tokenizer(), data.token_texts(), data.token_classes()};
}

Json description_json(const DataDescription& description) {
  Json shape;
  for (const auto& field : kShapeFields) shape[field.name] = description.shape.*field.value;
  if (description.shape.pad) shape["pad"] = *description.shape.pad;
  Json json{{"shape", shape}};
  if (description.tokenizer) {
    json["tokenizer"] = description.tokenizer->json();
  } else {
    json["token_texts"] = description.token_texts;
    json["token_classes"] = description.token_classes;
  }
  return json;
}

DataDescription read_description(const Json& json) {
  try {
    DataDescription description{.shape = read_shape(json.at("shape"))};
    if (json.contains("tokenizer")) {
      description.tokenizer = read_tokenizer(json["tokenizer"]);
      check_count("the tokenizer's tokens", description.tokenizer->vocabulary(),
                  description.shape.vocabulary);
      description.token_texts = description.tokenizer->token_texts();
      description.token_classes = description.tokenizer->token_classes();
    } else {
      description.token_texts = json.at("token_texts").get<std::vector<std::string>>();
      description.token_classes = json.at("token_classes").get<std::vector<uint8_t>>();
    }
    check_count("token_texts", description.token_texts.size(), description.shape.vocabulary);
    check_count("token_classes", description.token_classes.size(), description.shape.vocabulary);
    return description;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(error.what());
  }
}

}  // namespace headlab
