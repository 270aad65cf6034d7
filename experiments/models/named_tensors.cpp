// Tensors to and from safetensors entries.
#include "experiments/models/named_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "experiments/data/scalar_type.h"
#include "experiments/files/safetensors.h"

namespace headlab {

namespace {

Dtype dtype_of(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "tensor '", name, "' is undefined");
  const auto found = std::ranges::find(kScalarTypes, tensor.scalar_type());
  TORCH_CHECK(found != kScalarTypes.end(), "tensor '", name, "': safetensors has no dtype for ",
              tensor.scalar_type());
  return static_cast<Dtype>(found - kScalarTypes.begin());
}

at::Tensor copy_of(const TensorEntry& entry) {
  at::Tensor tensor = at::empty(entry.shape, scalar_type_of(entry.dtype));
  if (entry.bytes > 0) std::memcpy(tensor.mutable_data_ptr(), entry.data, entry.bytes);
  // A bool of any other byte than 0 and 1 is undefined behaviour in whoever reads it.
  if (entry.dtype == Dtype::kBool) tensor = tensor.view(at::kByte).ne(0);
  return tensor;
}

}  // namespace

at::Tensor take(NamedTensors& tensors, const std::string& name) {
  auto node = tensors.extract(name);
  return node ? node.mapped() : at::Tensor();
}

NamedTensors read_tensors(const std::filesystem::path& path,
                          std::map<std::string, std::string>* metadata) {
  const SafetensorsFile file(path);
  NamedTensors tensors;
  for (const TensorEntry& entry : file.entries()) tensors[entry.name] = copy_of(entry);
  if (metadata != nullptr) *metadata = file.metadata();
  return tensors;
}

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> rows;  // own the bytes until they are written
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    const Dtype dtype = dtype_of(name, tensor);
    const at::Tensor& row =
        rows.emplace_back(tensor.detach().to(at::kCPU).resolve_neg().contiguous());
    entries.push_back({name, dtype, row.sizes().vec(),
                       static_cast<const std::byte*>(row.const_data_ptr()), row.nbytes()});
  }
  write_safetensors(path, std::move(entries), metadata);
}

}  // namespace headlab
