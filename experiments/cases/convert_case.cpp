// A conversion file: an old layer, its inputs and outputs, and what it must become. Format
// convert-1 is an exact copy, convert-cp-1 a decomposition of lower rank beside what the authors'
// code reached from 25 random starts, convert-mla-1 a layer of latents that tokens decide on.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/torch.h"
#include "experiments/cases/layer_case.h"
#include "experiments/conversion/convert.h"
#include "experiments/conversion/parafac.h"
#include "experiments/conversion/to_mla.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

NamedTensors under(const std::string& prefix, const NamedTensors& tensors) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors) named[prefix + name] = tensor;
  return named;
}

double relative_error(const Tensor& got, const Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

Tensor scalar(double value) { return at::scalar_tensor(value, at::kDouble); }

// Passes when `got` is at most `bound`.
Verdict at_most(const std::string& name, double got, double bound) {
  return {
      .name = name, .shape = {}, .error = got, .bound = bound, .pass = got <= bound, .reason = {}};
}

class ConvertCase {
 public:
  ConvertCase(const CaseFile& file, const at::Device& device, Backend backend)
      : file_(file),
        device_(device),
        backend_(backend),
        config_(file.settings().conversion()),
        cp_(file.tensors) {
    inputs_ = under("in.", take_under(cp_, "in."));
    from_ = take_under(cp_, "from.w.");
    to_ = take_under(cp_, "to.w.");
  }

  // What the layer becomes, and both layers against out.*.
  Judged judge_copy() const {
    if (!cp_.empty()) file_.refuse("a conversion has no tensor " + cp_.begin()->first);
    auto old = layer("from", from_);
    auto computed = convert(old);
    auto expected = under("to.w.", to_);
    expected.insert(file_.expected.begin(), file_.expected.end());
    auto verdicts = judge(computed, expected, old.tolerance());
    for (auto verdict : judge(old.compute({}, backend_), file_.expected, old.tolerance())) {
      verdict.name = "from: " + verdict.name;
      verdicts.push_back(std::move(verdict));
    }
    return {std::move(computed), std::move(verdicts)};
  }

  // The error of P must be at most cp_bound; the file's own factors must have the errors and the
  // output that it states.
  Judged judge_decomposition() const {
    auto old = layer("from", from_);
    auto computed = convert(old);
    const auto before = old.compute({}, backend_).at("out.y");
    auto made = computed;
    const double error = rel_error(take_under(made, "to.w."));
    computed["cp.rel_error"] = scalar(error);
    computed["cp.out_error"] = scalar(relative_error(computed.at("out.y"), before));

    const auto theirs = layer("to", to_).compute({}, backend_).at("out.y");
    const auto out_errors = stated(cp_, "cp.out_error");  // [seeds]
    const double seed = file_.number("cp_to_seed");       // whose factors the file holds
    if (out_errors.dim() != 1 || seed >= static_cast<double>(out_errors.size(0)))
      file_.refuse(fmt::format("cp.out_error has no seed {}", seed));
    const auto tolerance = old.tolerance();
    std::vector<Verdict> verdicts{
        at_most("cp.rel_error", error, file_.number("cp_bound")),
        judge("from: out.y", before, stated(file_.expected, "out.y"), tolerance),
        judge("to.y", theirs, stated(cp_, "to.y"), tolerance),
        judge("cp_to_rel_error", scalar(rel_error(to_)), scalar(file_.number("cp_to_rel_error")),
              tolerance),
        judge("cp.out_error of to.y", scalar(relative_error(theirs, before)),
              out_errors[static_cast<int64_t>(seed)], tolerance)};
    return {std::move(computed), std::move(verdicts)};
  }

  // What the layer becomes, what that says of the file's inputs, and how much was kept.
  Judged judge_latents() {
    auto tokens = taken("in.calibration");  // [N,T,D]
    if (tokens.dim() != 3) file_.refuse("in.calibration must be [N,T,D]");
    if (const auto mask = take(inputs_, "in.calibration_mask"); mask.defined())
      tokens = tokens.index({mask.to(at::kBool)}).unsqueeze(0);
    const auto moment = token_moment(tokens, {});
    auto old = layer("from", from_);
    const auto before = old.compute({}, backend_).at("out.y");
    const auto made = to_mla(trained(old), latent_settings(), {moment, moment}, half_first());
    auto computed = layer("to", made.weights).compute({}, backend_);
    const auto& after = computed.at("out.y");
    computed["out.from.y"] = before;
    computed["out.y_error"] = scalar(relative_error(after, before));
    computed["out.rope_share"] = scalar(made.rope_share.value_or(1));
    computed["out.latent_share"] = scalar(made.latent_share.value_or(0));
    computed.merge(under("out.w.", made.weights));
    auto verdicts = judge(computed, file_.expected, file_.tolerance);
    return {std::move(computed), std::move(verdicts)};
  }

 private:
  // The layer of config `which` ("from", "to") on the file's inputs; it is judged by out.*.
  LayerCase layer(const std::string& which, const NamedTensors& weights) const {
    auto metadata = file_.metadata;
    metadata["config"] = config_.at(which).dump();
    NamedTensors tensors = inputs_;
    tensors.merge(under("w.", weights));
    tensors.insert(file_.expected.begin(), file_.expected.end());
    return {CaseFile(fmt::format("{} ({})", file_.name, which), std::move(tensors),
                     std::move(metadata)),
            device_};
  }

  // Of the new layer: to.w.*, and what it gives, out.y, out.attention.
  NamedTensors convert(const LayerCase& old) const {
    const auto R = config_.value(Json::json_pointer("/to/attention/shared_dim"), Json());
    const auto shared_dim = R.is_number_integer() ? std::optional(R.get<int64_t>()) : std::nullopt;
    const auto made = to_collaborative(trained(old), shared_dim);
    auto computed = layer("to", made.weights).compute({}, backend_);
    computed.merge(under("to.w.", made.weights));
    return computed;
  }

  TrainedLayer trained(const LayerCase& old) const {
    return {.name = file_.name,
            .attention = old.attention(),
            .shape = old.heads().shape(),
            .demands = old.demands(),
            .weights = from_};
  }

  LatentSettings latent_settings() const {
    const auto to = config_.at("to").value("attention", Json::object());
    const auto options = config_.value("options", Json::object());
    const auto number = [&](const char* key) {
      const auto found = to.value(key, Json());
      if (!found.is_number_integer())
        file_.refuse(fmt::format("metadata config: to.attention.{} must be an integer", key));
      return found.get<int64_t>();
    };
    LatentSettings settings;
    settings.kv_rank = number("kv_rank"), settings.q_rank = number("q_rank");
    settings.rope_dim = number("rope_dim");
    settings.freqfold = options.value("freqfold", int64_t{1});
    const auto balance = options.value("balance", Json());
    settings.balance = balance.is_number() ? std::optional(balance.get<double>()) : std::nullopt;
    return settings;
  }
  bool half_first() const {
    return config_.value(Json::json_pointer("/from/position/layout"), std::string("half")) ==
           "half";
  }
  // An input that no layer reads.
  Tensor taken(const char* name) {
    const auto tensor = take(inputs_, name);
    if (!tensor.defined()) file_.refuse(fmt::format("{} is missing", name));
    return tensor;
  }

  double rel_error(const NamedTensors& weights) const {  // of P
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

  Tensor stated(const NamedTensors& tensors, const char* name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) file_.refuse(fmt::format("{} is missing", name));
    return found->second;
  }

  const CaseFile& file_;
  at::Device device_;
  Backend backend_;
  nlohmann::ordered_json config_;  // of both layers
  NamedTensors cp_;                // cp.*, to.y
  NamedTensors inputs_;            // in.*
  NamedTensors from_, to_;         // weights
};

const RegisterCase copies({"convert-1",
                           [](const CaseFile& file, const at::Device& device, Backend backend) {
                             return ConvertCase(file, device, backend).judge_copy();
                           }});
const RegisterCase latents({"convert-mla-1",
                            [](const CaseFile& file, const at::Device& device, Backend backend) {
                              return ConvertCase(file, device, backend).judge_latents();
                            }});
const RegisterCase decompositions(
    {"convert-cp-1", [](const CaseFile& file, const at::Device& device, Backend backend) {
       return ConvertCase(file, device, backend).judge_decomposition();
     }});

}  // namespace
}  // namespace headlab
