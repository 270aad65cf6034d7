#include "experiments/cases/model_of_case.h"

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/inference/generate.h"
#include "experiments/pretrained/published_names.h"
#include "experiments/runs/open_run.h"

namespace headlab {

HuggingFaceModel model_of_case(const CaseFile& file, at::ScalarType type,
                               const at::Device& device) {
  const auto path =
      file.model.empty() ? std::filesystem::path(file.name).parent_path() : file.model;
  const bool is_run = path.extension() != ".gguf" && !exists(path / "config.json");
  if (is_run && file.model.empty())
    throw DataError(file.name +
                    ": the model lies not beside it (config.json, model.safetensors); --model "
                    "names a folder in Hugging Face's layout, a .gguf file or a run");
  auto made = [&] {
    if (!is_run) return read_hugging_face(path, type);
    const auto run = open_run(path, device);
    const auto& model = run.experiment.model;
    const auto& shape = run.data_description.shape;
    return HuggingFaceModel{
        .kind = model.kind(),
        .options = model,
        .shape = shape,
        .model = run.model,
        .tensors = published_tensors(model.kind(), model.as<ModelOptions>(), shape,
                                     parameters_and_buffers(*run.model))};
  }();
  made.model->to(type);
  made.model->to(device);
  made.model->eval();
  return made;
}

Tensor continued(Model& model, const Tensor& prompt, int64_t tokens, const Compute& compute) {
  const auto begun = integers_of(prompt);
  auto ids = begun;
  generate(model, begun, {.tokens = tokens, .temperature = 0}, compute,
           [&](int64_t id) { ids.push_back(id); });
  return at::tensor(ids, at::kLong);
}

}  // namespace headlab
