// Layers of many kinds timed by turns with plain heads, round by round, in one process.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "experiments/benchmarks/bench_layer.h"
#include "experiments/benchmarks/machine_speed.h"
#include "experiments/benchmarks/python_peers.h"
#include "experiments/benchmarks/turns.h"

namespace headlab {

struct BenchKind {
  std::string label;  // as it was asked for
  KindBlock block;
};

// What is measured.
struct BenchWork {
  std::vector<BenchKind> kinds;
  std::vector<std::string> paths;  // "auto", or as attention_paths() has them
  std::vector<BenchShape> shapes;
  BenchSetting setting;  // of every shape
  int64_t rounds = 1;
  bool statistics = false, decode = false;
  PythonPeers* peers = nullptr;  // null: none

  std::vector<BenchPass> passes() const;
};

// One pass of one layer.
struct BenchFigure {
  std::string reason;  // why there are no times; "": there are
  // Beside plain heads on `auto`; of kStatistics beside the same layer's kBoth.
  PairedTimes times;
  double flops = std::numeric_limits<double>::quiet_NaN();  // NaN: not counted
  int64_t peak_bytes = 0;
  double moved_bytes = 0;  // 0 of these two: not counted
};

struct BenchRow {
  std::string source, kind, path;  // source: "headlab" or "python"
  std::string label;               // BenchKind's
  std::string written;             // the kind with its options; without any: its name
  std::map<BenchPass, BenchFigure> figures = {};
};

struct BenchTable {
  BenchShape shape;
  std::vector<BenchRow> rows;
  // Of each round the share of the time for which threads waited for cores that others had.
  std::vector<double> waited;
};

struct BenchResults {
  MachineSpeed before, after;
  std::vector<BenchTable> tables;  // a shape each

  double peak_flops() const { return std::max(before.flops, after.flops); }
  double peak_bytes() const { return std::max(before.bytes, after.bytes); }
};

BenchResults measure(const BenchWork& work);

}  // namespace headlab
