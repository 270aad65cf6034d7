// A conversion file: an old layer, its inputs and outputs, and what it must
// become. Format convert-1 is an exact copy, convert-cp-1 a decomposition of lower rank beside what
// the authors' code reached from 25 random starts.
#pragma once

#include <filesystem>
#include <map>
#include <optional>

#include "experiments/cases/layer_case.h"

namespace headlab {

class ConvertCase {
 public:
  // DataError where the file is wrong.
  ConvertCase(const std::filesystem::path& path, const at::Device& device)
      : ConvertCase(CaseFile(path), device) {}
  ConvertCase(CaseFile file, const at::Device& device);

  // Converts the old layer: to.w.*, and what the new one gives, out.y, out.attention. convert-cp-1
  // also has cp.rel_error and cp.out_error of that conversion.
  NamedTensors compute(Backend backend = Backend::kAuto);

  // compute()'s tensors against the file, and both layers against out.*. For convert-cp-1: the
  // error of P must be at most cp_bound; the file's own factors must have the errors and the output
  // that it states.
  std::vector<Verdict> judge(const NamedTensors& computed, Backend backend = Backend::kAuto);

 private:
  // The layer of config `which` ("from", "to") on the file's inputs; it is judged by out.*.
  LayerCase layer(const std::string& which, const NamedTensors& weights) const;
  std::vector<Verdict> judge_copy(const NamedTensors& computed, Backend backend) const;
  std::vector<Verdict> judge_decomposition(const NamedTensors& computed, Backend backend) const;
  double rel_error(const NamedTensors& weights) const;  // of P

  CaseFile file_;
  at::Device device_;
  bool decomposition_;
  nlohmann::ordered_json config_;  // of both layers
  NamedTensors inputs_, cp_;       // in.*; cp.*, to.y
  NamedTensors from_, to_;         // weights
};

}  // namespace headlab
