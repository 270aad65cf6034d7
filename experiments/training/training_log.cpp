#include "experiments/training/training_log.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "core/torch.h"
#include "experiments/logs/log_repair.h"
#include "experiments/models/head_grid.h"

namespace headlab {
namespace {

constexpr const char* kLoggedSite = "self";

std::vector<int64_t> all_or(const std::vector<int64_t>& chosen, int64_t count) {
  if (!chosen.empty()) return chosen;
  std::vector<int64_t> all(count);
  for (int64_t n = 0; n < count; ++n) all[n] = n;
  return all;
}

LogDims dims_of(Per per) {
  switch (per) {
    case Per::kHead:
      return LogDims::kLayerHead;
    case Per::kPair:
      return LogDims::kLayerHeadHead;
    case Per::kLayer:
      return LogDims::kLayer;
    case Per::kExpert:
      break;
  }
  throw std::logic_error("statistics by expert have no variable in the log");
}

LogStatistic log_statistic(const Statistic& s) {
  LogStatistic statistic;
  statistic.name = s.name, statistic.units = s.units;
  statistic.long_name = s.long_name, statistic.comment = s.formula;
  statistic.dims = dims_of(s.per);
  return statistic;
}

// Those of the table that are wanted, and every kind's own.
std::vector<LogStatistic> statistics_of(const LogOptions& options, Model& model, bool has_classes) {
  const auto wanted = options.statistics();
  std::vector<LogStatistic> chosen;
  for (const auto& s : statistic_table()) {
    if (std::find(wanted.begin(), wanted.end(), s.name) == wanted.end()) continue;
    if (s.needs == Needs::kClasses && !has_classes) continue;
    chosen.push_back(log_statistic(s));
  }
  std::set<std::string> own;
  for (auto* heads : attention_layers(model))
    for (const auto& s : (*heads)->own_statistics())
      if ((has_classes || s.needs != Needs::kClasses) && own.insert(s.name).second)
        chosen.push_back(log_statistic(s));
  return chosen;
}

// Numbers of a row of one statistic.
int64_t count_of(const LogStatistic& s, const LogSite& site) {
  if (s.dims == LogDims::kLayer) return site.layers;
  return site.layers * site.heads * (s.dims == LogDims::kLayerHeadHead ? site.heads : 1);
}

std::vector<int32_t> as_int32(const Tensor& t) {
  const auto dense = t.to(at::kInt).contiguous();
  return {dense.data_ptr<int32_t>(), dense.data_ptr<int32_t>() + dense.numel()};
}

// The first validation examples, spread over the split so that they differ.
Tensor map_probes(const AttentionLogOptions& options, const DataSource& data) {
  const int64_t examples = data.examples(Split::kValidation);
  const int64_t probes = std::min(options.probes, examples);
  std::vector<Tensor> ids;
  for (int64_t n = 0; n < probes; ++n)
    ids.push_back(data.eval_batch(Split::kValidation, n * examples / probes, 1).ids);
  return at::cat(ids);  // [P,T]
}

LogMaps maps_of(const AttentionLogOptions& options, const LogSite& site, Model& model,
                const Tensor& ids) {
  LogMaps maps;
  for (auto* heads : attention_layers(model))
    if (!(*heads)->traits().rows_sum_to_one) maps.normalization = "composed", maps.packed = false;
  maps.probes = ids.size(0);
  maps.layers = all_or(options.layers, site.layers);
  maps.heads = all_or(options.heads, site.heads);
  const int64_t positions = std::min(options.max_positions, ids.size(1));
  maps.query = maps.key = all_or({}, positions);
  maps.query_token = maps.key_token = as_int32(ids.narrow(1, 0, positions));
  maps.query_length.assign(ids.size(0), static_cast<int32_t>(positions));
  maps.key_length = maps.query_length;
  return maps;
}

LogSite site_of(const Experiment& experiment, Model& model, bool has_classes, const Tensor& ids) {
  LogSite site;
  site.name = kLoggedSite;
  const auto layers = attention_layers(model);
  site.layers = std::ssize(layers);
  for (auto* heads : layers) site.heads = std::max(site.heads, (*heads)->heads());
  site.statistics = statistics_of(experiment.log, model, has_classes);
  if (!ids.defined()) return site;
  auto maps = maps_of(experiment.log.attention, site, model, ids);
  std::erase_if(maps.layers,
                [&](int64_t layer) { return !(*layers.at(layer))->traits().token_map; });
  if (!maps.layers.empty()) site.maps = maps;
  return site;
}

bool wants_maps(const Experiment& experiment) {
  return experiment.log.attention.every > 0 && experiment.log.attention.probes > 0;
}

RunLog open_log(const std::filesystem::path& path, const RootAttributes& root,
                const Experiment& experiment, const LogSite& site, const DataSource& data,
                const std::vector<TrainingMetric>& metrics, std::optional<int64_t> resumed_step,
                double wall_s) {
  LogLayout layout{root};
  layout.scalars = variables_of(metrics, MetricGroup::kScalars);
  layout.evals = variables_of(metrics, MetricGroup::kEvals);
  layout.sites = {site};
  layout.vocabulary = data.token_texts();
  RunLogOptions options;
  options.flush_every = experiment.log.flush_every;
  options.max_bytes = experiment.log.attention.max_bytes;
  options.swmr = experiment.log.swmr;
  // A run that was not trained so far (a converted one) has no log to go on with.
  if (resumed_step && std::filesystem::exists(path))
    return RunLog::resume(path, layout, *resumed_step, wall_s, options);
  return RunLog::create(path, layout, options);
}

}  // namespace

int64_t total_map_bytes(const Experiment& experiment, Model& model, const DataSource& data) {
  if (!wants_maps(experiment)) return 0;
  const auto ids = map_probes(experiment.log.attention, data);
  const auto site = site_of(experiment, model, false, ids);
  const int64_t snapshots = experiment.train.steps / experiment.log.attention.every + 1;
  return snapshots * map_bytes(site);
}

int64_t total_statistics_bytes(const Experiment& experiment, Model& model, const DataSource& data) {
  if (experiment.log.stats_every == 0) return 0;
  const auto site = site_of(experiment, model, !data.token_classes().empty(), Tensor());
  int64_t row = 0;
  for (const auto& s : site.statistics) row += 4 * count_of(s, site);
  return row * (experiment.train.steps / experiment.log.stats_every + 1);
}

TrainingLog::TrainingLog(const std::filesystem::path& path, const RootAttributes& root,
                         const Experiment& experiment, Model& model, const DataSource& data,
                         const std::vector<TrainingMetric>& metrics,
                         std::optional<int64_t> resumed_step, double wall_s)
    : model_(model),
      map_ids_(wants_maps(experiment) ? map_probes(experiment.log.attention, data) : Tensor()),
      site_(site_of(experiment, model, !data.token_classes().empty(), map_ids_)),
      absent_(resumed_step && std::filesystem::exists(path) ? drop_unlogged(path, site_)
                                                            : std::vector<std::string>()),
      log_(open_log(path, root, experiment, site_, data, metrics, resumed_step, wall_s)) {
  const auto classes = data.token_classes();
  if (!classes.empty()) probe_.class_of_token = at::tensor(classes, at::kByte);
  probe_.statistics = true;
  auto logs = [&](const char* name) {
    return std::any_of(site_.statistics.begin(), site_.statistics.end(),
                       [&](const LogStatistic& s) { return s.name == name; });
  };
  probe_.divergence = logs("js");
  probe_.matches = logs("induction") || logs("duplicate_token");
}

HeadProbe& TrainingLog::fresh_probe() {
  probe_.reset();
  return probe_;
}

void TrainingLog::heads(int64_t step) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t H = site_.heads;
  RunLog::HeadValues row;
  std::vector<uint8_t> alive(site_.layers * H, 0);
  for (const auto& s : site_.statistics) row[s.name].assign(count_of(s, site_), nan);
  const auto layers = attention_layers(model_);
  for (int64_t layer = 0; layer < site_.layers; ++layer) {
    const auto is_alive = (*layers[layer])->alive();
    std::copy(is_alive.begin(), is_alive.end(), alive.begin() + layer * H);
    if (!probe_.sums().count(layer)) continue;
    const auto values = probe_.values(layer);
    const int64_t own = std::ssize(is_alive);
    for (const auto& s : site_.statistics) {
      const auto from = values.find(s.name);
      if (from == values.end()) continue;  // another kind's own
      for (int64_t n = 0; n < std::ssize(from->second); ++n) {
        int64_t to = layer * H + n;
        if (s.dims == LogDims::kLayerHeadHead) to = (layer * H + n / own) * H + n % own;
        if (s.dims == LogDims::kLayer) to = layer;
        row[s.name][to] = from->second[n];
      }
    }
  }
  log_.heads(kLoggedSite, step, row, alive);
}

