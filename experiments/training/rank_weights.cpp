#include "experiments/training/rank_weights.h"

#include <fmt/format.h>

#include <stdexcept>

#include "core/torch.h"
#include "experiments/files/sha256.h"

namespace headlab {
namespace {

void share(Tensor& tensor, Comm& comm) {
  auto dense = tensor.detach().contiguous();
  comm.broadcast(dense);
  if (!comm.first()) tensor.detach().copy_(dense);
}

// On the other ranks, empty tensors of rank 0's names, types and shapes stand in their place first.
void share(NamedTensors& tensors, Comm& comm) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    shapes.push_back({{"name", name},
                      {"type", static_cast<int>(tensor.scalar_type())},
                      {"sizes", tensor.sizes().vec()}});
  shapes = nlohmann::json::parse(comm.broadcast(shapes.dump()));
  if (!comm.first()) {
    tensors.clear();
    for (const auto& shape : shapes)
      tensors[shape.at("name")] = at::empty(shape.at("sizes").get<std::vector<int64_t>>(),
                                            at::ScalarType{shape.at("type").get<int8_t>()});
  }
  for (auto& [name, tensor] : tensors) share(tensor, comm);
}

std::string bits_of(const Model& model) {
  std::string hashes;
  for (const auto& [name, tensor] : module_tensors(model)) {
    const auto dense = tensor.detach().cpu().contiguous();
    hashes += sha256({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
  }
  return sha256(hashes);
}

}  // namespace

void share_weights(Model& model, Comm& comm) {
  if (comm.size() == 1) return;
  at::NoGradGuard no_grad;
  for (auto& [name, tensor] : module_tensors(model)) {
    auto own = tensor;
    share(own, comm);
  }
}

std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint, Comm& comm) {
  if (comm.size() == 1) return checkpoint;
  at::NoGradGuard no_grad;
  nlohmann::json about;
  if (comm.first() && checkpoint)
    about = {{"step", checkpoint->step},
             {"trainer", checkpoint->trainer},
             {"optimizer", checkpoint->optimizer.has_value()}};
  about = nlohmann::json::parse(comm.broadcast(about.dump()));
  if (about.is_null()) return std::nullopt;
  if (!comm.first()) {
    checkpoint = Checkpoint{.step = about.at("step"), .trainer = about.at("trainer")};
    if (about.at("optimizer").get<bool>()) checkpoint->optimizer.emplace();
  }
  share(checkpoint->model, comm);
  if (checkpoint->optimizer) share(*checkpoint->optimizer, comm);
  return checkpoint;
}

void require_same_weights(const Model& model, Comm& comm) {
  if (comm.size() == 1) return;
  const auto all = comm.gather(bits_of(model));
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw std::runtime_error(fmt::format(
          "the weights of rank {} are no longer those of rank 0: nothing is saved; the run goes on "
          "from its last checkpoint",
          r));
}

}  // namespace headlab
