#include "experiments/pretrained/hugging_face_settings.h"

#include <map>

#include "core/torch.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {

using nlohmann::json;

HuggingFaceSettings::HuggingFaceSettings(const std::filesystem::path& file) : file_(file.string()) {
  json_ = parse_json(MappedFile(file).text()).value_or(json());
  if (!json_.is_object()) refuse("is no JSON object");
  add_defaults();
}

HuggingFaceSettings::HuggingFaceSettings(json json, std::string name)
    : file_(std::move(name)), json_(std::move(json)) {
  add_defaults();
}

void HuggingFaceSettings::add_defaults() {
  const auto type = json_.find("model_type");
  if (type == json_.end()) refuse("model_type is missing");
  model_type_ = as<std::string>("model_type", *type);
  for (const auto& [other, name] : hugging_face_other_names(model_type_).items())
    if (json_.contains(other) && !json_.contains(name.get<std::string>()))
      json_[name.get<std::string>()] = json_[other];
  auto whole = hugging_face_defaults(model_type_);
  whole.update(json_);
  json_ = std::move(whole);
}

const json* HuggingFaceSettings::find(const std::string& key) const {
  TORCH_CHECK(key == "architectures" || hugging_face_defaults(model_type_).contains(key),
              "the table of defaults has no row for ", key, " of ", model_type_);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::string HuggingFaceSettings::activation(const std::string& key) const {
  static const std::map<std::string, std::string> known{
      {"gelu", "gelu"}, {"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"},
      {"relu", "relu"}, {"silu", "silu"},          {"swish", "silu"}};
  const auto word = get<std::string>(key);
  const auto found = known.find(word);
  if (found == known.end())
    unknown(fmt::format("{}: no activation is called '{}' here", key, word));
  return found->second;
}

void HuggingFaceSettings::require(const std::string& key, const json& value) const {
  if (const auto* found = find(key); found && *found != value)
    unknown(fmt::format("{}: {} is not known here, only {}", key, found->dump(), value.dump()));
}

std::optional<int64_t> HuggingFaceSettings::token(const std::string& key,
                                                  int64_t vocabulary) const {
  if (!find(key)) return std::nullopt;
  const auto id = get<int64_t>(key);
  if (id < -vocabulary || id >= vocabulary)
    refuse(fmt::format("{}: {} is no token of {}", key, id, vocabulary));
  return id < 0 ? id + vocabulary : id;
}

std::vector<int64_t> HuggingFaceSettings::ids(const std::string& key) const {
  const auto* found = find(key);
  if (!found) return {};
  return found->is_array() ? as<std::vector<int64_t>>(key, *found)
                           : std::vector{as<int64_t>(key, *found)};
}

int64_t HuggingFaceSettings::checked(const std::string& key, int64_t value) const {
  if (value < 1 || value > (int64_t{1} << 31)) refuse(fmt::format("{} cannot be {}", key, value));
  return value;
}

}  // namespace headlab