void TrainingLog::scalars(int64_t step, double wall_s, int64_t tokens,
                          const RunLog::Values& values) {
  log_.scalars(step, wall_s, tokens, values);
}

void TrainingLog::eval(int64_t step, const RunLog::Values& values) { log_.eval(step, values); }

void TrainingLog::maps(int64_t step, const at::Device& device) {
  if (!site_.maps) return;
  torch::InferenceMode inference;
  const bool was_training = model_.is_training();
  model_.eval();
  HeadProbe probe;
  probe.maps = true;
  ModelContext ctx;
  ctx.observer = &probe;
  model_.forward({map_ids_.to(device)}, ctx);
  model_.train(was_training);

  const auto& plan = *site_.maps;
  const int64_t P = plan.probes, Q = std::ssize(plan.query);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto kept = at::full({P, std::ssize(plan.layers), std::ssize(plan.heads), Q, Q}, nan);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const auto found = probe.layer_maps().find(plan.layers[l]);
    if (found == probe.layer_maps().end()) continue;
    const auto map = found->second.to(at::kCPU, at::kFloat);  // [P,H,T,T]
    const auto ids = (*attention_layers(model_)[plan.layers[l]])->head_ids();
    for (size_t h = 0; h < plan.heads.size(); ++h) {
      const auto row = std::find(ids.begin(), ids.end(), plan.heads[h]);
      if (row == ids.end()) continue;
      kept.select(2, static_cast<int64_t>(h))
          .select(1, static_cast<int64_t>(l))
          .copy_(map.select(1, row - ids.begin()).narrow(1, 0, Q).narrow(2, 0, Q));
    }
  }
  log_.attention(kLoggedSite, step, {kept.data_ptr<float>(), static_cast<size_t>(kept.numel())});
}

}  // namespace headlab
