#include "experiments/comparison/comparison.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/head_kinds.h"
#include "experiments/comparison/equal_terms.h"
#include "experiments/comparison/matched_size.h"
#include "experiments/data/test_part.h"
#include "experiments/files/config_file.h"
#include "experiments/files/replacement_file.h"
#include "experiments/files/sha256.h"
#include "experiments/models/stack_options.h"
#include "experiments/runs/initial_weights.h"
#include "experiments/runs/run_files.h"
#include "experiments/runs/run_identity.h"
#include "experiments/sweeps/sweep_points.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const StackOptions> first_stack(const Experiment& experiment) {
  return experiment.model.as<ModelOptions>().stacks().at(0);
}

ConfigNode with_settings(const ConfigNode& config, const NamedSettings& settings) {
  ConfigNode tree;
  tree.place = config.place;
  for (const auto& [key, value] : settings)
    add_setting(tree, config, key, value, value.key_place());
  return merge_config(config, tree);
}

// What the comparison sets itself would replace them without a word.
void check_overrides(const std::vector<std::string>& overrides) {
  Problems problems;
  const Place place{"override", 0, 0, {}};
  for (const auto& override : overrides) {
    const auto key = override.substr(0, override.find('='));
    if (key == "seed") problems.add(place, key, "is set by the comparison; change `seeds`");
    if (key == "train.lr") problems.add(place, key, "is chosen for each arm; change `rates`");
  }
  problems.raise();
}

ConfigNode config_of_task(const ComparisonTask& task, const fs::path& file,
                          const std::vector<std::string>& overrides) {
  const auto base = load_experiment((file.parent_path() / task.base.text).lexically_normal());
  return override_config(with_settings(base, task.settings), overrides);
}

// Why the kinds of a model that is no more than read cannot do what it asks of them; "": they can.
std::string what_heads_cannot(const ModelOptions& model) {
  for (const auto& stack : model.stacks()) {
    if (stack->heads < 1 || stack->window.empty()) return "";  // its own check has said so
    for (int64_t layer = 0; layer < stack->layers; ++layer) {
      auto unmet =
          unmet_demands(stack->attention_of(layer), stack->shape(layer), stack->demands(layer));
      if (const auto* cross = stack->cross())
        for (auto& one : unmet_demands(*cross, stack->shape(layer), {.cross = true}))
          unmet.push_back(std::move(one));
      if (!unmet.empty()) return unmet.front();
    }
  }
  return "";
}

TaskArm arm_on_task(const ConfigNode& task, const ComparisonArm& arm) {
  TaskArm made;
  made.config = with_settings(task, arm.settings);
  Problems problems(made.experiment);
  read_block(made.experiment, made.config, "", problems);
  if (!problems.empty()) made.cannot = what_heads_cannot(made.experiment.model.as<ModelOptions>());
  if (!made.cannot.empty()) return made;
  problems.raise();
  resolve_init(made.experiment);
  if (made.experiment.train.schedule == "noam") {
    const auto* train = made.config.find("train");
    problems.add(train ? train->place : made.config.place, "train.schedule",
                 "noam takes its peak from d_model and warmup, so that `rates` change nothing; set "
                 "another one");
    problems.raise();
  }
  return made;
}

// The baseline comes first: the others are matched to it.
void resolve_task(Comparison& comparison, size_t task, const std::vector<std::string>& overrides,
                  PointProblems& problems) {
  const auto& written = comparison.written;
  ModelSizes sizes;
  const auto config = config_of_task(written.tasks[task], comparison.file, overrides);
  auto& arms = comparison.arms[task];
  const auto each = [&](size_t a, const auto& use) {
    try {
      use(arms[a]);
    } catch (const ConfigError& error) {
      problems.add(error.what());
    }
  };
  for (size_t a = 0; a < written.arms.size(); ++a)
    each(a, [&](TaskArm& arm) {
      if (!written.tasks[task].takes(written.arms[a].name)) {
        arm.left_out = true, arm.cannot = "the task's `kinds` leave it out";
        return;
      }
      arm = arm_on_task(config, written.arms[a]);
      if (arm.takes_part()) sizes.measure(arm);
    });
  const auto& baseline = arms[written.baseline];
  if (!baseline.takes_part())
    problems.add(fmt::format("{}: baseline: '{}' has no place on {}: {}; name another baseline",
                             comparison.file.string(), written.arms[written.baseline].name,
                             written.tasks[task].name, baseline.cannot));
  const auto as_written = baseline;
  for (size_t a = 0; a < arms.size() && as_written.parameters > 0; ++a)
    if (arms[a].parameters > 0)
      each(a, [&](TaskArm& arm) {
        sizes.match(arm, written.tasks[task].match, as_written);
        arm.unequal = unequal_terms(arm, as_written);
      });
}

