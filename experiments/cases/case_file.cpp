#include "experiments/cases/case_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/config/registry.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/files/safetensors.h"

namespace headlab {
namespace {

struct Registered {
  CaseFormat format;
  std::string file;  // that registers it
};

std::vector<Registered>& formats() {
  static std::vector<Registered> known;
  return known;
}

Tolerance tolerance_of(const CaseFile& file) {
  const auto number = [&](const char* key) {
    return file.metadata.contains(key) ? file.number(key) : 0;
  };
  return {number("rtol"), number("atol")};
}

const CaseFormat& format_of(const CaseFile& file) {
  std::string said;
  std::vector<std::string> names;
  for (const auto& [format, where] : formats()) {
    names.push_back(format.name);
    const auto found = file.metadata.find(format.key);
    if (found == file.metadata.end()) continue;
    if (found->second == format.name) return format;
    said = found->second;
  }
  if (said.empty())
    file.refuse(
        "holds no expected numbers: its metadata has none of headlab_case, headlab_train, "
        "headlab_model and headlab_task");
  file.refuse("this version does not know the format " + said + did_you_mean(said, names));
}

}  // namespace

CaseFile::CaseFile(std::string name, NamedTensors all, std::map<std::string, std::string> said)
    : name(std::move(name)), metadata(std::move(said)), tensors(std::move(all)) {
  expected = take_expected(tensors);
  tolerance = tolerance_of(*this);
}

CaseFile::CaseFile(const std::filesystem::path& path)
    : name(path.string()), tensors(read_tensors(path, &metadata)) {
  expected = take_expected(tensors);
  tolerance = tolerance_of(*this);
}

void CaseFile::refuse(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", name, what));
}

const at::Tensor& CaseFile::at(const std::string& tensor) const {
  const auto found = tensors.find(tensor);
  if (found == tensors.end()) refuse(tensor + " is missing");
  return found->second;
}

at::Tensor CaseFile::find(const std::string& tensor) const {
  const auto found = tensors.find(tensor);
  return found == tensors.end() ? at::Tensor() : found->second;
}

void CaseFile::read(Block& block, const std::string& key) const {
  of_case(name,
          [&] { read_config(block, parse_config(text(key), fmt::format("{} ({})", name, key))); });
}

void CaseFile::require_weights(double least, const std::string& what) const {
  double held = 0;
  for (const auto& [tensor, value] : tensors)
    if (tensor.starts_with("w.")) held += static_cast<double>(value.numel());
  if (held < least)
    refuse(
        fmt::format("{} have at least {:.3g} weights, the file holds {:.3g}", what, least, held));
}

std::vector<int64_t> integers_of(const at::Tensor& tensor) {
  const auto dense = tensor.to(at::kCPU, at::kLong).contiguous();
  return {dense.const_data_ptr<int64_t>(), dense.const_data_ptr<int64_t>() + dense.numel()};
}

void rethrow_for_case(const std::string& file) {
  std::string what;
  try {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const BackendError& e) {
    throw BackendError(file + ": " + e.what());
  } catch (const c10::Error& e) {
    what = e.msg();
  } catch (const ConfigError& e) {
    what = e.what();
  } catch (const nlohmann::json::exception& e) {
    what = e.what();
  }
  throw DataError(what.starts_with(file) ? what : file + ": " + what);
}

Judged judged(const CaseFile& file, NamedTensors computed) {
  auto verdicts = judge(computed, file.expected, file.tolerance);
  return {std::move(computed), std::move(verdicts)};
}

Judged judge_case(const std::filesystem::path& path, const at::Device& device, Backend backend,
                  const std::filesystem::path& model) {
  CaseFile file(path);
  if (!model.empty() && !file.metadata.contains(kModelKey))
    throw ConfigError(path.string() + ": is of no whole model, so that --model says nothing");
  file.model = model;
  return of_case(file.name, [&] { return format_of(file).judge(file, device, backend); });
}

RegisterCase::RegisterCase(CaseFormat format, const std::source_location& where) {
  for (const auto& [other, file] : formats())
    if (other.name == format.name && other.key == format.key)
      registration_conflicts().push_back("case format '" + format.name + "' is registered by " +
                                         file + " and " + where.file_name());
  formats().push_back({std::move(format), where.file_name()});
}

RegisterCase::RegisterCase(const char* name, NamedTensors (*compute)(const CaseFile& file),
                           const std::source_location& where)
    : RegisterCase({name,
                    [compute](const CaseFile& file, const at::Device&, Backend) {
                      at::NoGradGuard no_grad;
                      return judged(file, compute(file));
                    }},
                   where) {}

}  // namespace headlab
