#include "experiments/cases/case_file.h"

#include <fmt/format.h>

#include "core/errors.h"
#include "core/files/safetensors.h"
#include "core/torch.h"

namespace headlab {
namespace {

std::map<std::string, CaseFormat>& formats() {
  static std::map<std::string, CaseFormat> known;
  return known;
}

}  // namespace

Tolerance tolerance_of(const std::map<std::string, std::string>& metadata) {
  const auto number = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? 0 : std::stod(found->second);
  };
  return {number("rtol"), number("atol")};
}

CaseFile::CaseFile(const std::filesystem::path& path)
    : name(path.string()), tensors(read_tensors(path, &metadata)) {
  expected = take_expected(tensors);
  tolerance = tolerance_of(metadata);
}

const at::Tensor& CaseFile::at(const std::string& tensor) const {
  const auto found = tensors.find(tensor);
  if (found == tensors.end()) throw DataError(fmt::format("{}: {} is missing", name, tensor));
  return found->second;
}

at::Tensor CaseFile::find(const std::string& tensor) const {
  const auto found = tensors.find(tensor);
  return found == tensors.end() ? at::Tensor() : found->second;
}

const std::string& CaseFile::text(const std::string& key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    throw DataError(fmt::format("{}: the metadata has no {}", name, key));
  return found->second;
}

bool CaseFile::truth(const std::string& key) const {
  const auto found = metadata.find(key);
  return found != metadata.end() && found->second == "true";
}

void CaseFile::read(Block& config) const {
  read_config(config, parse_config(text("config"), name + " (config)"));
}

Judged judge_case(const std::filesystem::path& path, const at::Device& device, Backend backend) {
  const auto metadata = SafetensorsFile(path).metadata();
  const auto format = metadata.find("headlab_case");
  if (format == metadata.end())
    throw DataError(path.string() + ": holds no expected numbers: its metadata has neither " +
                    "headlab_case nor headlab_train");
  const auto known = formats().find(format->second);
  if (known == formats().end())
    throw DataError(
        fmt::format("{}: this version does not know the format {}", path.string(), format->second));
  return known->second.judge(path, device, backend);
}

RegisterCase::RegisterCase(CaseFormat format) {
  std::string name = format.name;
  formats()[std::move(name)] = std::move(format);
}

RegisterCase::RegisterCase(const char* name, NamedTensors (*compute)(const CaseFile& file))
    : RegisterCase(CaseFormat{
          name, [compute](const std::filesystem::path& path, const at::Device&, Backend) {
            at::NoGradGuard no_grad;
            const CaseFile file(path);
            auto computed = compute(file);
            auto verdicts = headlab::judge(computed, file.expected, file.tolerance);
            return Judged{std::move(computed), std::move(verdicts)};
          }}) {}

}  // namespace headlab