std::string text_of_rates(const ComparisonTask& task) {
  if (!task.search) return fmt::format("{}", fmt::join(task.rates, ","));
  const auto& grid = *task.search;
  return fmt::format("from {} by {}, at most {}", grid.from, grid.factor, grid.most);
}

// Everything that decides what is trained and what is compared with what; `text_of` an experiment.
template <class Text>
std::string comparison_hash(const Comparison& comparison, const Text& text_of) {
  const auto& written = comparison.written;
  auto text =
      fmt::format("{} {} {}\n", fmt::join(written.seeds, ","), fmt::join(written.choose_seeds, ","),
                  written.arms[written.baseline].name);
  if (written.lengths.size() > 1) text += fmt::format("{}\n", fmt::join(written.lengths, ","));
  for (size_t t = 0; t < written.tasks.size(); ++t) {
    const auto& task = written.tasks[t];
    text += fmt::format("{} {} {} {}\n", task.name, text_of_rates(task), task.choose_at,
                        match_name(task.match));
    for (size_t a = 0; a < written.arms.size(); ++a) {
      const auto& arm = comparison.arms[t][a];
      text += fmt::format("{} {}\n{}", written.arms[a].name, arm.cannot,
                          arm.takes_part() ? text_of(arm.experiment) : "");
    }
  }
  return sha256(text).substr(0, 8);
}

void remove_entry(ConfigNode& mapping, const std::string& key) {
  std::erase_if(mapping.entries, [&](const auto& entry) { return entry.first == key; });
}

// Of what an arm's trainings have in common on every machine: `rates` and `seeds` are the
// comparison's, and a floor that is written goes with the rate.
std::string hash_of_arm(const Experiment& experiment) {
  auto identity = identity_of(experiment);
  if (auto* train = identity.find("train")) {
    const auto& options = experiment.train;
    if (options.min_lr)
      train->set("min_lr",
                 write_number(std::stod(fmt::format("{:.12g}", *options.min_lr / options.lr))));
    remove_entry(*train, "lr");
  }
  return config_hash(identity);
}

// Where the same comparison lies under a name that an older version gave it, that.
fs::path folder_of(const Comparison& comparison) {
  const auto folder = [&](const std::string& hash) {
    return comparison.out / "comparisons" / fmt::format("{}-{}", comparison.name, hash);
  };
  std::error_code none;
  for (const auto& older :
       {comparison_hash(comparison, [](Experiment one) { return to_yaml(write_block(one)); }),
        comparison_hash(comparison,
                        [](const Experiment& one) { return to_yaml(identity_of(one)); })})
    if (fs::is_directory(folder(older), none)) return folder(older);
  return folder(comparison_hash(comparison, hash_of_arm));
}

// Whose mistakes are told as those of this argument.
void place_all(ConfigNode& node, const Place& place) {
  node.place = place;
  for (auto& item : node.items) place_all(item, place);
  for (auto& [key, value] : node.entries) place_all(value, place);
}

// As a list of arms has it under this name, else the kind with its defaults, begun as plain heads
// are where it knows how.
ConfigNode arm_called(const std::string& name, const ConfigNode* arms) {
  if (arms && arms->kind == ConfigNode::Kind::kSequence)
    for (const auto& arm : arms->items) {
      const auto* own = arm.find("name");
      if (arm.text == name || (own && own->text == name)) return arm;
    }
  const auto options = head_kind(name).options();
  const auto differences = options->init_differences();
  if (!differences || differences->empty()) return write_text(name);
  ConfigNode attention;
  attention.set("kind", write_text(name));
  attention.set("init_weights", write_text("host"));
  ConfigNode arm;
  arm.set("name", write_text(name));
  arm.set("attention", attention);
  return arm;
}

