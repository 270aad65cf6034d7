#include "experiments/runs/checkpoint_state.h"

#include <fmt/format.h>

#include <string_view>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/files/mapped_file.h"
#include "experiments/files/sha256.h"

namespace headlab {
namespace {

const std::string kBeforeHash = ",\n  \"sha256\": \"", kAfterHash = "\"\n}\n";
constexpr size_t kHashDigits = 64;

bool is_sealed(std::string_view text) {
  const size_t tail = kHashDigits + kAfterHash.size();
  if (text.size() < tail || !text.ends_with(kAfterHash)) return false;
  const std::string_view sealed = text.substr(0, text.size() - tail);
  return sha256(sealed) == text.substr(sealed.size(), kHashDigits);
}

}  // namespace

std::string sealed_state(const nlohmann::ordered_json& state) {
  std::string text = state.dump(2);
  text.resize(text.size() - 2);  // "\n}"
  text += kBeforeHash;
  return text + sha256(text) + kAfterHash;
}

nlohmann::json read_state(const std::filesystem::path& checkpoint) {
  const auto path = checkpoint / kStateFile;
  const MappedFile file(path);
  const auto refusal = [&](const std::string& what) {
    return DataError(fmt::format("{}: {}", path.string(), what));
  };
  constexpr size_t kMost = size_t{256} << 20;  // of what is read whole
  if (file.size() > kMost || !is_sealed(file.text()))
    throw refusal("is damaged: its bytes are not those written");
  const auto state = parse_json(file.text()).value_or(nlohmann::json());
  const nlohmann::json version =
      state.is_object() ? state.value("schema_version", nlohmann::json()) : nlohmann::json();
  if (version != kStateVersion) {
    throw refusal(
        fmt::format("has schema version {}, this program reads {}", version.dump(), kStateVersion));
  }
  if (!state.value("best", nlohmann::json(false)).is_boolean())
    throw refusal("best must be true or false");
  return state;
}

}  // namespace headlab
