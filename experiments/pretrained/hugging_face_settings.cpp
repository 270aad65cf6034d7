#include "experiments/pretrained/hugging_face_settings.h"

#include <map>

#include "core/files/json_text.h"
#include "core/files/mapped_file.h"

namespace headlab {

using nlohmann::json;

HuggingFaceSettings::HuggingFaceSettings(const std::filesystem::path& file) : file_(file.string()) {
  json_ = parse_json(MappedFile(file).text()).value_or(json());
  if (!json_.is_object()) refuse("is no JSON object");
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
