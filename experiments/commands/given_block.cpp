#include "experiments/commands/given_block.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "experiments/files/config_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// "train-images-idx3-ubyte.gz" -> "train-labels-idx1-ubyte.gz", where that is a file.
std::optional<fs::path> labels_beside(const fs::path& images) {
  auto name = images.filename().string();
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"images", "labels"}, {"idx3", "idx1"}})
    if (const auto at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  const auto labels = images.parent_path() / name;
  if (labels == images || !fs::is_regular_file(labels)) return std::nullopt;
  return labels;
}

std::optional<ConfigNode> block_of_files(const std::string& data) {
  const fs::path path = fs::absolute(data);
  ConfigNode node;
  const auto set = [&](const char* key, const std::string& value) {
    node.set(key, write_text(value));
  };
  if (fs::is_directory(path)) {
    const bool tokens = fs::exists(path / "meta.json");
    if (!tokens && !fs::exists(path / "data_batch_1.bin"))
      throw DataError(data +
                      ": holds neither token files (meta.json, train.bin, val.bin) nor CIFAR-10's "
                      "(data_batch_1.bin, ...)");
    set("kind", tokens ? "tokens" : "cifar10");
    set("path", path.string());
    return node;
  }
  if (const auto labels = labels_beside(path)) {
    set("kind", "mnist");
    set("images", path.string());
    set("labels", labels->string());
    return node;
  }
  return std::nullopt;
}

std::optional<ConfigNode> block_node(const std::string& data, bool by_files) {
  if (data.starts_with("{")) return parse_config(data, "--data", fs::current_path());
  if (data.ends_with(".yaml")) {
    auto config = load_config(data);
    const auto* block = config.find("data");
    return block ? ConfigNode(*block) : std::move(config);
  }
  return by_files ? block_of_files(data) : std::nullopt;
}

struct Size {
  const char* name;
  int64_t DataShape::*value;
};
constexpr Size kSizes[] = {{"source vocabulary", &DataShape::source_vocabulary},
                           {"number of classes", &DataShape::classes},
                           {"number of channels", &DataShape::channels},
                           {"height of images", &DataShape::height},
                           {"width of images", &DataShape::width}};

// DataError where the model of the run cannot take such data.
void require_data_of_model(const KindBlock& block, const DataSource& data, const OpenedRun& run) {
  const auto shape = data.shape();
  const auto& model = run.data_description.shape;
  const auto refuse = [&](const char* what, int64_t theirs, int64_t ours) {
    throw DataError(fmt::format("--data of kind '{}': the {} is {}, that of the model {}",
                                block.kind(), what, theirs, ours));
  };
  for (const auto& [name, value] : kSizes)
    if (shape.*value != model.*value) refuse(name, shape.*value, model.*value);
  // Token files may hold fewer than the model has rows for; vocabularies that data make are one.
  const bool fewer = block.kind() == "tokens" && shape.vocabulary < model.vocabulary;
  if (shape.vocabulary != model.vocabulary && !fewer)
    refuse("vocabulary", shape.vocabulary, model.vocabulary);
  if (shape.context > model.context) refuse("context", shape.context, model.context);
  const auto &ours = run.data_description.tokenizer, theirs = data.tokenizer();
  if (ours && theirs && ours->json() != theirs->json())
    throw DataError(
        fmt::format("--data of kind '{}': its tokens are others than the model's", block.kind()));
  if (model.source_vocabulary > 0 && (shape.start != model.start || shape.end != model.end))
    throw DataError(fmt::format(
        "--data of kind '{}': its texts begin or end with other tokens than the model's",
        block.kind()));
  Problems problems;
  run.experiment.model.as<ModelOptions>().check_data(
      shape, [&](const std::string& field, const std::string& what) {
        problems.add({}, "model." + field, what);
      });
  problems.raise();
}

}  // namespace

std::optional<KindBlock> given_block(const std::string& data, int64_t window, bool by_files) {
  auto node = block_node(data, by_files);
  if (!node) return std::nullopt;
  const auto* kind = node->find("kind");
  if (kind && kind->text == "tokens" && !node->find("context"))
    node->set("context", ConfigNode::scalar(std::to_string(window)));
  KindBlock block(data_registry(), "none");
  Problems problems;
  block.read(*node, "data", problems);
  problems.raise();
  return block;
}

std::shared_ptr<DataSource> open_block(const KindBlock& block, const OpenedRun& run) {
  auto data = open_data(block);
  require_data_of_model(block, *data, run);
  return data;
}

}  // namespace headlab
