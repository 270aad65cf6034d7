// The same layer of plain heads in Python's torch, which takes turns with ours:
// scripts/bench/peers.py.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "experiments/benchmarks/bench_layer.h"
#include "experiments/system/asked_program.h"
#include "experiments/system/scratch_folder.h"

namespace headlab {

class PythonPeers {
 public:
  // Starts the Python that `given` names; empty: HEADLAB_PYTHON, else the one that
  // scripts/bench/environment has made. RunError says how to get one where there is none, or where
  // it has no torch.
  PythonPeers(const std::string& given, int threads);

  const std::string& torch() const { return torch_; }  // its version
  // Of a kind with its usual options: eager, sdpa, compile, flex; none: Python has no such layer.
  std::vector<std::string> names(const std::string& kind) const;
  // The peer of that name beside a layer of that kind, with the layer's weights and inputs. Its
  // reason() tells where Python cannot do a pass, or computes other numbers than the layer.
  std::unique_ptr<BenchSide> beside(BenchLayer& layer, const std::string& kind,
                                    const std::string& name, const BenchSetting& setting);

 private:
  std::unique_ptr<AskedProgram> python_;
  std::string torch_;
  std::map<std::string, std::vector<std::string>> names_;  // by kind
  ScratchFolder scratch_;
  int made_ = 0;  // layers, each of which has a number there
};

}  // namespace headlab
