// A whole model of the program in Python: headlab._C.Model, which headlab.load() wraps in a
// torch.nn.Module.
#include <c10/core/ScalarType.h>
#include <torch/csrc/utils/pybind.h>

#include "core/attention/call/cache.h"
#include "core/config/config.h"
#include "experiments/models/named_batch.h"
#include "experiments/models/restore_model.h"
#include "experiments/models/site_heads.h"
#include "experiments/models/site_probes.h"
#include "experiments/pretrained/export.h"
#include "scripts/python/headlab/binding.h"

namespace py = pybind11;

namespace headlab {
namespace {

struct ModelCache {
  std::vector<LayerCache> layers;
};
// By site and layer: what replaces the heads' outputs, as Python registered it.
using Hooks = std::map<std::pair<std::string, int64_t>, std::function<Tensor(const Tensor&)>>;

DataShape shape_of(const std::map<std::string, std::optional<int64_t>>& numbers) {
  DataShape shape;
  const std::map<std::string, int64_t*> fields{{"vocabulary", &shape.vocabulary},
                                               {"context", &shape.context},
                                               {"source_vocabulary", &shape.source_vocabulary},
                                               {"source_context", &shape.source_context},
                                               {"classes", &shape.classes},
                                               {"values", &shape.values},
                                               {"channels", &shape.channels},
                                               {"height", &shape.height},
                                               {"width", &shape.width}};
  const std::map<std::string, std::optional<int64_t>*> tokens{
      {"pad", &shape.pad}, {"start", &shape.start}, {"end", &shape.end}, {"mask", &shape.mask}};
  for (const auto& [name, number] : numbers) {
    if (!number) continue;
    if (const auto field = fields.find(name); field != fields.end()) *field->second = *number;
    if (const auto token = tokens.find(name); token != tokens.end()) *token->second = *number;
  }
  return shape;
}

class RunModel {
 public:
  // The model that `config`, the text of a run's config.yaml, describes, for data of this shape.
  RunModel(const std::string& config, const std::string& file, const DataShape& shape)
      : shape_(shape) {
    const auto all = parse_config(config, file);
    const auto* node = all.find("model");
    if (!node) throw ConfigError(file + ": model: is missing");
    const auto* kind = node->find("kind");
    if (!kind) throw ConfigError(file + ": model.kind: is missing");
    model_kind(kind->text);
    options_.emplace(model_registry(), kind->text);
    Problems problems;
    options_->read(*node, "model", problems);
    problems.raise();
    const auto* type = all.find("dtype");
    model_ =
        make_model(*options_, shape, type && type->text == "bf16" ? at::kBFloat16 : at::kFloat);
    model_->eval();
  }

  struct Result {
    Tensor logits = {};
    NamedValues aux = {}, normed = {};
    std::map<std::string, std::vector<Tensor>> hidden = {};
    std::map<std::pair<std::string, int64_t>, NamedValues> statistics = {};
    std::map<std::pair<std::string, int64_t>, Tensor> maps = {};
  };

  struct Wanted {
    bool statistics = false, maps = false, hidden = false;
  };

  Result forward(const NamedTensors& inputs, ModelCache* cache, const Hooks& hooks,
                 const Wanted& wanted) {
    const auto device = model_->parameters().front().device();
    const auto batch = named_batch("inputs", inputs, shape_).to(device);
    SiteProbes probes(*model_, [&](HeadProbe& probe) {
      probe.statistics = wanted.statistics;
      probe.maps = wanted.maps;
      probe.js_stride = 1;
    });
    HiddenStates hidden;
    std::map<std::string, Tensor> normed;
    ModelContext ctx;
    if (wanted.statistics || wanted.maps) {
      probes.tell(batch);
      ctx.observer = &probes;
    }
    if (wanted.hidden) {
      ctx.hidden = &hidden;
      ctx.normed = &normed;
    }
    if (cache) ctx.caches = &cache->layers;
    if (!hooks.empty())
      ctx.edit_heads = [&](const std::string& site, int64_t layer, HeadContext& heads) {
        if (const auto hook = hooks.find({site, layer}); hook != hooks.end())
          heads.outputs = hook->second;
      };
    const auto out = model_->forward(batch, ctx);
    Result result{.logits = out.logits};
    for (const auto& aux : out.aux) result.aux.emplace_back(aux.name, aux.value);
    result.hidden = hidden;
    result.normed.assign(normed.begin(), normed.end());
    take_seen(probes, wanted, result);
    return result;
  }

