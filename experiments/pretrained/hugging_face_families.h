// How the architectures that Hugging Face's files may hold are built here, and what their tensors
// are called on both sides.
#pragma once

#include "experiments/pretrained/hugging_face.h"
#include "experiments/pretrained/hugging_face_settings.h"
#include "experiments/pretrained/weight_files.h"

namespace headlab {

// What config.json says, in this project's words.
struct HuggingFacePlan {
  std::string kind, options;  // YAML
  DataShape shape;
};

// The tensors of a file under the names that task models of transformers give them: those of bare
// models lack a prefix, and older files call weight and bias of norms gamma and beta.
class ForeignNames {
 public:
  ForeignNames(const WeightFiles& files, const std::string& prefix);

  // The file's own name; null where it has none.
  const std::string* find(const std::string& name) const;
  bool contains(const std::string& name) const { return find(name) != nullptr; }

 private:
  std::map<std::string, std::string> own_;
};

// Collects the tensors of one family, weights and biases, as far as the model has them.
class ForeignTensorList {
 public:
  explicit ForeignTensorList(const NamedTensors& ours) : ours_(ours) {}

  bool has(const std::string& ours) const { return ours_.contains(ours); }
  void add(const std::string& theirs, const std::vector<std::string>& ours,
           bool transposed = false);
  void add(const std::string& theirs, const char* ours) {
    add(theirs, std::vector<std::string>{ours});
  }
  void add_alone(const std::string& theirs, const std::string& ours) {
    if (ours_.contains(ours)) rules.push_back({.name = theirs, .ours = {ours}});
  }
  // Four projections and what else is named alike in both.
  void add_all(const std::string& theirs, const std::string& ours,
               const std::vector<std::pair<std::string, std::string>>& parts) {
    for (const auto& [their, our] : parts) add(theirs + their, {ours + our});
  }

  std::vector<ForeignTensor> rules;

 private:
  const NamedTensors& ours_;
};

struct HuggingFaceFamily {
  std::string prefix;  // of all but the heads of tasks
  HuggingFacePlan (*plan)(const HuggingFaceSettings&, const ForeignNames&);
  void (*list)(ForeignTensorList&, int64_t layers);
  // Copies that a file may hold of what is tied: name, and of which they are one.
  std::vector<std::pair<std::string, std::string>> copies;
};

// ConfigError naming those that are known where `model_type` is not.
const HuggingFaceFamily& hugging_face_family(const HuggingFaceSettings& settings);
// One that is known.
const HuggingFaceFamily& hugging_face_family(const std::string& model_type);

}  // namespace headlab