void keep_task(ComparisonFile& written, const std::string& name, const fs::path& file) {
  std::vector<std::string> names;
  for (const auto& task : written.tasks) names.push_back(task.name);
  std::erase_if(written.tasks, [&](const ComparisonTask& task) { return task.name != name; });
  if (written.tasks.empty())
    throw ConfigError(fmt::format("{}: no task is called '{}'{}; there are: {}", file.string(),
                                  name, did_you_mean(name, names), fmt::join(names, ", ")));
}

}  // namespace

Split TaskArm::measured_on() const {
  return asks_for_test(experiment.data) ? Split::kTest : Split::kValidation;
}
int64_t TaskArm::hidden_width() const { return first_stack(experiment)->hidden_width(); }
int64_t TaskArm::head_dim() const { return first_stack(experiment)->shape(0).head_dim; }

ConfigNode with_setting(const ConfigNode& config, const std::string& key, const ConfigNode& value) {
  return with_settings(config, {{key, value}});
}

void write_comparison_file(const Comparison& comparison) {
  std::error_code error;
  fs::create_directories(comparison.folder, error);
  if (error)
    throw RunError(fmt::format("{}: cannot be made: {}; choose another --out",
                               comparison.folder.string(), error.message()));
  replace_file(comparison.folder / "compare.yaml", comparison.text);
}

ComparisonSource comparison_in(const fs::path& file) {
  require_no_control(fs::absolute(file).string(), "compare");
  const auto text = written_text(file);
  return {.name = file.stem().string(),
          .file = file,
          .text = text,
          .node = parse_config(text, file.string(), fs::absolute(file).parent_path())};
}

ComparisonSource comparison_of_kinds(const std::string& kind, const std::string& against,
                                     const fs::path& protocol) {
  for (const auto& name : {kind, against}) head_kind(name);
  if (kind == against)
    throw ConfigError(
        fmt::format("'{}' heads against themselves: name another kind with --against", kind));
  auto source = comparison_in(protocol);
  auto& node = source.node;
  const auto* written = node.find("kinds");
  ConfigNode arms, baseline = write_text(against);
  arms.kind = ConfigNode::Kind::kSequence;
  for (const auto& name : {against, kind}) {
    auto arm = arm_called(name, written);
    if (arm.place.file.empty()) place_all(arm, {name, 0, 0, fs::current_path()});
    arms.items.push_back(std::move(arm));
  }
  place_all(baseline, {"--against", 0, 0, {}});
  node.set("kinds", arms);
  node.set("baseline", baseline);
  if (auto* tasks = node.find("tasks"))
    for (auto& task : tasks->items) remove_entry(task, "kinds");  // every task has these two arms
  source.name = fmt::format("{}-against-{}", kind, against);
  source.text = to_yaml(node);
  return source;
}

Comparison resolve_comparison(const ComparisonSource& source,
                              const std::vector<std::string>& overrides, const fs::path& out,
                              const std::string& task_alone) {
  const auto& file = source.file;
  check_overrides(overrides);
  Comparison comparison{.name = source.name,
                        .file = file,
                        .text = source.text,
                        .out = folder_of_runs(out),
                        .folder = {},
                        .written = read_comparison(source.node),
                        .arms = {}};
  if (!task_alone.empty()) keep_task(comparison.written, task_alone, file);
  const auto& written = comparison.written;
  comparison.arms.assign(written.tasks.size(), std::vector<TaskArm>(written.arms.size()));
  PointProblems problems;
  for (size_t task = 0; task < written.tasks.size(); ++task) try {
      resolve_task(comparison, task, overrides, problems);
    } catch (const ConfigError& error) {
      problems.add(error.what());
    }
  problems.raise();
  comparison.folder = folder_of(comparison);
  return comparison;
}

}  // namespace headlab
