// Tolerances of case files and how a verdict is shown.
#include "experiments/cases/judge.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace headlab {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU, at::kDouble); }

double max_or_zero(const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.max().item<double>();
}

// max |want| over its finite elements.
double magnitude(const at::Tensor& want) {
  return max_or_zero(want.abs().masked_select(want.isfinite()));
}

// max |got - want|, where equal infinities and two NaNs differ by 0 and one NaN by infinity.
double distance(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor same = got.eq(want).logical_or(got.isnan().logical_and(want.isnan()));
  const at::Tensor apart = (got - want).abs().nan_to_num(kInf, kInf);
  return max_or_zero(apart.masked_fill(same, 0));
}

}  // namespace

Verdict judge(const std::string& name, const at::Tensor& got, const at::Tensor& want,
              Tolerance tolerance) {
  const at::Tensor expected = on_cpu(want);
  Verdict verdict;
  verdict.name = name;
  verdict.shape = want.sizes().vec();
  const bool exact = want.scalar_type() == at::kByte;  // what was chosen
  verdict.bound = exact ? 0 : tolerance.atol + tolerance.rtol * magnitude(expected);
  if (!got.defined()) {
    verdict.reason = "missing";
  } else if (got.sizes() != want.sizes()) {
    verdict.reason = "got shape " + shape_text(got.sizes().vec());
  }
  verdict.error = verdict.reason.empty() ? distance(on_cpu(got), expected) : kInf;
  verdict.pass = verdict.reason.empty() && verdict.error <= verdict.bound;
  return verdict;
}

std::vector<Verdict> judge(const NamedTensors& got, const NamedTensors& want, Tolerance tolerance) {
  std::vector<Verdict> verdicts;
  for (const auto& [name, expected] : want) {
    const auto found = got.find(name);
    verdicts.push_back(
        judge(name, found == got.end() ? at::Tensor() : found->second, expected, tolerance));
  }
  return verdicts;
}

NamedTensors take_expected(NamedTensors& tensors) {
  NamedTensors expected;
  for (auto node = tensors.begin(); node != tensors.end();) {
    const auto next = std::next(node);
    if (node->first.starts_with("out.") || node->first.starts_with("grad."))
      expected.insert(tensors.extract(node));
    node = next;
  }
  return expected;
}

bool all_pass(const std::vector<Verdict>& verdicts) {
  return std::ranges::all_of(verdicts, &Verdict::pass);
}

std::string verdict_line(const Verdict& verdict) {
  const std::string line = fmt::format("{:<28} {:<16} error {:<9.3g} bound {:<9.3g} {}",
                                       verdict.name, shape_text(verdict.shape), verdict.error,
                                       verdict.bound, verdict.pass ? "pass" : "FAIL");
  return verdict.reason.empty() ? line : line + " (" + verdict.reason + ")";
}

std::string verdicts_text(const std::vector<Verdict>& verdicts) {
  std::string text;
  for (const auto& verdict : verdicts) text += verdict_line(verdict) + "\n";
  return text;
}

nlohmann::ordered_json verdicts_json(const std::string& case_name,
                                     const std::vector<Verdict>& verdicts) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const Verdict& verdict : verdicts) {
    tensors.push_back(
        {{"name", verdict.name},
         {"error", std::isfinite(verdict.error) ? nlohmann::ordered_json(verdict.error)
                                                : nlohmann::ordered_json()},
         {"bound", verdict.bound},
         {"pass", verdict.pass}});
  }
  return {{"case", case_name}, {"pass", all_pass(verdicts)}, {"tensors", std::move(tensors)}};
}

}  // namespace headlab
