#include "experiments/models/named_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/errors.h"
#include "core/torch.h"

namespace headlab {
namespace {

class Reader {
 public:
  Reader(const std::string& file, const NamedTensors& tensors) : file_(file), tensors_(tensors) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", file_, what));
  }
  Tensor find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? Tensor() : found->second;
  }

  // Integers [B,T], of 0 .. below - 1; undefined where they are missing.
  Tensor ids(const std::string& name, int64_t below, int64_t context) const {
    const auto tensor = find(name);
    if (!tensor.defined()) return {};
    require(tensor.dim() == 2 && tensor.numel() > 0 && is_integer(tensor),
            name + " must be integers [B,T]");
    require(tensor.size(1) <= context,
            fmt::format("{} has {} places, the model's context is {}; cut it", name, tensor.size(1),
                        context));
    const auto ids = tensor.to(at::kLong);
    require(ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < below,
            fmt::format("{} must lie in 0 .. {}", name, below - 1));
    return ids;
  }

  // Ones, then zeros, row by row: how many ones. Undefined where there is no mask.
  Tensor lengths(const std::string& name, const Tensor& of) const {
    const auto mask = find(name);
    if (!mask.defined()) return {};
    require(of.defined() && mask.sizes() == of.sizes(), name + " must have the shape of the ids");
    const auto length = mask.to(at::kLong).sum(-1);
    const auto places = at::arange(mask.size(-1), mask.options().dtype(at::kLong));
    require(at::equal(mask.ne(0), places.unsqueeze(0) < length.unsqueeze(1)),
            name + ": only padding at the end is known here");
    return length;
  }

  Tensor targets(const at::IntArrayRef shape, int64_t below) const {
    const auto targets = find("in.targets");
    if (!targets.defined()) return {};
    require(is_integer(targets) && targets.sizes() == shape,
            fmt::format("in.targets must be integers [{}]", fmt::join(shape, ",")));
    require(targets.numel() == 0 || targets.max().item().toLong() < below,
            fmt::format("in.targets must lie below {}", below));
    return targets.to(at::kLong);
  }

  void require(bool holds, const std::string& otherwise) const {
    if (!holds) refuse(otherwise);
  }

 private:
  static bool is_integer(const Tensor& tensor) {
    return at::isIntegralType(tensor.scalar_type(), false);
  }

  const std::string& file_;
  const NamedTensors& tensors_;
};

Batch image_batch(const Reader& read, const DataShape& shape) {
  Batch batch{.image = read.find("in.pixels")};
  read.require(batch.image.defined(), "in.pixels is missing");
  read.require(batch.image.dim() == 4 && batch.image.is_floating_point() &&
                   batch.image.sizes().slice(1) ==
                       at::IntArrayRef{shape.channels, shape.height, shape.width},
               fmt::format("in.pixels must be numbers [B,{},{},{}]", shape.channels, shape.height,
                           shape.width));
  batch.targets = read.targets({batch.image.size(0)}, shape.classes);
  return batch;
}

Batch pair_batch(const Reader& read, const DataShape& shape) {
  Batch batch{.ids = read.ids("in.decoder_ids", shape.vocabulary, shape.context),
              .source = read.ids("in.source_ids", shape.source_vocabulary, shape.source_context)};
  read.require(batch.source.defined(), "in.source_ids is missing");
  read.require(!batch.ids.defined() || batch.ids.size(0) == batch.source.size(0),
               "in.decoder_ids must have as many rows as in.source_ids");
  batch.source_length = read.lengths("in.source_mask", batch.source);
  if (batch.ids.defined()) batch.targets = read.targets(batch.ids.sizes(), shape.vocabulary);
  return batch;
}

}  // namespace

Batch named_batch(const std::string& file, const NamedTensors& tensors, const DataShape& shape) {
  const Reader read(file, tensors);
  if (shape.channels > 0) return image_batch(read, shape);
  if (shape.source_vocabulary > 0) return pair_batch(read, shape);
  Batch batch{.ids = read.ids("in.ids", shape.vocabulary, shape.context)};
  read.require(batch.ids.defined(), "in.ids is missing");
  batch.length = read.lengths("in.mask", batch.ids);
  batch.segment = read.ids("in.token_types", 2, shape.context);
  read.require(!batch.segment.defined() || batch.segment.sizes() == batch.ids.sizes(),
               "in.token_types must have the shape of in.ids");
  batch.targets = shape.classes > 0 ? read.targets({batch.ids.size(0)}, shape.classes)
                                    : read.targets(batch.ids.sizes(), shape.vocabulary);
  return batch;
}

std::vector<std::string> batch_names(const DataShape& shape) {
  if (shape.channels > 0) return {"in.pixels", "in.targets"};
  if (shape.source_vocabulary > 0)
    return {"in.source_ids", "in.source_mask", "in.decoder_ids", "in.targets"};
  return {"in.ids", "in.mask", "in.token_types", "in.targets"};
}

}  // namespace headlab
