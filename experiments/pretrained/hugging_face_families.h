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
  std::vector<std::string> notices = {};  // sentences on what has no place here
};

// Names of tensors that are one and the same. A file may hold it under any of them, or under
// several.
using TiedNames = std::vector<std::string>;

// The tensors of a file under the names that task models of transformers give them: those of bare
// models lack a prefix, older files call weight and bias of norms gamma and beta, and of tensors
// that are tied one may stand for all.
class ForeignNames {
 public:
  ForeignNames(const WeightFiles& files, const std::string& prefix,
               const std::vector<TiedNames>& tied);

  // The file's own name; null where it has none.
  const std::string* find(const std::string& name) const;
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  bool has_any(const std::string& beginning) const;

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

// Tensors that no model here has, by the beginning of their names: what they are, in words.
struct LeftOut {
  std::string beginning, what;
};

struct HuggingFaceFamily {
  std::string prefix;  // of all but the heads of tasks
  HuggingFacePlan (*plan)(const HuggingFaceSettings&, const ForeignNames&, const std::string& task);
  void (*list)(ForeignTensorList&, int64_t layers);
  std::vector<TiedNames> (*tied)(const HuggingFaceSettings&);
  // What is asked of its classes, by the end of their names: "words", "masked", "classes", "bare".
  std::map<std::string, std::string> tasks;
  std::vector<LeftOut> left_out = {};
};

// ConfigError naming those that are known where `model_type` is not.
const HuggingFaceFamily& hugging_face_family(const HuggingFaceSettings& settings);
// What is asked of the class that `architectures` names; of its tensors where the key is missing.
// ConfigError where no model here does that, or the tensors leave it open.
std::string hugging_face_task(const HuggingFaceSettings& settings, const ForeignNames& names);
// One that is known.
const HuggingFaceFamily& hugging_face_family(const std::string& model_type);

}  // namespace headlab
