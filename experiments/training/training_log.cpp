#include "experiments/training/training_log.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "core/torch.h"
#include "experiments/logs/log_repair.h"
#include "experiments/models/site_heads.h"
#include "experiments/training/log_images.h"

namespace headlab {
namespace {

// Those of the chosen that there are; nothing chosen: all.
std::vector<int64_t> all_or(std::vector<int64_t> chosen, int64_t count) {
  if (!chosen.empty()) {
    std::erase_if(chosen, [&](int64_t index) { return index >= count; });  // of a larger site
    return chosen;
  }
  std::vector<int64_t> all(count);
  std::iota(all.begin(), all.end(), int64_t{0});
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
      return LogDims::kLayerHeadExpert;
  }
  throw std::logic_error("a statistic of no kind");
}

LogStatistic log_statistic(const Statistic& s) {
  LogStatistic statistic;
  statistic.name = s.name, statistic.units = s.units;
  statistic.long_name = s.long_name, statistic.comment = s.formula;
  statistic.dims = dims_of(s.per);
  return statistic;
}

// Those of the table that are wanted, and every kind's own.
std::vector<LogStatistic> statistics_of(const LogOptions& options, const SiteHeads& site,
                                        bool has_classes) {
  const auto wanted = options.statistics();
  std::vector<LogStatistic> chosen;
  for (const auto& s : statistic_table()) {
    if (std::ranges::find(wanted, s.name) == wanted.end()) continue;
    if (s.needs == Needs::kClasses && !has_classes) continue;
    chosen.push_back(log_statistic(s));
  }
  std::set<std::string> own;
  for (int64_t l = 0; l < site.layers(); ++l)
    for (const auto& s : site.layer(l).statistics())
      if ((has_classes || s.needs != Needs::kClasses) && own.insert(s.name).second)
        chosen.push_back(log_statistic(s));
  return chosen;
}

// Numbers of a row of one statistic.
int64_t count_of(const LogStatistic& s, const LogSite& site) {
  switch (s.dims) {
    case LogDims::kLayer:
      return site.layers;
    case LogDims::kLayerHead:
      return site.layers * site.heads;
    case LogDims::kLayerHeadHead:
      return site.layers * site.heads * site.heads;
    case LogDims::kLayerHeadExpert:
      return site.layers * site.heads * site.experts;
  }
  throw std::logic_error("a statistic of no dimensions");
}

// The most of a head in any layer.
int64_t experts_of(const SiteHeads& site) {
  int64_t experts = 0;
  for (int64_t l = 0; l < site.layers(); ++l)
    for (const auto& s : site.layer(l).statistics()) experts = std::max(experts, s.experts);
  return experts;
}

std::vector<int32_t> as_int32(const Tensor& t) {
  const auto dense = t.to(at::kInt).contiguous();
  return {dense.data_ptr<int32_t>(), dense.data_ptr<int32_t>() + dense.numel()};
}

// The first validation examples, spread over the split so that they differ.
Batch map_examples(const AttentionLogOptions& options, const DataSource& data) {
  const int64_t examples = data.examples(Split::kValidation);
  const int64_t probes = std::min(options.probes, examples);
  std::vector<Batch> batches;
  for (int64_t n = 0; n < probes; ++n)
    batches.push_back(data.eval_batch(Split::kValidation, n * examples / probes, 1));
  return joined(batches, data.shape().pad.value_or(0));
}

// One side of a site's maps: positions kept, their tokens, how many are there in each example. What
// is cut from an image, into `context` places, is no tokens.
struct MapSide {
  std::vector<int64_t> positions;
  std::vector<int32_t> tokens, lengths;

