#include "experiments/pretrained/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/new_folder.h"
#include "experiments/models/stack_options.h"
#include "experiments/pretrained/foreign_weights.h"
#include "experiments/pretrained/plain_heads.h"
#include "experiments/pretrained/published_config.h"
#include "experiments/pretrained/published_names.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// Layouts that have all biases are given zeros for those that the model lacks; LLaMA's has those of
// its heads together.
void add_missing_biases(const PublishedConfig& config, NamedTensors& ours) {
  const bool all = config.json.at("model_type") == "gpt2" || !config.json.contains("rms_norm_eps");
  const bool heads = config.json.value("attention_bias", false);
  NamedTensors added;
  for (const auto& [name, tensor] : ours) {
    if (!name.ends_with(".weight")) continue;
    const auto module = name.substr(0, name.size() - 7);
    const auto last = module.substr(module.rfind('.') + 1);
    const bool projection = last == "q" || last == "k" || last == "v" || last == "o";
    const bool other = last == "up" || last == "down" || last.starts_with("norm");
    if (((all || heads) && projection) || (all && other))
      if (!ours.contains(module + ".bias"))
        added[module + ".bias"] = at::zeros({tensor.size(0)}, tensor.options());
  }
  ours.merge(added);
}

// Features that rotate together lie half a head apart in the files.
void sort_rotated(const StackOptions& stack, NamedTensors& ours) {
  if (stack.position->kind != "rope" || stack.position->layout != "interleaved") return;
  for (auto& [name, tensor] : ours)
    for (const char* part :
         {".q.weight", ".k.weight", ".q.bias", ".k.bias", ".q_norm.weight", ".k_norm.weight"})
      if (name.ends_with(part)) {
        tensor = tensor.contiguous().clone();
        sort_pairs(tensor, stack.shape(0).head_dim);
      }
}

NamedTensors published_weights(Model& model, const KindBlock& block, const DataShape& data,
                               const PublishedConfig& config) {
  const auto& options = block.as<ModelOptions>();
  auto ours = plain_weights(model, options);
  add_missing_biases(config, ours);
  sort_rotated(*options.stacks().at(0), ours);
  const HuggingFaceModel named{.kind = block.kind(),
                               .options = block,
                               .shape = data,
                               .model = nullptr,
                               .tensors = published_tensors(block.kind(), options, data, ours)};
  const bool bare = config.json.at("architectures").at(0) == "BertModel";
  NamedTensors theirs;
  for (const auto& [name, tensor] : named.named_as_theirs(ours))
    theirs[bare && name.starts_with("bert.") ? name.substr(5) : name] =
        tensor.to(at::kCPU, at::kFloat).contiguous();
  return theirs;
}

// A few tokens, or an image of a slope.
Batch made_example(const DataShape& data) {
  const auto tokens = [](int64_t vocabulary, int64_t context) {
    const int64_t T = std::min<int64_t>(8, context);
    return (at::arange(T, at::kLong) * 7 + 3).remainder(vocabulary).view({1, T});
  };
  Batch batch;
  if (data.channels > 0) {
    const std::vector<int64_t> sizes{1, data.channels, data.height, data.width};
    batch.image = at::linspace(-1, 1, c10::multiply_integers(sizes)).view(sizes);
    return batch;
  }
  batch.ids = tokens(data.vocabulary, data.context);
  if (data.source_vocabulary > 0)
    batch.source = tokens(data.source_vocabulary, data.source_context);
  return batch;
}

// Behind all blocks, and the logits where the model has some.
std::vector<Tensor> outputs(Model& model, const Batch& batch) {
  torch::InferenceMode inference;
  HiddenStates hidden;
  ModelContext context;
  context.hidden = &hidden;
  const auto logits = model.forward(batch, context).logits;
  std::vector<Tensor> all{model.last_state(hidden)};
  if (model.predicts()) all.push_back(logits);
  return all;
}

double largest_difference(Model& model, const fs::path& folder, const DataShape& data) {
  const auto again = read_hugging_face(folder, model.parameters().front().scalar_type());
  again.model->eval();
  const auto batch = made_example(data);
  const auto ours = outputs(model, batch), theirs = outputs(*again.model, batch);
  double most = 0;
  for (size_t n = 0; n < ours.size(); ++n)
    most = std::max(most, (ours[n] - theirs.at(n)).abs().max().item<double>());
  return most;
}

void write_text_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw RunError(path.string() + ": cannot be written");
}

}  // namespace

ExportedModel export_model(Model& model, const KindBlock& options, const DataShape& data,
                           const std::vector<int64_t>& ends, const fs::path& folder,
                           const std::function<void(const fs::path&)>& add_files) {
  std::error_code error;
  const auto there = fs::status(folder, error);
  if (fs::exists(there) && !fs::is_directory(there))
    throw ConfigError(folder.string() + ": is there and no folder; choose another place");
  if (fs::exists(there) && !fs::is_empty(folder, error))
    throw ConfigError(folder.string() + ": is there and not empty; choose another place");
  const bool tied = !parameters_and_buffers(model).contains("head.weight");
  const auto config = published_config(options, data, tied, ends);
  const auto weights = published_weights(model, options, data, config);
  const NewFolder made(folder);
  const auto& making = made.making();
  fs::remove_all(making, error);
  if (!fs::create_directories(making, error))
    throw RunError(fmt::format("{}: cannot be made: {}", making.string(), error.message()));
  write_tensors(making / "model.safetensors", weights, {{"format", "pt"}});
  write_text_file(making / "config.json", config.json.dump(2) + "\n");
  ExportedModel exported{config.model_type, config.json.at("architectures").at(0),
                         largest_difference(model, making, data)};
  add_files(making);
  made.commit();
  return exported;
}

}  // namespace headlab
