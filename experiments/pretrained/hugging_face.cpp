#include "experiments/pretrained/hugging_face.h"

#include <fmt/format.h>

#include <charconv>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/json_place.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"
#include "experiments/models/default_type.h"
#include "experiments/models/site_heads.h"
#include "experiments/models/stack_options.h"
#include "experiments/pretrained/foreign_weights.h"
#include "experiments/pretrained/gguf_model.h"
#include "experiments/pretrained/hugging_face_families.h"
#include "experiments/pretrained/published_names.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The files must hold what the settings ask for before that is made.
void check_size(const HuggingFaceSettings& settings, const WeightFiles& files,
                const HuggingFacePlan& plan, const ModelOptions& options) {
  const auto numbers = static_cast<double>(files.numbers());
  double asked = static_cast<double>(plan.shape.vocabulary) * options.d_model;
  for (const auto& stack : options.stacks())
    asked = std::max(asked, static_cast<double>(stack->layers) * stack->d_model * stack->d_model);
  if (asked > numbers) settings.refuse("asks for more weights than the file of weights holds");
}

// The heads that its file of weights has no rows for: {"0": [1, 3]}, counted as the model was
// built.
std::vector<HeadId> pruned_heads(const HuggingFaceSettings& settings, Model& model) {
  std::vector<HeadId> gone;
  const auto* pruned = settings.find("pruned_heads");
  if (!pruned || pruned->empty()) return gone;
  const auto& type = settings.model_type();
  if (type != "gpt2" && type != "bert" && type != "vit")
    settings.unknown(fmt::format("pruned_heads: transformers prunes none of {}", type));
  const auto site = heads_at(model, kSelfSite);
  const auto refuse = [&] {
    settings.refuse(
        fmt::format("pruned_heads: {} names no heads of {} layers", pruned->dump(), site.layers()));
  };
  if (!pruned->is_object()) refuse();
  for (const auto& [name, heads] : pruned->items()) {
    int64_t layer = -1;
    const auto* end = name.data() + name.size();
    if (std::from_chars(name.data(), end, layer).ptr != end || layer < 0 ||
        layer >= site.layers() || !heads.is_array())
      refuse();
    for (const auto& head : heads) {
      if (!head.is_number_integer() || head < 0 || head >= site.layer(layer).heads()) refuse();
      gone.push_back({layer, head.get<int64_t>()});
    }
  }
  return gone;
}

// Where a text ends: generation_config.json has the last word, as transformers' generate() reads
// it.
std::vector<int64_t> ends_of_text(const HuggingFaceSettings& settings, const fs::path& generation) {
  std::vector<int64_t> ids;
  if (fs::exists(generation)) {
    const auto read = read_json(generation);
    if (const auto ends = JsonPlace(read, generation.string()).find("eos_token_id")) {
      if (!ends->value().is_array()) return {ends->integer()};
      for (const auto& id : ends->elements()) ids.push_back(id.integer());
    }
  }
  return ids.empty() ? settings.ids("eos_token_id") : ids;
}

// An empty object where the file is not there, or is none.
json object_of(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return json::object();
  auto read = parse_json(MappedFile(path).text()).value_or(json::object());
  return read.is_object() ? read : json::object();
}

// A sentence on each thing beside the weights that has no place in a run: the scale of images
// (preprocessor_config.json), another pooling of sentences than the mean (modules.json of
// sentence-transformers). Files that are no such JSON say nothing.
std::vector<std::string> notices_of_folder(const fs::path& folder,
                                           const HuggingFaceSettings& settings) {
  std::vector<std::string> notices;
  if (settings.model_type() == "vit") {
    const auto images = object_of(folder / "preprocessor_config.json");
    if (images.contains("image_mean") && images.contains("image_std"))
      notices.push_back(fmt::format(
          "preprocessor_config.json is left out: its image_mean {} and image_std {} go into `mean` "
          "and `std` of the data",
          images["image_mean"].dump(), images["image_std"].dump()));
  }
  if (settings.model_type() == "bert") {
    const auto pooling = object_of(folder / "1_Pooling" / "config.json");
    for (const auto& [key, value] : pooling.items())
      if (key.starts_with("pooling_mode_") && key != "pooling_mode_mean_tokens" && value == true)
        notices.push_back(
            fmt::format("1_Pooling/config.json is left out: it has {}, an embedding here is the "
                        "mean of all tokens",
                        key));
  }
  return notices;
}

}  // namespace

NamedTensors HuggingFaceModel::named_as_theirs(const NamedTensors& ours) const {
  NamedTensors named;
  for (const auto& rule : tensors) {
    std::vector<Tensor> parts;
    for (const auto& name : rule.ours)
      if (const auto found = ours.find(name); found != ours.end()) parts.push_back(found->second);
    if (parts.size() != rule.ours.size()) continue;
    auto whole = at::cat(parts);  // along rows
    if (rule.transposed) whole = whole.t();
    named[rule.name] = whole.reshape(rule.shape);
  }
  return named;
}

HuggingFaceModel read_hugging_face(const fs::path& path, at::ScalarType type) {
  const auto files =
      path.extension() == ".gguf"
          ? open_gguf(path)
          : PublishedFiles{HuggingFaceSettings(path / "config.json"), open_weights(path)};
  const auto& settings = files.settings;
  const auto& family = hugging_face_family(settings);
  const auto tied = family.tied(settings);
  const ForeignNames names(*files.weights, family.prefix, tied);
  const auto plan = family.plan(settings, names, hugging_face_task(settings, names));
  HuggingFaceModel made{.kind = plan.kind,
                        .options = KindBlock(model_registry(), plan.kind),
                        .shape = plan.shape,
                        .model = nullptr,
                        .tensors = {}};
  try {
    Problems problems;
    made.options.read(parse_config(plan.options, settings.name()), "", problems);
    problems.raise();
    const auto& options = made.options.as<ModelOptions>();
    check_size(settings, *files.weights, plan, options);
    const DefaultType made_in(type);
    made.model = model_kind(plan.kind).make(options, plan.shape);
  } catch (const ConfigError& error) {
    throw DataError(error.what());
  }
  made.model->to(type);
  if (const auto gone = pruned_heads(settings, *made.model); !gone.empty()) {
    remove_heads(*made.model, gone);
    slice_heads(*made.model);
  }
  const auto ours = parameters_and_buffers(*made.model);
  ForeignTensorList list(ours);
  family.list(list, made.options.as<ModelOptions>().layers);
  made.tensors = std::move(list.rules);
  const auto generation = path / "generation_config.json";
  made.ends = ends_of_text(settings, generation);
  std::erase_if(made.ends, [&](int64_t id) { return id < 0 || id >= made.shape.vocabulary; });
  made.files = files.weights->files();
  for (const auto& beside : {generation, path / "config.json"})
    if (fs::exists(beside)) made.files.insert(made.files.begin(), fs::canonical(beside));
  made.notices = plan.notices;
  for (auto& notice :
       take_weights(*files.weights, family, tied, made.tensors, ours, files.interleaved_head_dim))
    made.notices.push_back(std::move(notice));
  for (auto& notice : notices_of_folder(path, settings)) made.notices.push_back(std::move(notice));
  return made;
}

}  // namespace headlab