  AttentionHeads& layer(const std::string& site, int64_t index) const {
    return heads_at(*model_, site).layer(index);
  }
  Model& model() const { return *model_; }
  std::vector<std::tuple<std::string, std::vector<std::string>>> sites() const {
    std::vector<std::tuple<std::string, std::vector<std::string>>> all;
    for (const auto& site : model_->sites()) {
      std::vector<std::string> paths;
      for (int64_t layer = 0; layer < std::ssize(site.layers); ++layer)
        paths.push_back(model_->layer_path(site.name, layer));
      all.emplace_back(site.name, paths);
    }
    return all;
  }
  // The class of transformers that opens the folder.
  std::string write_hugging_face(const std::string& folder, const std::vector<int64_t>& ends) {
    return export_model(*model_, *options_, shape_, ends, folder, [](const auto&) {}).architecture;
  }

 private:
  void take_seen(const SiteProbes& probes, const Wanted& wanted, Result& result) const {
    for (const auto& site : model_->sites())
      for (int64_t layer = 0; layer < std::ssize(site.layers); ++layer) {
        const MapKey key(site.name, layer, 0);
        const auto& probe = probes.at(site.name);
        if (wanted.statistics && probe.sums().contains(key))
          result.statistics[{site.name, layer}] = values_of(probe, **site.layers[layer], key);
        if (const auto map = probe.layer_maps().find(key); map != probe.layer_maps().end())
          result.maps[{site.name, layer}] = map->second;
      }
  }

  DataShape shape_;
  std::optional<KindBlock> options_;
  std::shared_ptr<Model> model_;
};

}  // namespace

void bind_models(py::module_& module) {
  py::class_<ModelCache, std::shared_ptr<ModelCache>>(module, "ModelCache")
      .def(py::init<>())
      .def_property_readonly("length", [](const ModelCache& cache) {
        return cache.layers.empty() ? 0 : cache.layers[0].length();
      });

  py::class_<RunModel>(module, "Model")
      .def(py::init([](const std::string& config, const std::string& file,
                       const std::map<std::string, std::optional<int64_t>>& shape) {
             return std::make_unique<RunModel>(config, file, shape_of(shape));
           }),
           py::arg("config"), py::arg("file"), py::arg("shape"))
      .def("load",
           [](RunModel& model, const NamedTensors& tensors) { load_model(model.model(), tensors); })
      .def(
          "forward",
          [](RunModel& model, const NamedTensors& inputs, const std::shared_ptr<ModelCache>& cache,
             const std::map<std::pair<std::string, int64_t>, py::object>& hooks, bool statistics,
             bool maps, bool hidden) {
            Hooks called;
            for (const auto& [at, hook] : hooks) called[at] = output_hook(hook);
            RunModel::Result result;
            {
              const py::gil_scoped_release others_may_run;
              result = model.forward(inputs, cache.get(), called,
                                     {.statistics = statistics, .maps = maps, .hidden = hidden});
            }
            return py::make_tuple(result.logits, result.aux, result.statistics, result.maps,
                                  result.hidden, result.normed);
          },
          py::arg("inputs"), py::kw_only(), py::arg("cache"), py::arg("hooks"),
          py::arg("statistics"), py::arg("maps"), py::arg("hidden"))
      .def("parameters", [](const RunModel& model) { return parameters_of(model.model()); })
      .def("buffers", [](const RunModel& model) { return buffers_of(model.model()); })
      .def("train", [](RunModel& model, bool on) { model.model().train(on); })
      .def("sites", &RunModel::sites)
      .def("write_hugging_face", &RunModel::write_hugging_face, py::arg("folder"), py::arg("ends"),
           py::call_guard<py::gil_scoped_release>())
      .def("mask_heads",
           [](RunModel& model, const std::string& site, int64_t layer,
              const std::vector<int64_t>& heads) { model.layer(site, layer).mask_heads(heads); })
      .def("layer",
           [](const RunModel& model, const std::string& site, int64_t layer) {
             const auto& heads = model.layer(site, layer);
             return py::dict(py::arg("kind") = heads.kind(), py::arg("heads") = heads.heads(),
                             py::arg("head_ids") = heads.head_ids(),
                             py::arg("alive") = heads.alive(),
                             py::arg("value_width") = heads.value_width());
           })
      .def("after_step",
           [](RunModel& model) {
             for (auto* heads : all_heads(model.model())) (*heads)->after_step();
           })
      .def_property_readonly("context",
                             [](const RunModel& model) { return model.model().context(); })
      .def_property_readonly("writes",
                             [](const RunModel& model) { return model.model().writes(); });
}

}  // namespace headlab
