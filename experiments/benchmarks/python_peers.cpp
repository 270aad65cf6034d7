#include "experiments/benchmarks/python_peers.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/json_text.h"
#include "experiments/models/named_tensors.h"
#include "experiments/system/own_files.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using PeerJson = nlohmann::ordered_json;

constexpr const char* kGetPython =
    "name a Python that has torch by --python PATH or HEADLAB_PYTHON, or make one: "
    "scripts/bench/environment -c 'import torch'";

fs::path peers_script() {
  auto script = own_folder() / "scripts/bench/peers.py";
  std::error_code none;
  if (!fs::is_regular_file(script, none))
    throw RunError(
        fmt::format("--peers: {} is not there; it lies in headlab's sources", script.string()));
  return script;
}

struct FoundPython {
  fs::path path;
  std::map<std::string, std::string> environment = {};
};

FoundPython python_of(const std::string& given) {
  const char* named = std::getenv("HEADLAB_PYTHON");
  const fs::path path = !given.empty() ? given : named ? named : "";
  std::error_code none;
  if (!path.empty()) {
    if (!fs::is_regular_file(path, none))
      throw RunError(fmt::format("--peers: {} is no file; {}", path.string(), kGetPython));
    return {path};
  }
  // What scripts/bench/environment runs. It is not asked to make it: that takes minutes.
  const auto deps = own_folder() / ".deps", made = deps / "venv-bench/bin/python";
  if (!fs::is_regular_file(made, none))
    throw RunError(fmt::format("--peers: there is no Python with torch; {}", kGetPython));
  return {made, {{"PYTHONPATH", (deps / "torch").string()}}};
}

PeerJson answer_of(AskedProgram& python, const PeerJson& question) {
  const auto answer = python.ask(json_text(question));
  const auto json = parse_json<PeerJson>(answer);
  if (!json || !json->is_object())
    throw RunError(fmt::format("--peers: Python answered no JSON: {}", answer));
  return *json;
}

class PythonPeer : public BenchSide {
 public:
  PythonPeer(AskedProgram& python, int id, double seconds)
      : python_(python), id_(id), seconds_(seconds) {}
  ~PythonPeer() override {
    try {
      answer_of(python_, {{"do", "drop"}, {"layer", id_}});
    } catch (const RunError&) {  // Python has ended: whoever asks it next is told
    }
  }
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  std::string reason(BenchPass pass) override {
    if (pass != BenchPass::kForward && pass != BenchPass::kBoth)
      return "measured of this program's layers alone";
    return reasons_.at(pass);
  }
  double turn(BenchPass pass) override {
    const auto answer = answer_of(
        python_, {{"do", "turn"}, {"layer", id_}, {"pass", name_of(pass)}, {"seconds", seconds_}});
    if (!answer.contains("seconds"))
      throw RunError("--peers: " + answer.value("reason", "Python gave no time"));
    return answer["seconds"].get<double>();
  }
  // Asks once whether it can: Python compiles then, and compares its outputs with the layer's.
  void try_pass(BenchPass pass) {
    const auto answer =
        answer_of(python_, {{"do", "try"}, {"layer", id_}, {"pass", name_of(pass)}});
    reasons_[pass] = answer.value("reason", "");
  }

 private:
  AskedProgram& python_;
  int id_;
  double seconds_;
  std::map<BenchPass, std::string> reasons_;
};

}  // namespace

PythonPeers::PythonPeers(const std::string& given, int threads) {
  auto found = python_of(given);
  found.environment["OMP_NUM_THREADS"] = std::to_string(threads);
  python_ = std::make_unique<AskedProgram>(
      std::vector<std::string>{found.path.string(), peers_script().string()}, found.environment);
  PeerJson begun;
  try {
    begun = answer_of(*python_, {{"do", "begin"}, {"threads", threads}});
  } catch (const RunError& error) {
    throw RunError(fmt::format("--peers: {}; {}", error.what(), kGetPython));
  }
  if (begun.contains("reason"))
    throw RunError(fmt::format("--peers: {}: {}; {}", found.path.string(),
                               begun["reason"].get<std::string>(), kGetPython));
  torch_ = begun.value("torch", "");
  names_ = begun.value("peers", names_);
}

std::vector<std::string> PythonPeers::names(const std::string& kind) const {
  const auto found = names_.find(kind);
  return found == names_.end() ? std::vector<std::string>() : found->second;
}

std::unique_ptr<BenchSide> PythonPeers::beside(BenchLayer& layer, const std::string& kind,
                                               const std::string& name,
                                               const BenchSetting& setting) {
  const auto file = scratch_.path() / fmt::format("{}-{}.safetensors", kind, setting.shape.text());
  if (!fs::exists(file)) write_tensors(file, layer.tensors());
  const int id = made_++;
  answer_of(*python_, {{"do", "layer"},
                       {"layer", id},
                       {"kind", kind},
                       {"peer", name},
                       {"file", file.string()},
                       {"heads", setting.shape.heads},
                       {"causal", setting.attention == "causal"},
                       {"bf16", setting.bf16},
                       {"device", setting.device.str()}});
  auto peer = std::make_unique<PythonPeer>(*python_, id, setting.seconds);
  for (const auto pass : {BenchPass::kForward, BenchPass::kBoth}) peer->try_pass(pass);
  return peer;
}

}  // namespace headlab
