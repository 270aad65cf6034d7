#include "experiments/runs/open_run.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <system_error>

#include "core/errors.h"
#include "core/kernels/isa_choice.h"
#include "core/torch.h"
#include "experiments/files/config_file.h"
#include "experiments/files/json_text.h"
#include "experiments/files/new_folder.h"
#include "experiments/models/finite_weights.h"
#include "experiments/models/trained_parameters.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_machine.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/device_name.h"
#include "experiments/system/memory.h"
#include "experiments/system/output_file.h"

namespace headlab {

namespace fs = std::filesystem;

std::shared_ptr<Model> build_model(const Experiment& experiment, const DataShape& data,
                                   const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(experiment.seed));
  const auto type = experiment.half_weights() ? at::kBFloat16 : at::kFloat;
  auto model = make_model(experiment.model, data, type);
  model->to(device);
  ParameterGroups groups;
  model->parameter_groups(groups);
  if (experiment.train.gates_only && groups.gates.empty())
    throw ConfigError("train.gates_only: the model has no gates that could train");
  return model;
}

void require_trainable(const Experiment& experiment) {
  if (experiment.half_weights())
    throw ConfigError(
        "dtype: bf16 loses what an update adds; train with dtype: fp32, of an imported model after "
        "headlab import --dtype fp32");
}

std::shared_ptr<Model> build_trained_model(const Experiment& experiment, const DataShape& data,
                                           const at::Device& device) {
  require_trainable(experiment);
  auto model = build_model(experiment, data, device);
  if (device.is_cpu())
    require_memory(3 * parameter_bytes(*model), "gradients and AdamW's two averages");
  if (model->predicts()) return model;
  Problems problems;
  problems.add(experiment.model.place("head"), "model.head",
               "gives no predictions, of which training takes its loss");
  problems.raise();
  return nullptr;
}

namespace {

std::shared_ptr<DataSource> open_unkept_data(const Experiment& experiment, const fs::path& run) {
  try {
    return open_data(experiment.data);
  } catch (const DataError& error) {
    throw DataError(
        fmt::format("{}; {} was made by an older version and keeps nothing of its data, "
                    "so they must be there",
                    error.what(), run.string()));
  }
}

}  // namespace

OpenedRun open_run(const std::filesystem::path& path, const at::Device& device) {
  const auto located = locate_run(path);
  OpenedRun opened;
  read_config(opened.experiment, load_config(located.run / "config.yaml"));
  const auto checkpoint = load_located_weights(located);
  if (auto kept = read_data_text(located.run)) {
    opened.data_description = std::move(*kept);
  } else {
    opened.data = open_unkept_data(opened.experiment, located.run);
    opened.data_description = describe_data(*opened.data);
  }
  opened.model = build_model(opened.experiment, opened.data_description.shape, device);
  load_model(*opened.model, checkpoint.model);
  warn_if_not_finite(located.run.string(), checkpoint.model);
  opened.model->eval();
  opened.step = checkpoint.step;
  opened.path = located.run;
  opened.manifest = read_manifest(located.run);
  return opened;
}

OpenedRun open_run_and_data(const std::filesystem::path& path, const at::Device& device) {
  auto opened = open_run(path, device);
  if (!opened.data) opened.data = open_own_data(opened.experiment, opened.data_description);
  return opened;
}

