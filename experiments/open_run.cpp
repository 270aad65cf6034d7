#include "experiments/open_run.h"

#include <torch/torch.h>

#include <algorithm>

#include "experiments/checkpoint.h"
#include "experiments/run_files.h"

namespace headlab {

std::shared_ptr<Model> build_model(const Experiment& experiment, const DataSource& data,
                                   const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(experiment.seed));
  auto model = model_kind(experiment.model.kind())
                   .make(experiment.model.as<ModelOptions>(), data.vocabulary(), data.context());
  model->to(device);
  return model;
}

void load_model(Model& model, const NamedTensors& tensors) {
  const auto sliced = sliced_layers(tensors);
  for (const auto& [site, layers] : model.sites())
    for (int64_t layer = 0; layer < std::ssize(layers); ++layer)
      for (const auto& [path, kept] : sliced) {
        if (model.layer_path(site, layer) != path) continue;
        auto& heads = *layers[layer];
        std::vector<int64_t> gone;
        for (int64_t h = 0; h < heads->heads(); ++h)
          if (std::find(kept.begin(), kept.end(), h) == kept.end()) gone.push_back(h);
        heads->mask_heads(gone);
        model.exchange(site, layer, heads->slice());
      }
  load_into(model, tensors);
}

OpenedRun open_run(const std::filesystem::path& path, const at::Device& device) {
  const auto located = locate_run(path);
  OpenedRun opened;
  read_config(opened.experiment, load_config(located.run / "config.yaml"));
  const auto checkpoint = load_located(located);
  opened.data = open_data(opened.experiment.data);
  opened.model = build_model(opened.experiment, *opened.data, device);
  load_model(*opened.model, checkpoint.model);
  opened.model->eval();
  opened.step = checkpoint.step;
  return opened;
}

}  // namespace headlab