  MapSide(const Batch& batch, Tensor Batch::*input, const Tensor& length, int64_t context,
          int64_t most) {
    auto ids = batch.tokens_of(input);
    if (!ids.defined()) ids = at::full({batch.examples(), context}, -1, at::kLong);
    const int64_t count = std::min(most, ids.size(1));
    positions = all_or({}, count);
    tokens = as_int32(ids.narrow(1, 0, count));
    lengths = as_int32(length.defined() ? length.clamp_max(count)
                                        : at::full({ids.size(0)}, count, at::kLong));
  }
};

constexpr const char *kVocabulary = "vocab", *kSourceVocabulary = "vocab_source",
                     *kTargetVocabulary = "vocab_target";

// Whether what is read and what is written are of other tokens.
bool has_two_vocabularies(const DataSource& data) {
  return data.source_tokenizer() && data.source_tokenizer() != data.tokenizer();
}

std::string vocabulary_of(const DataSource& data, Tensor Batch::*input) {
  if (!has_two_vocabularies(data)) return kVocabulary;
  return input == &Batch::source ? kSourceVocabulary : kTargetVocabulary;
}

LogMaps maps_of(const AttentionLogOptions& options, const SiteHeads& site, int64_t context,
                const Batch& batch) {
  LogMaps maps;
  for (int64_t l = 0; l < site.layers(); ++l) {
    const auto& traits = site.layer(l).traits();
    if (!traits.rows_sum_to_one) maps.normalization = "composed", maps.packed = false;
  }
  const auto& at = site.site();
  const auto side = [&](Tensor Batch::*input, Tensor Batch::*length) {
    return MapSide(batch, input, batch.*length, context, options.max_positions);
  };
  const auto query = side(at.queries, at.query_length), key = side(at.keys, at.key_length);
  maps.probes = batch.examples();
  maps.layers = all_or(options.layers, site.layers());
  maps.heads = all_or(options.heads, site.heads());
  maps.query = query.positions, maps.query_token = query.tokens;
  maps.query_length = query.lengths;
  maps.key = key.positions, maps.key_token = key.tokens, maps.key_length = key.lengths;
  return maps;
}

// What is logged of a site; without `batch`, no maps.
LogSite site_of(const Experiment& experiment, const SiteHeads& heads, const Model& model,
                const DataSource& data, const std::optional<Batch>& batch) {
  LogSite site;
  site.name = heads.name();
  site.layers = heads.layers();
  site.heads = heads.heads();
  site.experts = experts_of(heads);
  const auto &queries = heads.site().queries, &keys = heads.site().keys;
  const bool classes = keys == &Batch::ids && !data.token_classes().empty();
  site.statistics = statistics_of(experiment.log, heads, classes);
  if (!batch || !(*batch.*keys).defined()) return site;
  auto maps = maps_of(experiment.log.attention, heads, model.context(), *batch);
  maps.query_vocabulary = vocabulary_of(data, queries);
  maps.key_vocabulary = vocabulary_of(data, keys);
  if (const auto grid = model.image_grid(); grid && keys == &Batch::image)
    maps.images = log_images(batch->image, *grid);
  std::erase_if(maps.layers,
                [&](int64_t l) { return heads.layer(l).traits().map != HeadMap::kTokens; });
  if (!maps.layers.empty() && !maps.heads.empty()) site.maps = maps;
  return site;
}

std::vector<LogSite> sites_of(const Experiment& experiment, Model& model, const DataSource& data,
                              const std::optional<Batch>& batch) {
  std::vector<LogSite> sites;
  for (const auto& heads : site_heads(model))
    sites.push_back(site_of(experiment, heads, model, data, batch));
  return sites;
}

bool wants_maps(const Experiment& experiment) {
  return experiment.log.attention.every > 0 && experiment.log.attention.probes > 0;
}

LogLayout layout_of(const RootAttributes& root, const std::vector<TrainingMetric>& metrics,
                    const std::vector<LogVariable>& evals, const std::vector<LogSite>& sites,
                    const DataSource& data) {
  LogLayout layout{root};
  layout.scalars = variables_of(metrics, MetricGroup::kScalars);
  layout.evals = evals;
  layout.sites = sites;
  if (has_two_vocabularies(data)) {
    layout.vocabularies[kSourceVocabulary] = data.source_tokenizer()->token_texts();
    layout.vocabularies[kTargetVocabulary] = data.token_texts();
  } else {
    layout.vocabularies[kVocabulary] = data.token_texts();
  }
  return layout;
}

// Has the probes see what the statistics of the sites are made of.
void set_probes(SiteProbes& probes, const std::vector<LogSite>& sites,
                const std::vector<SiteHeads>& heads, const DataSource& data) {
  const auto classes = data.token_classes();
  for (size_t n = 0; n < sites.size(); ++n) {
    auto& probe = probes.at(sites[n].name);
    if (!classes.empty() && heads[n].site().keys == &Batch::ids)
      probe.class_of_token = at::tensor(classes, at::kByte);
    probe.statistics = true;
    const auto logs = [&](const char* name) {
      return std::ranges::find(sites[n].statistics, name, &LogStatistic::name) !=
             sites[n].statistics.end();
    };
    probe.divergence = logs("js");
    probe.matches = logs("induction") || logs("duplicate_token");
  }
}

// A run that was not trained so far (a converted one) has no log to go on with.
bool goes_on_with(const TrainingLog::File& file) {
  return file.resumed && std::filesystem::exists(file.path);
}

RunLog open_log(const TrainingLog::File& file, const LogLayout& layout,
                const LogOptions& settings) {
  RunLogOptions options;
  options.flush_every = settings.flush_every;
  options.max_bytes = settings.attention.max_bytes;
  options.swmr = settings.swmr;
  options.repaired = goes_on_with(file);
  if (goes_on_with(file))
    return RunLog::resume(file.path, layout, file.resumed->step, file.resumed->wall_s, options);
  return RunLog::create(file.path, layout, options);
}

}  // namespace

