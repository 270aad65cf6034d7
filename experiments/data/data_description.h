// What a model asks of its data, known without opening them: a run keeps it.
#pragma once

#include <filesystem>

#include "experiments/data/source.h"

namespace headlab {

struct DataDescription {
  DataShape shape;
  std::shared_ptr<const Tokenizer> tokenizer = {};         // null: no text is behind the tokens
  std::shared_ptr<const Tokenizer> source_tokenizer = {};  // of what is translated
  // DataSource::token_texts(), token_classes()
  std::vector<std::string> token_texts = {};
  std::vector<uint8_t> token_classes = {};
  std::vector<int64_t> ends = {};          // tokens behind which no text goes on
  std::optional<int64_t> max_length = {};  // tokens that the tokenizer's makers cut texts to
};

DataDescription describe_data(const DataSource& data);
// Of a tokenizer alone: its tokens, its frame as start and end of a text, [PAD] and [MASK] where it
// has them.
DataDescription described_tokens(std::shared_ptr<const Tokenizer> tokenizer);
// The same for a model that has `shape`: where this names no such tokens. DataError as
// padded_tokenizer().
void add_tokenizer(DataDescription& description, std::shared_ptr<const Tokenizer> tokenizer);

nlohmann::ordered_json description_json(const DataDescription& description);
// DataError for anything else.
DataDescription read_description(const nlohmann::ordered_json& json);

// Content of data.json, which a run keeps so that it stands alone.
std::string data_text(const DataDescription& description);
// What data.json of a run says; none where a version before it made the run. RunError naming the
// file where it is damaged.
std::optional<DataDescription> read_data_text(const std::filesystem::path& run);

}  // namespace headlab
