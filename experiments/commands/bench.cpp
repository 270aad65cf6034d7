// `headlab bench [KIND...]`: how fast layers of heads are, beside plain ones and beside Python's.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/attention/paths/paths.h"
#include "core/errors.h"
#include "core/head_kinds.h"
#include "core/torch.h"
#include "experiments/benchmarks/bench_report.h"
#include "experiments/benchmarks/bench_run.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/files/config_file.h"
#include "experiments/files/json_text.h"
#include "experiments/files/replacement_file.h"
#include "experiments/system/output_file.h"
#include "experiments/system/own_files.h"
#include "experiments/system/scratch_folder.h"
#include "experiments/system/script.h"

namespace headlab {
namespace {

struct BenchOptions {
  std::vector<std::string> kinds, shapes;
  std::string paths = "auto", attention = "causal", dtype = "fp32", plot, python;
  double seconds = .2;
  int64_t rounds = 5;
  bool statistics = false, decode = false, peers = false, markdown = false, json = false;
  ComputeOptions compute;

  void visit(Arguments& a) {
    a.option("kinds", kinds,
             "kinds of heads, with the options of their configs/char_KIND.yaml, or mappings with "
             "their own: '{kind: entmax, alpha: 2}' (default: all)");
    a.option("--shape", shapes,
             "BATCHxTOKENSxWIDTHxHEADS, one or several (default: 12x64x128x4 4x256x384x6 "
             "2x1024x384x6)");
    a.option("--paths", paths, "paths of attention with commas: auto, eager, sdpa, flash, rows");
    a.choice("--attention", attention, "who sees whom", {"causal", "bidirectional", "cross"});
    a.choice("--dtype", dtype, "of products: fp32, or bf16 by autocast", {"fp32", "bf16"});
    a.option("--device", compute.device, "auto, cpu, cuda or cuda:N");
    a.option("--threads", compute.threads, "threads (default: OMP_NUM_THREADS, else every core)",
             Arguments::kAboveZero);
    a.option("--seconds", seconds, "of a turn, of which the shortest pass counts",
             Arguments::kAboveZero);
    a.option("--rounds", rounds, "turns of each layer", Arguments::kAboveZero);
    a.flag("--statistics", statistics, "what all statistics of the heads at every step cost");
    a.flag("--decode", decode, "a token with a cache of those before it");
    a.flag("--peers", peers,
           "layers in Python's torch, too: eager, SDPA, torch.compile, FlexAttention");
    a.option("--python", python,
             "the Python of --peers (default: HEADLAB_PYTHON, else what scripts/bench/environment "
             "made)");
    a.option("--plot", plot,
             "draw the roofline into this .png or .svg, by the package headlab_log");
    a.flag("--markdown", markdown, "print the tables as Markdown");
    a.flag("--json", json, "print one JSON object");
  }
};

// The options of the kind in its own config; by its defaults alone `mta` is plain heads.
std::optional<ConfigNode> own_options(const std::string& kind) {
  const auto file = own_folder() / "configs" / fmt::format("char_{}.yaml", kind);
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none)) return std::nullopt;
  const auto config = load_config(file);
  const auto* model = config.find("model");
  const auto* attention = model ? model->find("attention") : nullptr;
  return attention ? std::optional(*attention) : std::nullopt;
}

BenchKind kind_of(const std::string& word) {
  const bool mapping = word.starts_with('{');
  BenchKind kind{word, {head_registry(), mapping ? "mha" : head_kind(word).name}};
  const auto node = mapping ? parse_value(word, {"KIND", 1, 1, {}}, "kind") : own_options(word);
  if (!node) return kind;
  Problems problems;
  kind.block.read(*node, "kind", problems);
  problems.raise();
  return kind;
}

std::vector<BenchKind> kinds_of(const BenchOptions& o) {
  std::vector<BenchKind> kinds;
  for (const auto& word : o.kinds.empty() ? head_names() : o.kinds) kinds.push_back(kind_of(word));
  return kinds;
}

std::vector<BenchShape> shapes_of(const BenchOptions& o) {
  const std::vector<std::string> usual{"12x64x128x4", "4x256x384x6", "2x1024x384x6"};
  const auto names = head_names();
  std::vector<BenchShape> shapes;
  for (const auto& word : o.shapes.empty() ? usual : o.shapes) {
    if (std::find(names.begin(), names.end(), word) != names.end())
      throw ConfigError(
          fmt::format("--shape {}: is a kind of heads; name kinds before --shape", word));
    shapes.push_back(bench_shape(word));
  }
  return shapes;
}

std::vector<std::string> paths_of(const BenchOptions& o) {
  const auto known = backend_names();
  std::vector<std::string> paths;
  for (size_t at = 0; at <= o.paths.size();) {
    const size_t end = std::min(o.paths.find(',', at), o.paths.size());
    const auto word = o.paths.substr(at, end - at);
    if (std::find(known.begin(), known.end(), word) == known.end())
      throw ConfigError(fmt::format("--paths {}: no path of attention is called '{}'{}", o.paths,
                                    word, did_you_mean(word, known)));
    if (std::find(paths.begin(), paths.end(), word) == paths.end()) paths.push_back(word);
    at = end + 1;
  }
  return paths;
}

void check_options(const BenchOptions& o) {
  if (o.decode && o.attention != "causal")
    throw ConfigError(
        fmt::format("bench --decode: decoding is causal, not {}; leave one out", o.attention));
  if (o.json && o.markdown) throw ConfigError("bench: --json and --markdown: choose one");
  if (!o.python.empty() && !o.peers) throw ConfigError("bench --python: belongs to --peers");
  if (o.plot.empty()) return;
  if (!o.plot.ends_with(".png") && !o.plot.ends_with(".svg"))
    throw ConfigError(fmt::format("bench --plot {}: must end in .png or .svg", o.plot));
  log_command();  // that it is not there is said before anything is measured
  const OutputFile free_place(o.plot, {});
}

void draw(const BenchOptions& o, const nlohmann::ordered_json& found) {
  const ScratchFolder scratch;
  const auto file = scratch.path() / "bench.json";
  replace_file(file, json_text(found));
  if (run_script(log_command(), {"roofline", file.string(), "-o", o.plot}) != 0)
    throw RunError(fmt::format("{}: the roofline was not drawn", o.plot));
}

int run_bench(const BenchOptions& o) {
  check_options(o);
  BenchWork work{.kinds = kinds_of(o),
                 .paths = paths_of(o),
                 .shapes = shapes_of(o),
                 .setting = {},
                 .rounds = o.rounds,
                 .statistics = o.statistics,
                 .decode = o.decode};
  const auto compute = o.compute.apply();
  work.setting.attention = o.attention;
  work.setting.bf16 = o.dtype == "bf16";
  work.setting.device = compute.device;
  work.setting.seconds = o.seconds;
  std::optional<PythonPeers> peers;
  if (o.peers) work.peers = &peers.emplace(o.python, at::get_num_threads());
  const auto results = measure(work);
  const auto found = bench_json(work, results);
  print({.object = found,
         .text = o.markdown ? bench_markdown(work, results) : bench_text(work, results)},
        o.json);
  if (!o.plot.empty()) draw(o, found);
  return kDone;
}

const RegisterCommand bench_command(
    {.name = "bench",
     .summary = "how fast layers of heads are, beside plain ones and beside Python's",
     .example = "headlab bench mha dcmha --shape 12x64x128x4 --statistics\n"
                "  headlab bench --decode --peers --json > bench.json",
     .group = Group::kExtend},
    run_bench);

}  // namespace
}  // namespace headlab
