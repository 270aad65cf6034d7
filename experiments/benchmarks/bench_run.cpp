#include "experiments/benchmarks/bench_run.h"

#include <iterator>
#include <set>

#include "core/attention/paths/paths.h"
#include "core/config/config.h"
#include "core/head_kinds.h"
#include "core/torch.h"
#include "experiments/system/busy_cores.h"
#include "experiments/system/output.h"
#include "experiments/system/stopwatch.h"

namespace headlab {
namespace {

// A row and who takes its turns; null: the layer could not be built.
struct Contestant {
  BenchRow row;
  std::unique_ptr<BenchSide> side;
};

// Where the layer is of this program; null: it is Python's.
BenchLayer* own_layer(const Contestant& contestant) {
  return dynamic_cast<BenchLayer*>(contestant.side.get());
}

// What the layer counts of itself, and why a pass cannot be timed.
void prepare(Contestant& contestant, BenchSide& plain, const BenchWork& work) {
  for (const auto pass : work.passes()) {
    auto& figure = contestant.row.figures[pass];
    if (contestant.side) figure.reason = contestant.side->reason(pass);
    if (figure.reason.empty() && pass != BenchPass::kStatistics) {
      const auto why = plain.reason(pass);
      if (!why.empty()) figure.reason = "of plain heads: " + why;
    }
    auto* layer = own_layer(contestant);
    if (!layer || !figure.reason.empty()) continue;
    figure.flops = layer->flops(pass);
    if (pass == BenchPass::kDecode) continue;
    figure.peak_bytes = layer->allocations(pass).peak;
    figure.moved_bytes = layer->moved(pass);
  }
}

Contestant contestant_of(const BenchKind& kind, const std::string& path,
                         const BenchSetting& setting, const BenchWork& work) {
  Contestant made;
  made.row.source = "headlab", made.row.path = path;
  made.row.kind = kind.block.kind(), made.row.label = kind.label;
  const auto written = kind.block.write_minimal();
  made.row.written = written.entries.size() > 1 ? to_flow(written) : made.row.kind;
  try {
    made.side = std::make_unique<BenchLayer>(kind.block, backend_named(path), setting);
  } catch (const ConfigError& error) {
    for (const auto pass : work.passes()) made.row.figures[pass].reason = error.what();
  }
  return made;
}

// Python's layers of a kind with its usual options.
std::vector<Contestant> peers_of(const std::string& kind, const BenchWork& work,
                                 const BenchSetting& setting) {
  std::vector<Contestant> all;
  const auto names = work.peers->names(kind);
  if (names.empty()) return all;
  BenchLayer layer(KindBlock(head_registry(), kind), Backend::kAuto, setting);
  for (const auto& name : names) {
    BenchRow row{.source = "python", .kind = kind, .path = name, .label = kind, .written = kind};
    for (const auto pass : work.passes()) row.figures[pass].flops = layer.flops(pass);
    all.push_back({std::move(row), work.peers->beside(layer, kind, name, setting)});
  }
  return all;
}

std::vector<Contestant> contestants_of(const BenchWork& work, const BenchSetting& setting,
                                       BenchLayer& plain) {
  std::vector<Contestant> all;
  std::set<std::string> in_python{"mha"};  // always, once
  for (const auto& kind : work.kinds)
    for (const auto& path : work.paths) {
      all.push_back(contestant_of(kind, path, setting, work));
      const auto& row = all.back().row;
      if (row.written == row.kind && all.back().side) in_python.insert(row.kind);
    }
  if (work.peers)
    for (const auto& kind : in_python) {
      auto peers = peers_of(kind, work, setting);
      std::move(peers.begin(), peers.end(), std::back_inserter(all));
    }
  for (auto& contestant : all) prepare(contestant, plain, work);
  return all;
}

void take_turns(Contestant& contestant, BenchSide& plain) {
  for (auto& [pass, figure] : contestant.row.figures) {
    if (!figure.reason.empty()) continue;
    const bool watched = pass == BenchPass::kStatistics;
    auto& beside = watched ? *contestant.side : plain;
    const auto beside_pass = watched ? BenchPass::kBoth : pass;
    add_round(
        figure.times, [&, pass = pass] { return contestant.side->turn(pass); },
        [&] { return beside.turn(beside_pass); });
  }
}

BenchTable measure_shape(const BenchWork& work, const BenchSetting& setting) {
  BenchTable table{.shape = setting.shape, .rows = {}, .waited = {}};
  BenchLayer plain(KindBlock(head_registry(), "mha"), Backend::kAuto, setting);
  auto contestants = contestants_of(work, setting, plain);
  for (int64_t round = 0; round < work.rounds; ++round) {
    tell("{}: round {} of {}", setting.shape.text(), round + 1, work.rounds);
    const double waited = waited_for_cores();
    const Stopwatch watch;
    for (auto& contestant : contestants) take_turns(contestant, plain);
    table.waited.push_back(std::max(0.0, waited_for_cores() - waited) /
                           (watch.seconds() * at::get_num_threads()));
  }
  for (auto& contestant : contestants) table.rows.push_back(std::move(contestant.row));
  return table;
}

}  // namespace

std::vector<BenchPass> BenchWork::passes() const {
  std::vector<BenchPass> all{BenchPass::kForward, BenchPass::kBoth};
  if (statistics) all.push_back(BenchPass::kStatistics);
  if (decode) all.push_back(BenchPass::kDecode);
  return all;
}

BenchResults measure(const BenchWork& work) {
  const auto speed = [&] {
    return measure_machine(work.setting.device, work.setting.bf16, work.setting.seconds);
  };
  BenchResults results;
  results.before = speed();
  for (const auto& shape : work.shapes) {
    auto setting = work.setting;
    setting.shape = shape;
    results.tables.push_back(measure_shape(work, setting));
  }
  results.after = speed();
  return results;
}

}  // namespace headlab