int64_t total_map_bytes(const Experiment& experiment, Model& model, const DataSource& data) {
  if (!wants_maps(experiment)) return 0;
  const int64_t snapshots = experiment.train.total_steps(data) / experiment.log.attention.every + 1;
  int64_t bytes = 0;
  for (const auto& site :
       sites_of(experiment, model, data, map_examples(experiment.log.attention, data)))
    bytes += snapshots * map_bytes(site);
  return bytes;
}

int64_t total_statistics_bytes(const Experiment& experiment, Model& model, const DataSource& data) {
  if (experiment.log.stats_every == 0) return 0;
  int64_t row = 0;
  for (const auto& site : sites_of(experiment, model, data, {}))
    for (const auto& s : site.statistics) row += 4 * count_of(s, site);
  return row * (experiment.train.total_steps(data) / experiment.log.stats_every + 1);
}

std::unique_ptr<SiteProbes> training_probes(const Experiment& experiment, Model& model,
                                            const DataSource& data) {
  auto probes = std::make_unique<SiteProbes>(model);
  set_probes(*probes, sites_of(experiment, model, data, {}), site_heads(model), data);
  return probes;
}

TrainingLog::TrainingLog(const File& file, const Experiment& experiment, Model& model,
                         const DataSource& data, const std::vector<TrainingMetric>& metrics)
    : model_(model),
      map_examples_(wants_maps(experiment)
                        ? std::optional(map_examples(experiment.log.attention, data))
                        : std::nullopt),
      heads_(site_heads(model)),
      sites_(sites_of(experiment, model, data, map_examples_)),
      evals_(variables_of(metrics, MetricGroup::kEvals)),
      absent_(goes_on_with(file) ? drop_unlogged(file.path, sites_, evals_)
                                 : std::vector<std::string>()),
      probes_(model),
      log_(open_log(file, layout_of(file.root, metrics, evals_, sites_, data), experiment.log)) {
  set_probes(probes_, sites_, heads_, data);
}

SiteProbes& TrainingLog::fresh_probes() {
  probes_.reset();
  return probes_;
}

