// What a model asks of its data, known without opening them: a run keeps it.
#pragma once

#include "experiments/data/source.h"

namespace headlab {

struct DataFacts {
  DataShape shape;
  std::shared_ptr<const Tokenizer> tokenizer = {};  // null: no text is behind the tokens
  // DataSource::token_texts(), token_classes()
  std::vector<std::string> token_texts = {};
  std::vector<uint8_t> token_classes = {};
};

DataFacts facts_of(const DataSource& data);

nlohmann::ordered_json facts_json(const DataFacts& facts);
DataFacts read_facts(const nlohmann::ordered_json& json);  // DataError for anything else

}  // namespace headlab
