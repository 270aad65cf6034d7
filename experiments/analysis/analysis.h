// What `headlab analyze` finds out about the heads of a model: a list of measurements, each of
// which looks at the same batches and says what it saw as labelled arrays; and the roles that
// follow.
//
// To add one: derive from HeadMeasurement in a file of its own, name the arrays that it can make,
// and put it into head_measurements() (analysis.cpp). Arrays over {"layer", "head"} become columns
// of `--json` and of the file by themselves. The roles read these names beside the statistics' own:
// `best_gain` (syntax), `induction_repeated` and `duplicate_token_repeated`.
//
// All of it is by site. L layers, H heads of the layer with most heads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/observe/probe.h"
#include "experiments/analysis/head_roles.h"
#include "experiments/analysis/maps/map_statistics.h"
#include "experiments/analysis/tensor_arrays.h"
#include "experiments/measuring/importance.h"
#include "experiments/models/site_probes.h"
#include "experiments/runs/open_run.h"

namespace headlab {

struct AnalysisOptions {
  Split split = Split::kValidation;
  int64_t batches = 20, batch = 64;     // batches 0: the whole split
  std::vector<std::string> names = {};  // arrays that are wanted; empty: the usual ones; or "all"
  std::optional<int64_t> top_k = {};    // of top_k_mass; default: 5, or what a file says
  int64_t js_stride = 1;                // js of every n-th row
  int64_t maps = 0;                     // examples whose maps and rollout are kept
  std::filesystem::path treebank = {};  // CoNLL-U, for syntax; empty: none
  std::vector<RoleRule> rules = role_rules();
};

// What a measurement knows before the first batch.
struct AnalysisSetup {
  OpenedRun& run;
  const AnalysisOptions& options;
  Compute compute;
  SiteHeads heads;                                            // of the site that is looked at
  std::shared_ptr<std::optional<HeadImportance>> importance;  // of all sites, once measured

  Sample sample() const { return {run.data.get(), options.split, options.batch, options.batches}; }
  // Classes of the tokens at the keys; empty where they are not known.
  std::vector<uint8_t> token_classes() const;
  int64_t vocabulary() const;    // of those tokens
  bool has_token_map() const;    // of any layer: weights over tokens
  bool reads_ids_alone() const;  // no source, no image: as inputs that are made have none
};

// One batch behind the model, in eval mode.
struct AnalysisBatch {
  const Batch& data;  // on the CPU
  int64_t first = 0;  // number of its first example
  const HeadProbe& probe;
  const HiddenStates& hidden;
  const ModelOutput& out;
};

// Something measured of the heads of one site.
class HeadMeasurement {
 public:
  explicit HeadMeasurement(const AnalysisSetup& setup) : setup_(setup) {}
  virtual ~HeadMeasurement() = default;
  // Arrays that finish() makes. Those of `on_request` only where they are asked for by name.
  virtual std::vector<std::string> names() const = 0;
  virtual std::vector<std::string> on_request() const { return {}; }
  // Whether it looks at the split's examples, and not at weights or inputs of its own.
  virtual bool of_examples() const { return true; }
  // Called for those of which something is wanted, in this order. `wanted`: some of the names.
  virtual void start(const std::vector<std::string>& /*wanted*/, HeadProbe& /*probe*/) {}
  virtual void add(const AnalysisBatch& /*batch*/) {}
  // Appends axes that it needs (add_axis) and arrays; what is not wanted is left out later.
  virtual void finish(LabelledGroup& to) = 0;

 protected:
  const AnalysisSetup setup_;
};

LogVariable variable_of(const Statistic& statistic);

struct Analysis {
  std::string site = kSelfSite;
  LabelledGroup statistics = {}, roles = {};  // analysis/<site>, roles/<site>
  int64_t layers = 0, heads = 0, examples = 0;
};

// Goes over the batches once for all sites. ConfigError for a name that nobody makes, c10::Error
// where a measurement refuses.
std::vector<Analysis> analyze_run(OpenedRun& run, const AnalysisOptions& options,
                                  const Compute& compute);

// Of maps exported from elsewhere; of the options, those that are no choice of examples.
struct MapFile;
Analysis analyze_maps(const MapFile& file, const AnalysisOptions& options);

}  // namespace headlab
