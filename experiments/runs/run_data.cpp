#include "experiments/runs/run_data.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/data/given/given_text.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What ids mean is the same in both.
bool same_tokens(DataDescription a, const DataDescription& b) {
  // A model takes shorter examples than it has places for.
  if (a.shape.context < b.shape.context) a.shape.context = b.shape.context;
  const auto a_json = description_json(a), b_json = description_json(b);
  const auto same = [&](const char* key) {
    return a_json.value(key, Json()) == b_json.value(key, Json());
  };
  return same("shape") && same("tokenizer") && same("source_tokenizer") &&
         a.token_texts == b.token_texts;
}

}  // namespace

std::shared_ptr<DataSource> open_training_data(const Experiment& experiment) {
  auto data = open_data(experiment.data);
  experiment.train.total_steps(*data);
  if (experiment.train.label_smoothing > 0 && data->shape().values > 0)
    throw ConfigError(
        "train.label_smoothing: is spread over classes, and these data have numbers; leave it at "
        "0");
  if (experiment.train.bleu_every > 0 && !(data->source_tokenizer() && data->tokenizer()))
    throw ConfigError(
        fmt::format("train.bleu_every: data of kind '{}' are not translated; leave it at 0",
                    experiment.data.kind()));
  return data;
}

std::shared_ptr<DataSource> open_own_data(const Experiment& experiment,
                                          const DataDescription& description) {
  auto data = open_data(experiment.data);
  if (!same_tokens(describe_data(*data), description)) {
    const auto files = data->files();
    throw DataError(
        fmt::format("{}: has other tokens now than when the run was made; bring it "
                    "back as it was",
                    files.empty() ? experiment.data.kind() : files[0].string()));
  }
  return data;
}

std::shared_ptr<DataSource> open_other_data(const Experiment& experiment,
                                            const DataDescription& description,
                                            const fs::path& path) {
  if (description.tokenizer) {
    return given_text(description, file_for(*description.tokenizer, path), {fs::canonical(path)});
  }
  ConfigNode options = experiment.data.write();
  if (!options.find("path"))
    throw ConfigError(
        fmt::format("--data: the run's data, of kind '{}', are not read from one path",
                    experiment.data.kind()));
  options.set("path", write_text(fs::absolute(path).string()));
  // What training ends with is asked of the run's own data.
  std::erase_if(options.entries, [](const auto& entry) { return entry.first == "test"; });
  KindBlock block = experiment.data;
  Problems problems;
  block.read(options, "data", problems);
  problems.raise();
  auto data = open_data(block);
  if (data->vocabulary() != description.shape.vocabulary)
    throw DataError(fmt::format("{}: has {} tokens in its vocabulary, the model knows {}",
                                path.string(), data->vocabulary(), description.shape.vocabulary));
  return data;
}

std::shared_ptr<DataSource> open_text(const Experiment& experiment,
                                      const DataDescription& description, const std::string& text,
                                      const std::string& name, std::vector<fs::path> files) {
  if (!description.tokenizer)
    throw ConfigError(fmt::format("{}: the run's data, of kind '{}', have no text", name,
                                  experiment.data.kind()));
  return given_text(description, {.text = text, .name = name}, std::move(files));
}

}  // namespace headlab