std::string device_type_of(const at::Device& device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

std::string cuda_version(const at::Device& device) {
  if (!device.is_cuda()) return "";
  if (!at::hasCUDA()) return "unknown";
  const long version = at::detail::getCUDAHooks().versionCUDART();  // 13020: 13.2
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::vector<std::string> gpu_names(const at::Device& device) {
  if (!device.is_cuda()) return {};
  std::string name;
#ifdef HEADLAB_CUDA
  name = cuda_device_name(std::max<int>(device.index(), 0));
#endif
  return {name.empty() ? device.str() : name};
}

nlohmann::ordered_json parameters_json(Model& model, const TrainOptions& train) {
  ParameterGroups groups;
  model.parameter_groups(groups);
  int64_t total = 0, trained = 0;
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) {
    total += item.value().numel();
    if (!is_trained(item.value(), groups, train.gates_only)) continue;
    trained += item.value().numel();
    names.push_back(item.key());
  }
  return {{"total", total}, {"trained", trained}, {"names_of_trained", names}};
}

namespace {

// What all layers of heads of a model are called by `name`, those inside of others too.
std::set<std::string> names_of_heads(Model& model,
                                     const std::string& (AttentionHeads::*name)() const) {
  std::set<std::string> names;
  for (const auto& module : model.modules())
    if (const auto heads = std::dynamic_pointer_cast<AttentionHeads>(module))
      names.insert((*heads.*name)());
  return names;
}

}  // namespace

std::set<std::string> kinds_of_heads(Model& model) {
  return names_of_heads(model, &AttentionHeads::kind);
}

std::set<std::string> maps_of_heads(Model& model) {
  auto maps = names_of_heads(model, &AttentionHeads::map_kind);
  for (const char* of_core : {"", "softmax"}) maps.erase(of_core);
  return maps;
}

nlohmann::ordered_json process_manifest(const Experiment& experiment,
                                        const nlohmann::ordered_json& data,
                                        const at::Device& device) {
  const auto type = device_type_of(device);
  return make_manifest({.torch = TORCH_VERSION,
                        .cuda = cuda_version(device),
                        .gpus = gpu_names(device),
                        .device = type,
                        .precision = resolved_precision(experiment.train, type),
                        .cpu_capability = at::get_cpu_capability(),
                        .isa = isa_name(kernel_isa()),
                        .threads = at::get_num_threads(),
                        .seed = experiment.seed,
                        .data = data});
}

nlohmann::ordered_json manifest_of(const Experiment& experiment, Model& model,
                                   const nlohmann::ordered_json& data, const at::Device& device) {
  auto manifest = process_manifest(experiment, data, device);
  auto sources = kinds_of_heads(model);
  sources.merge(maps_of_heads(model));
  manifest["code"] = code_json(sources);
  manifest["parameters"] = parameters_json(model, experiment.train);
  return manifest;
}

nlohmann::ordered_json parent_json(const fs::path& run, int64_t step,
                                   const nlohmann::ordered_json& manifest) {
  nlohmann::ordered_json origin{{"run", run.string()}, {"step", step}};
  if (manifest.is_object())
    for (const char* name : {"code", "git", "parent", "previous"})
      if (manifest.contains(name)) origin[name] = manifest[name];
  return origin;
}

nlohmann::ordered_json manifest_of(const OpenedRun& parent, const Experiment& experiment,
                                   Model& model, const at::Device& device) {
  const auto files = parent.data ? parent.data->files() : std::vector<fs::path>();
  auto manifest = manifest_of(experiment, model, data_json(files), device);
  manifest["parent"] = parent_json(parent.path, parent.step, parent.manifest);
  return manifest;
}

RootAttributes root_attributes(Experiment experiment, const std::string& title,
                               const std::string& run_id, const nlohmann::ordered_json& manifest) {
  return {.title = title + " of " + experiment.name,
          .run_id = run_id,
          .config_yaml = to_yaml(write_block(experiment)),
          .manifest_json = json_text(manifest),
          .created_utc = utc_now()};
}

Checkpoint untrained_checkpoint(const Model& model, int64_t step,
                                std::optional<double> validation_loss) {
  auto trainer = nlohmann::json::object();
  if (validation_loss) trainer["best"] = *validation_loss;
  return {
      .step = step, .model = module_tensors(model), .optimizer = std::nullopt, .trainer = trainer};
}

void write_run(const std::filesystem::path& path, Experiment experiment,
               const DataDescription& description, const Checkpoint& checkpoint,
               const nlohmann::ordered_json& manifest, const Metrics& metrics,
               const std::function<void(const fs::path& run)>& add_files) {
  require_utf8(fs::absolute(path));
  require_no_control(fs::absolute(path).string(), "--out");
  if (find_run(fs::weakly_canonical(path)).kind != FoundRun::Kind::kAbsent)
    throw RunError(path.string() + ": a run is there already; choose another place");
  const NewFolder folder(path);
  const auto& making = folder.making();
  {
    const auto yaml = to_yaml(write_block(experiment)), data = data_text(description);
    const bool left_over = find_run(making).kind != FoundRun::Kind::kAbsent;
    auto directory = left_over
                         ? RunDirectory::replace(making, WriterLock(making), yaml, manifest, data)
                         : RunDirectory::create(making, yaml, manifest, data);
    save_checkpoint(making, checkpoint, /*best=*/true);
    if (add_files) add_files(making);
    directory.end({RunState::kFinished, "", checkpoint.step, metrics});
  }
  folder.commit();
}

}  // namespace headlab