namespace {

// Of one site, what its probe has seen: values by statistic in the site's grid.
RunLog::HeadValues head_row(const LogSite& site, const SiteHeads& heads, const HeadProbe& probe) {
  RunLog::HeadValues row;
  for (const auto& s : site.statistics) row[s.name].assign(count_of(s, site), kNaN);
  for (int64_t layer = 0; layer < site.layers; ++layer) {
    const MapKey key(site.name, layer, 0);
    if (!probe.sums().count(key)) continue;
    const auto values = probe.values(key);
    const int64_t own = heads.layer(layer).heads(), H = site.heads;
    for (const auto& s : site.statistics) {
      const auto from = values.find(s.name);
      if (from == values.end()) continue;                                 // another kind's own
      const int64_t each = own > 0 ? std::ssize(from->second) / own : 0;  // numbers of a head
      for (int64_t n = 0; n < std::ssize(from->second); ++n) {
        int64_t to = layer * H + n;
        if (s.dims == LogDims::kLayerHeadHead) to = (layer * H + n / own) * H + n % own;
        if (s.dims == LogDims::kLayerHeadExpert)
          to = (layer * H + n / each) * site.experts + n % each;
        if (s.dims == LogDims::kLayer) to = layer;
        row[s.name][to] = from->second[n];
      }
    }
  }
  return row;
}

}  // namespace

void TrainingLog::heads(int64_t step) {
  for (size_t n = 0; n < sites_.size(); ++n) {
    const auto alive = heads_[n].alive().to(at::kByte).contiguous();
    const auto* flags = alive.const_data_ptr<uint8_t>();
    log_.heads(sites_[n].name, step, head_row(sites_[n], heads_[n], probes_.at(sites_[n].name)),
               {flags, static_cast<size_t>(alive.numel())});
  }
}

void TrainingLog::eval(int64_t step, const RunLog::Values& values) {
  RunLog::Values known;
  for (const auto& variable : evals_)
    if (const auto found = values.find(variable.name); found != values.end()) known.insert(*found);
  log_.eval(step, known);
}

namespace {

// The maps of a site that are kept, [P,L,H,Q,K] of those of the plan; NaN where there is none.
Tensor kept_maps(const LogMaps& plan, const SiteHeads& heads, const HeadProbe& probe) {
  const auto P = plan.probes, Q = std::ssize(plan.query), K = std::ssize(plan.key);
  auto kept =
      at::full({P, std::ssize(plan.layers), std::ssize(plan.heads), Q, K}, kNaN, at::kFloat);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const auto found = probe.layer_maps().find({heads.name(), plan.layers[l], 0});
    if (found == probe.layer_maps().end()) continue;
    const auto map = found->second.to(at::kCPU, at::kFloat);  // [P,H,T,S]
    const auto ids = heads.layer(plan.layers[l]).head_ids();
    for (size_t h = 0; h < plan.heads.size(); ++h) {
      const auto row = std::ranges::find(ids, plan.heads[h]);
      if (row == ids.end()) continue;
      kept.select(2, static_cast<int64_t>(h))
          .select(1, static_cast<int64_t>(l))
          .copy_(map.select(1, row - ids.begin()).narrow(1, 0, Q).narrow(2, 0, K));
    }
  }
  for (int64_t p = 0; p < P; ++p) {  // padding has no weights
    auto map = kept[p];
    map.narrow(2, plan.query_length[p], Q - plan.query_length[p]).fill_(kNaN);
    map.narrow(3, plan.key_length[p], K - plan.key_length[p]).fill_(kNaN);
  }
  return kept;
}

}  // namespace

void TrainingLog::maps(int64_t step, const Compute& compute) {
  if (std::ranges::none_of(sites_, [](const auto& site) { return site.maps.has_value(); })) return;
  torch::InferenceMode inference;
  const bool was_training = model_.is_training();
  model_.eval();
  SiteProbes probes(model_, [](HeadProbe& probe) { probe.maps = true; });
  const ModelContext ctx{.observer = &probes, .backend = compute.backend};
  model_.forward(map_examples_->to(compute.device), ctx);
  model_.train(was_training);
  for (size_t n = 0; n < sites_.size(); ++n) {
    if (!sites_[n].maps) continue;
    const auto& site = sites_[n];
    const auto kept = kept_maps(*site.maps, heads_[n], probes.at(site.name));
    log_.attention(site.name, step,
                   {kept.const_data_ptr<float>(), static_cast<size_t>(kept.numel())});
  }
}

}  // namespace headlab
