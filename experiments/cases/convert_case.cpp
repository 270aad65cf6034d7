#include "experiments/cases/convert_case.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/torch.h"
#include "experiments/conversion/convert.h"
#include "experiments/conversion/parafac.h"
#include "experiments/runs/checkpoint.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// Takes the tensors under a prefix, without it.
NamedTensors take_under(NamedTensors& tensors, const std::string& prefix) {
  NamedTensors taken;
  for (auto node = tensors.lower_bound(prefix);
       node != tensors.end() && node->first.starts_with(prefix); node = tensors.erase(node))
    taken[node->first.substr(prefix.size())] = node->second;
  return taken;
}

NamedTensors under(const std::string& prefix, const NamedTensors& tensors) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors) named[prefix + name] = tensor;
  return named;
}

double relative_error(const Tensor& got, const Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

// Passes when `got` is at most `bound`.
Verdict at_most(const std::string& name, double got, double bound) {
  return {
      .name = name, .shape = {}, .error = got, .bound = bound, .pass = got <= bound, .reason = {}};
}

}  // namespace

ConvertCase::ConvertCase(CaseFile file, const at::Device& device)
    : file_(std::move(file)),
      device_(device),
      decomposition_(file_.text("headlab_case") == "convert-cp-1") {
  if (!decomposition_ && file_.text("headlab_case") != "convert-1")
    file_.refuse("not a conversion: its metadata has no headlab_case = convert-1 or convert-cp-1");
  config_ = file_.settings().conversion();
  auto tensors = file_.tensors;
  inputs_ = under("in.", take_under(tensors, "in."));
  from_ = take_under(tensors, "from.w.");
  to_ = take_under(tensors, "to.w.");
  cp_ = std::move(tensors);
  if (!decomposition_ && !cp_.empty())
    file_.refuse("a conversion has no tensor " + cp_.begin()->first);
}

LayerCase ConvertCase::layer(const std::string& which, const NamedTensors& weights) const {
  auto metadata = file_.metadata;
  metadata["config"] = config_.at(which).dump();
  NamedTensors tensors = inputs_;
  tensors.merge(under("w.", weights));
  tensors.insert(file_.expected.begin(), file_.expected.end());
  return {
      CaseFile(fmt::format("{} ({})", file_.name, which), std::move(tensors), std::move(metadata)),
      device_};
}

NamedTensors ConvertCase::compute(Backend backend) {
  auto old = layer("from", from_);
  const Json::json_pointer place("/to/attention/shared_dim");
  const auto R = config_.value(place, Json());
  const auto shared_dim = R.is_number_integer() ? std::optional(R.get<int64_t>()) : std::nullopt;
  const auto made = to_collaborative({.name = file_.name,
                                      .attention = old.attention(),
                                      .shape = old.heads().shape(),
                                      .demands = old.demands(),
                                      .weights = from_},
                                     shared_dim);
  auto computed = layer("to", made.weights).compute({}, backend);
  computed.merge(under("to.w.", made.weights));
  if (decomposition_) {
    const auto before = old.compute({}, backend).at("out.y");
    computed["cp.rel_error"] = at::scalar_tensor(rel_error(made.weights), at::kDouble);
    computed["cp.out_error"] =
        at::scalar_tensor(relative_error(computed.at("out.y"), before), at::kDouble);
  }
  return computed;
}

double ConvertCase::rel_error(const NamedTensors& weights) const {
  const auto old = layer("from", from_);
  const auto& shape = old.heads().shape();
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const auto heads = [&](const char* name) {  // [H,d,D]; grouped keys serve several heads
    const auto rows = wide(from_.at(name)).unflatten(0, {-1, shape.head_dim});
    return rows.repeat_interleave(shape.heads / rows.size(0), 0);
  };
  return cp_error(heads("q.weight"), heads("k.weight"),
                  {wide(weights.at("q.weight")).t(), wide(weights.at("mixing")),
                   wide(weights.at("k.weight")).t()});
}

std::vector<Verdict> ConvertCase::judge(const NamedTensors& computed, Backend backend) {
  return decomposition_ ? judge_decomposition(computed, backend) : judge_copy(computed, backend);
}

std::vector<Verdict> ConvertCase::judge_copy(const NamedTensors& computed, Backend backend) const {
  auto old = layer("from", from_);
  auto expected = under("to.w.", to_);
  expected.insert(file_.expected.begin(), file_.expected.end());
  auto verdicts = headlab::judge(computed, expected, old.tolerance());
  for (auto verdict : headlab::judge(old.compute({}, backend), file_.expected, old.tolerance())) {
    verdict.name = "from: " + verdict.name;
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

std::vector<Verdict> ConvertCase::judge_decomposition(const NamedTensors& computed,
                                                      Backend backend) const {
  auto old = layer("from", from_);
  const auto tolerance = old.tolerance();
  const auto before = old.compute({}, backend).at("out.y");
  const auto theirs = layer("to", to_).compute({}, backend).at("out.y");
  const auto stated = [&](const NamedTensors& tensors, const char* name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) file_.refuse(fmt::format("{} is missing", name));
    return found->second;
  };
  const auto out_errors = stated(cp_, "cp.out_error");  // [seeds]
  const double seed = file_.number("cp_to_seed");       // whose factors the file holds
  if (out_errors.dim() != 1 || seed >= static_cast<double>(out_errors.size(0)))
    file_.refuse(fmt::format("cp.out_error has no seed {}", seed));
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  return {
      at_most("cp.rel_error", computed.at("cp.rel_error").item<double>(), file_.number("cp_bound")),
      headlab::judge("from: out.y", before, stated(file_.expected, "out.y"), tolerance),
      headlab::judge("to.y", theirs, stated(cp_, "to.y"), tolerance),
      headlab::judge("cp_to_rel_error", scalar(rel_error(to_)),
                     scalar(file_.number("cp_to_rel_error")), tolerance),
      headlab::judge("cp.out_error of to.y", scalar(relative_error(theirs, before)),
                     out_errors[static_cast<int64_t>(seed)], tolerance)};
}

namespace {

Judged judge_conversion(const CaseFile& file, const at::Device& device, Backend backend) {
  ConvertCase conversion(file, device);
  auto computed = conversion.compute(backend);
  auto verdicts = conversion.judge(computed, backend);
  return {std::move(computed), std::move(verdicts)};
}

const RegisterCase copies({"convert-1", judge_conversion});
const RegisterCase decompositions({"convert-cp-1", judge_conversion});

}  // namespace
}  // namespace headlab
