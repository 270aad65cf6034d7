#include "experiments/data/batch.h"

#include <algorithm>
#include <functional>

#include "core/torch.h"

namespace headlab {

const Tensor& Batch::input() const {
  const Tensor& there = ids.defined() ? ids : image;
  TORCH_CHECK(there.defined(), "a batch has neither ids nor an image");
  return there;
}

Tensor Batch::tokens_of(Tensor Batch::*input) const {
  const Tensor& there = this->*input;
  return there.defined() && there.dim() == 2 && there.scalar_type() == at::kLong ? there : Tensor();
}

int64_t Batch::tokens() const { return ids.defined() ? ids.numel() : examples(); }

namespace {

Batch of_each(const Batch& batch, const std::function<Tensor(const Tensor&)>& change) {
  const auto changed = [&](const Tensor& t) { return t.defined() ? change(t) : t; };
  return {.ids = changed(batch.ids),
          .targets = changed(batch.targets),
          .length = changed(batch.length),
          .segment = changed(batch.segment),
          .image = changed(batch.image),
          .source = changed(batch.source),
          .source_length = changed(batch.source_length),
          .reference = changed(batch.reference)};
}

// Rows of all, as wide as the widest.
Tensor joined_rows(const std::vector<Batch>& batches, Tensor Batch::*input, int64_t fill) {
  int64_t width = 0;
  std::vector<Tensor> rows;
  for (const auto& batch : batches) {
    const Tensor& row = batch.*input;
    if (!row.defined()) return {};
    if (row.dim() == 2) width = std::max(width, row.size(1));
    rows.push_back(row);
  }
  for (auto& row : rows)
    if (row.dim() == 2) row = at::constant_pad_nd(row, {0, width - row.size(1)}, fill);
  return at::cat(rows);
}

// How long each row of `of` is, where their batches say so or it has been padded.
Tensor joined_lengths(const std::vector<Batch>& batches, Tensor Batch::*of, Tensor Batch::*length) {
  bool differ = false;
  std::vector<Tensor> lengths;
  for (const auto& batch : batches) {
    const Tensor &rows = batch.*of, &given = batch.*length;
    if (!rows.defined() || rows.dim() != 2) return {};
    differ = differ || given.defined() || rows.size(1) != (batches.front().*of).size(1);
    lengths.push_back(given.defined() ? given : at::full({rows.size(0)}, rows.size(1), at::kLong));
  }
  return differ ? at::cat(lengths) : Tensor();
}

}  // namespace

Batch Batch::to(const at::Device& device) const {
  return of_each(*this, [&](const Tensor& t) { return t.to(device, /*non_blocking=*/true); });
}

Batch Batch::part(int64_t first, int64_t end) const {
  return of_each(*this, [&](const Tensor& t) { return t.slice(0, first, end); });
}

Batch joined(const std::vector<Batch>& batches, int64_t pad) {
  const auto rows = [&](Tensor Batch::*input, int64_t fill) {
    return joined_rows(batches, input, fill);
  };
  return {.ids = rows(&Batch::ids, pad),
          .targets = rows(&Batch::targets, kIgnored),
          .length = joined_lengths(batches, &Batch::ids, &Batch::length),
          .segment = rows(&Batch::segment, 0),
          .image = rows(&Batch::image, 0),
          .source = rows(&Batch::source, pad),
          .source_length = joined_lengths(batches, &Batch::source, &Batch::source_length),
          .reference = rows(&Batch::reference, 0)};
}

Tensor padded_rows(const TokenRows& rows, int64_t fill) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.size());
  auto padded = at::full({std::ssize(rows), static_cast<int64_t>(width)}, fill, at::kLong);
  auto* to = padded.data_ptr<int64_t>();
  for (const auto& row : rows) std::ranges::copy(row, to), to += width;
  return padded;
}

Tensor row_lengths(const TokenRows& rows) {
  std::vector<int64_t> lengths;
  for (const auto& row : rows) lengths.push_back(std::ssize(row));
  return at::tensor(lengths, at::kLong);
}

Batch pair_batch(const TokenRows& texts, const TokenRows& translations, int64_t start,
                 int64_t pad) {
  TokenRows read;
  for (const auto& row : translations) {
    auto& behind_start = read.emplace_back(1, start);
    behind_start.insert(behind_start.end(), row.begin(), row.end() - 1);
  }
  return {.ids = padded_rows(read, pad),
          .targets = padded_rows(translations, kIgnored),
          .length = row_lengths(translations),
          .source = padded_rows(texts, pad),
          .source_length = row_lengths(texts)};
}

Batch empty_batch(int64_t count, int64_t context) {
  return {at::empty({count, context}, at::kLong), at::empty({count, context}, at::kLong)};
}

}  // namespace headlab
