// Small models for tests, and where shared golden files are.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "experiments/models/model.h"
#include "headlab_build.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

inline std::shared_ptr<ModelOptions> decoder_options(const std::string& yaml) {
  auto options = std::dynamic_pointer_cast<ModelOptions>(model_kind("decoder").options());
  read_config(*options, parse_config(yaml, "test.yaml"));
  return options;
}

// In eval mode. The same weights for the same text, larger than a fresh model's, so that attention
// is far from uniform.
inline std::shared_ptr<Model> small_decoder(const std::string& yaml, int64_t vocabulary = 29,
                                            int64_t context = 12) {
  torch::manual_seed(5);
  auto model = model_kind("decoder").make(*decoder_options(yaml),
                                          {.vocabulary = vocabulary, .context = context});
  model->to(at::kDouble);
  model->eval();
  at::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.add_(at::randn_like(p), 0.2);
  return model;
}

inline Tensor some_ids(int64_t B, int64_t T, int64_t vocabulary = 29) {
  torch::manual_seed(11);
  return at::randint(vocabulary, {B, T}, at::kLong);
}

inline Tensor logits_of(Model& model, const Tensor& ids) { return model.forward({ids}, {}).logits; }

// What reading the options complains of; "" when it does not.
inline std::string complaint(const std::string& yaml) {
  try {
    decoder_options(yaml);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

// Empty where it is not there.
inline std::filesystem::path shared_folder() {
  const char* named = std::getenv("HEADLAB_SHARED");
  const auto folder = named ? std::filesystem::path(named)
                            : std::filesystem::path(build::kSourceDir) / ".." / "shared";
  return std::filesystem::exists(folder / "golden") ? folder : std::filesystem::path();
}

}  // namespace headlab::testing
