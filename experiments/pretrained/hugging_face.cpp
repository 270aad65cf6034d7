#include "experiments/pretrained/hugging_face.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/default_type.h"
#include "experiments/models/stack_options.h"
#include "experiments/pretrained/foreign_weights.h"
#include "experiments/pretrained/gguf_model.h"
#include "experiments/pretrained/hugging_face_families.h"
#include "experiments/pretrained/published_names.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// The files must hold what the settings ask for before that is made.
void check_size(const HuggingFaceSettings& settings, const WeightFiles& files,
                const HuggingFacePlan& plan, const ModelOptions& options) {
  const auto numbers = static_cast<double>(files.numbers());
  double asked = static_cast<double>(plan.shape.vocabulary) * options.d_model;
  for (const auto& stack : options.stacks())
    asked = std::max(asked, static_cast<double>(stack->layers) * stack->d_model * stack->d_model);
  if (asked > numbers) settings.refuse("asks for more weights than the file of weights holds");
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
  const auto plan = family.plan(settings, ForeignNames(*files.weights, family.prefix));
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
  const auto ours = parameters_and_buffers(*made.model);
  ForeignTensorList list(ours);
  family.list(list, made.options.as<ModelOptions>().layers);
  made.tensors = std::move(list.rules);
  made.ends = settings.ids("eos_token_id");
  std::erase_if(made.ends, [&](int64_t id) { return id < 0 || id >= made.shape.vocabulary; });
  made.files = files.weights->files();
  if (const auto config = path / "config.json"; fs::exists(config))
    made.files.insert(made.files.begin(), fs::canonical(config));
  take_weights(*files.weights, family, made.tensors, ours, files.interleaved_head_dim);
  return made;
}

}  // namespace headlab
