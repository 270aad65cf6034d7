// Format convert-mla-1: an old layer, tokens to calibrate by, and the mla layer that it must
// become.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/torch.h"
#include "experiments/cases/layer_case.h"
#include "experiments/conversion/to_mla.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

NamedTensors under(const std::string& prefix, const NamedTensors& tensors) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors) named[prefix + name] = tensor;
  return named;
}

class LatentCase {
 public:
  LatentCase(const CaseFile& file, const at::Device& device, Backend backend)
      : file_(file),
        device_(device),
        backend_(backend),
        config_(file.settings().conversion()),
        from_(weights(file)) {
    x_ = file.at("in.x");
    auto tokens = file.at("in.calibration");  // [N,T,D]
    if (const auto mask = file.find("in.calibration_mask"); mask.defined())
      tokens = tokens.index({mask.to(at::kBool)}).unsqueeze(0);
    tokens_ = token_moment(tokens, {});
  }

  Judged judged() const {
    auto old = layer("from", from_);
    const auto old_y = old.compute({}, backend_).at("out.y");
    const auto made = to_mla({.name = file_.name,
                              .attention = old.attention(),
                              .shape = old.heads().shape(),
                              .demands = old.demands(),
                              .weights = from_},
                             settings(), {tokens_, tokens_}, half_first());
    auto computed = layer("to", made.weights).compute({}, backend_);
    computed["out.from.y"] = old_y;
    computed.merge(under("out.w.", made.weights));
    const auto& y = computed.at("out.y");
    computed["out.y_error"] = ((y - old_y).norm() / old_y.norm()).to(at::kDouble);
    computed["out.rope_share"] = at::scalar_tensor(made.rope_share.value_or(1), at::kDouble);
    computed["out.latent_share"] = at::scalar_tensor(made.latent_share.value_or(0), at::kDouble);
    auto verdicts = judge(computed, file_.expected, file_.tolerance);
    return {std::move(computed), std::move(verdicts)};
  }

 private:
  static NamedTensors weights(const CaseFile& file) {
    auto tensors = file.tensors;
    return take_under(tensors, "from.w.");
  }
  // The layer of config `which` ("from", "to") on in.x.
  LayerCase layer(const std::string& which, const NamedTensors& weights) const {
    auto metadata = file_.metadata;
    metadata["config"] = config_.at(which).dump();
    auto tensors = under("w.", weights);
    tensors["in.x"] = x_;
    return {CaseFile(fmt::format("{} ({})", file_.name, which), std::move(tensors),
                     std::move(metadata)),
            device_};
  }

  LatentSettings settings() const {
    const auto to = config_.at("to").value("attention", Json::object());
    const auto options = config_.value("options", Json::object());
    LatentSettings settings;
    const auto number = [&](const char* key) {
      const auto found = to.value(key, Json());
      if (!found.is_number_integer())
        file_.refuse(fmt::format("metadata config: to.attention.{} must be an integer", key));
      return found.get<int64_t>();
    };
    settings.kv_rank = number("kv_rank");
    settings.rope_dim = number("rope_dim");
    settings.q_rank = number("q_rank");
    settings.freqfold = options.value("freqfold", int64_t{1});
    settings.balance.reset();
    if (const auto balance = options.find("balance"); balance != options.end())
      if (balance->is_number()) settings.balance = balance->get<double>();
    return settings;
  }
  bool half_first() const {
    return config_.value(Json::json_pointer("/from/position/layout"), std::string("half")) ==
           "half";
  }

  const CaseFile& file_;
  at::Device device_;
  Backend backend_;
  Json config_;  // of both layers
  NamedTensors from_;
  Tensor x_, tokens_;
};

const RegisterCase to_latent({"convert-mla-1",
                              [](const CaseFile& file, const at::Device& device, Backend backend) {
                                return LatentCase(file, device, backend).judged();
                              }});

}  // namespace
}  // namespace headlab
