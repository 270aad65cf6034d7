#include "core/attention/call/cache.h"

#include <algorithm>

#include "core/torch.h"

namespace headlab {

Tensor LayerCache::append(const std::string& name, const Tensor& fresh, int64_t keep,
                          CacheRate rate) {
  auto& entry = entries_[name];
  entry.rate = rate;
  const int64_t added = fresh.size(2);
  if (keep > 0) {
    const int64_t old = std::min(entry.size, keep - 1);
    entry.first += entry.size - old;
    entry.size = old;
  }
  if (!entry.storage.defined() || entry.first + entry.size + added > entry.storage.size(2)) {
    // Doubling keeps the cost of n appended tokens linear in n.
    auto sizes = fresh.sizes().vec();
    sizes[2] = std::max<int64_t>(32, 2 * (entry.size + added));
    auto larger = at::empty(sizes, fresh.options());
    if (entry.size > 0)
      larger.narrow(2, 0, entry.size).copy_(entry.storage.narrow(2, entry.first, entry.size));
    entry.storage = larger;
    entry.first = 0;
  }
  entry.storage.narrow(2, entry.first + entry.size, added).copy_(fresh);
  entry.size += added;
  entry.seen += added;
  return entry.storage.narrow(2, entry.first, entry.size);  // [B,H,kept,d]
}

int64_t LayerCache::entries(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? 0 : found->second.seen;
}

Tensor LayerCache::once(const std::string& name, const std::function<Tensor()>& compute) {
  auto& value = once_[name];
  if (!value.defined()) value = compute();
  return value;
}

void LayerCache::advance(int64_t places) {
  length_ += places;
  for (const auto& [name, entry] : entries_) {
    const int64_t due = entry.rate.entries(length_);
    TORCH_CHECK(entry.seen == due, "cache: '", name, "' holds ", entry.seen,
                due == length_ ? " places of " : " entries of ", due, " after a pass over ", places,
                ": it was not appended to in every pass");
  }
}

void LayerCache::select(const Tensor& rows) {
  for (auto& [name, entry] : entries_) {
    if (!entry.storage.defined()) continue;
    auto sizes = entry.storage.sizes().vec();
    sizes[0] = rows.size(0);
    auto chosen = at::empty(sizes, entry.storage.options());
    const auto kept = entry.storage.narrow(2, entry.first, entry.size);
    chosen.narrow(2, 0, entry.size).copy_(kept.index_select(0, rows));
    entry.storage = chosen, entry.first = 0;
  }
  for (auto* tensors : {&once_, &states_})
    for (auto& [name, tensor] : *tensors)
      if (tensor.defined()) tensor = tensor.index_select(0, rows);
}

int64_t LayerCache::bytes() const {
  int64_t all = 0;
  for (const auto& [name, entry] : entries_)
    if (entry.storage.defined())
      all += static_cast<int64_t>(entry.storage.narrow(2, 0, entry.size).nbytes());
  for (const auto* tensors : {&once_, &states_})
    for (const auto& [name, tensor] : *tensors)
      if (tensor.defined()) all += static_cast<int64_t>(tensor.nbytes());
  return all;
}

void LayerCache::clear() {
  entries_.clear();
  once_.clear();
  states_.clear();
  length_ = 0;
}

}  // namespace headlab
