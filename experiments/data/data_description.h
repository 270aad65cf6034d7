// What a model asks of its data, known without opening them: a run keeps it.
#pragma once

#include "experiments/data/source.h"

namespace headlab {

struct DataDescription {
  DataShape shape;
  std::shared_ptr<const Tokenizer> tokenizer = {};  // null: no text is behind the tokens
  // DataSource::token_texts(), token_classes()
  std::vector<std::string> token_texts = {};
  std::vector<uint8_t> token_classes = {};
};

DataDescription describe_data(const DataSource& data);

nlohmann::ordered_json description_json(const DataDescription& description);
// DataError for anything else.
DataDescription read_description(const nlohmann::ordered_json& json);

}  // namespace headlab
