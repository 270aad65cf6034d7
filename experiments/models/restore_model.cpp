#include "experiments/models/restore_model.h"

#include <string_view>

#include "core/torch.h"
#include "experiments/models/default_type.h"

namespace headlab {

std::shared_ptr<Model> make_model(const KindBlock& model, const DataShape& data,
                                  at::ScalarType type) {
  const auto& options = model.as<ModelOptions>();
  Problems problems;
  options.check_data(data, [&](const std::string& field, const std::string& what) {
    problems.add(model.place(field), "model." + field, what);
  });
  problems.raise();
  const DefaultType made_in(type);
  auto made = model_kind(model.kind()).make(options, data);
  made->to(type);
  return made;
}

void load_model(Model& model, const NamedTensors& tensors) {
  const auto saved_sliced = sliced_layers(tensors);
  for (const auto& site : model.sites())
    for (int64_t layer = 0; layer < std::ssize(site.layers); ++layer) {
      const auto path = model.layer_path(site.name, layer);
      if (!saved_sliced.contains(path)) continue;
      const auto& whole = **site.layers[layer];
      TORCH_CHECK(whole.made_of(), path, " was not made by make_heads()");
      const auto like = whole.parameters().front().options();
      auto sliced = restore_heads(*whole.made_of(), whole.whole_shape(), tensors, path + ".");
      sliced->to(like.device(), c10::typeMetaToScalarType(like.dtype()));
      sliced->train(whole.is_training());
      model.exchange(site.name, layer, sliced);
    }
  load_into(model, tensors);
}

std::map<std::string, std::vector<int64_t>> sliced_layers(const NamedTensors& tensors) {
  constexpr std::string_view kSuffix = ".head_ids";
  std::map<std::string, std::vector<int64_t>> layers;
  for (const auto& [name, tensor] : tensors) {
    if (!name.ends_with(kSuffix)) continue;
    const at::Tensor ids = tensor.to(at::kCPU, at::kLong).contiguous();  // of a model on a GPU, too
    const auto* first = ids.const_data_ptr<int64_t>();
    layers[name.substr(0, name.size() - kSuffix.size())].assign(first, first + ids.numel());
  }
  return layers;
}

}  // namespace headlab
