#include "experiments/commands/options.h"

#include <fmt/format.h>
#include <torch/cuda.h>

#include <charconv>
#include <string_view>

#include "core/attention/paths/paths.h"
#include "core/config/config.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/runs/run_code.h"
#include "experiments/runs/run_files.h"
#include "experiments/system/most_threads.h"
#include "experiments/system/output.h"
#include "experiments/system/output_file.h"
#include "experiments/system/startable_threads.h"

namespace headlab {
namespace {
// The N of "cuda:N", -1 of "cuda"; none: it is neither.
std::optional<int> cuda_index(const std::string& name) {
  const std::string_view cuda = "cuda", word = name;
  if (!word.starts_with(cuda)) return std::nullopt;
  if (word == cuda) return -1;
  const auto number = word.substr(cuda.size());
  int index = 0;
  const auto* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(number.data() + 1, end, index);
  if (!number.starts_with(':') || error != std::errc() || stop != end || index < 0)
    return std::nullopt;
  return index;
}

at::Device named_device(const std::string& name) {
  const bool any = name == "auto";
  if (name == "cpu" || (any && !torch::cuda::is_available())) return at::kCPU;
  const auto index = any ? -1 : cuda_index(name);
  if (!index)
    throw ConfigError(fmt::format(
        "--device {}: must be auto, cpu, cuda or cuda:N{}", name,
        name.find(',') == name.npos ? "" : ", of one device; no command computes on several"));
  if (!torch::cuda::is_available())
    throw DeviceError("--device " + name + ": no CUDA device is available; use --device cpu");
  const int count = static_cast<int>(torch::cuda::device_count());
  if (*index >= count)
    throw DeviceError(fmt::format("--device {}: there {} only {} CUDA device{}", name,
                                  count == 1 ? "is" : "are", count, count == 1 ? "" : "s"));
  return *index < 0 ? at::Device(at::kCUDA)
                    : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*index));
}

}  // namespace

at::Device pick_device(const std::string& name, const Launch& launch) {
  const auto device = named_device(name);
  if (launch.size == 1 || !device.is_cuda() || device.has_index()) return device;
  return {at::kCUDA,
          static_cast<c10::DeviceIndex>(launch.local_rank % torch::cuda::device_count())};
}

void ComputeOptions::visit(Arguments& a) {
  a.option("--device", device, "auto, cpu, cuda or cuda:N");
  a.choice("--backend", backend, "path of attention", backend_names());
  a.option("--threads", threads, "threads (default: OMP_NUM_THREADS, else every core)",
           Arguments::kAboveZero);
}

Compute ComputeOptions::apply(const Launch& launch) const {
  if (threads > kMostThreads)
    throw ConfigError(fmt::format("--threads {}: must be at most {}", threads, kMostThreads));
  if (threads > 0) {
    require_startable_threads(static_cast<int>(threads));
    at::set_num_threads(static_cast<int>(threads));
  }
  return {pick_device(device, launch), backend_named(backend)};
}

Split split_of(const OpenedRun& run, const std::string& name,
               const std::optional<std::string>& split) {
  const auto chosen = split ? split_named(*split) : run.data->evaluated();
  if (run.data->examples(chosen) == 0)
    throw DataError(fmt::format("{}: its data has no examples of split {}; choose another --split",
                                name, split_name(chosen)));
  return chosen;
}

namespace {
OpenedRun say_code(const std::string& name, OpenedRun run) {
  if (const auto notice = code_notice(run.manifest); !notice.empty())
    tell("{}: {}; what follows is computed by the code of now", name, notice);
  return run;
}
}  // namespace

OpenedRun open_named_run(const std::string& run, const at::Device& device) {
  return say_code(run, open_run(run, device));
}

void add_code(nlohmann::ordered_json& object, const OpenedRun& run) {
  if (const auto notice = code_notice(run.manifest); !notice.empty()) object["code"] = notice;
}

nlohmann::ordered_json examples_json(const OpenedRun& run, Split split) {
  auto files = nlohmann::ordered_json::array();
  for (const auto& file : run.data->files()) files.push_back(file.string());
  nlohmann::ordered_json object{{"split", split_name(split)}, {"data", files}};
  add_code(object, run);
  return object;
}

void MeasureOptions::visit(Arguments& a) {
  a.option("--split", split, "train, val or test (default: val)");
  a.option("--batches", batches, "evaluation batches to measure on; 0: the whole split",
           Arguments::kZeroOrMore);
  a.option("--batch", batch, "examples a batch (default: the run's train.eval_batch)",
           Arguments::kAboveZero);
}

Split MeasureOptions::resolve(const OpenedRun& run, const std::string& name) {
  own_batch_ = batch > 0;
  if (batch == 0) batch = run.experiment.train.eval_batch;
  if (!run.data) return Split::kWhole;
  return split_of(run, name, split);
}

std::vector<std::string> MeasureOptions::words() const {
  std::vector<std::string> words;
  if (batches != MeasureOptions().batches) words.push_back(fmt::format("batches-{}", batches));
  if (own_batch_) words.push_back(fmt::format("batch-{}", batch));
  return words;
}

void require_free(const std::string& out) {
  if (out.empty()) return;
  require_new_folder(out);
  if (find_run(out).kind != FoundRun::Kind::kAbsent)
    throw RunError(out + ": a run is there already; choose another place");
}

}  // namespace headlab
