#include "experiments/models/site_probes.h"

#include "core/torch.h"

namespace headlab {

SiteProbes::SiteProbes(Model& model, const std::function<void(HeadProbe&)>& set) {
  for (const auto& site : model.sites()) {
    auto& probe = probes_[site.name];
    if (set) set(probe);
    keys_[site.name] = site.keys;
  }
  current_ = &probes_.begin()->second;
}

void SiteProbes::tell(const Batch& batch) {
  for (auto& [site, probe] : probes_) probe.tokens = batch.tokens_of(keys_.at(site));
}

void SiteProbes::reset() {
  for (auto& [site, probe] : probes_) probe.reset();
}

ProbeSums SiteProbes::take_sums() {
  ProbeSums all;
  for (auto& [site, probe] : probes_) all.merge(probe.take_sums());
  return all;
}

void SiteProbes::add_sums(const ProbeSums& more) {
  for (auto& [site, probe] : probes_) {
    ProbeSums own;
    for (const auto& [key, sums] : more)
      if (key.site == site) own.emplace(key, sums);
    probe.add_sums(own);
  }
}

void SiteProbes::enter(ObservedLayer layer) {
  current_ = &probes_.at(layer.site);
  current_->enter(std::move(layer));
}

Tensor query_rows(const Site& site, const Batch& batch, int64_t T) {
  const Tensor& length = batch.*site.query_length;
  return length.defined() ? within_length(length, T, length.device()) : Tensor();
}

}  // namespace headlab
