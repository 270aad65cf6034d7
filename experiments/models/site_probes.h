// Watches a whole model: one probe a site, each of which is told what stands at its site's keys.
#pragma once

#include "core/observe/probe.h"
#include "experiments/models/model.h"

namespace headlab {

class SiteProbes : public HeadObserver {
 public:
  // `set` says what each probe is to record.
  explicit SiteProbes(Model& model, const std::function<void(HeadProbe&)>& set = {});
  SiteProbes(const SiteProbes&) = delete;
  SiteProbes& operator=(const SiteProbes&) = delete;

  // Of the pass to come: tokens of the keys, where they are tokens. On the model's device.
  void tell(const Batch& batch);
  void reset();  // all forget what they saw
  ProbeSums take_sums();
  void add_sums(const ProbeSums& more);
  HeadProbe& at(const std::string& site) { return probes_.at(site); }
  const HeadProbe& at(const std::string& site) const { return probes_.at(site); }

  bool wants_statistics() const override { return current_->wants_statistics(); }
  bool wants_maps() const override { return current_->wants_maps(); }
  Tensor token_classes() const override { return current_->token_classes(); }
  void enter(ObservedLayer layer) override;
  void softmax(const AttentionCall& call, const Tensor& out, const Tensor& counted) override {
    current_->softmax(call, out, counted);
  }
  void weights(const ObservedMap& map, const HeadCall& call) override {
    current_->weights(map, call);
  }
  Tensor map_before(const Tensor& map) override { return current_->map_before(map); }
  void outputs(const Tensor& o, const Tensor& edited, const HeadCall& call) override {
    current_->outputs(o, edited, call);
  }
  void report(const std::string& name, const Tensor& sums, const Tensor& counts) override {
    current_->report(name, sums, counts);
  }

 private:
  std::map<std::string, HeadProbe> probes_;
  std::map<std::string, Tensor Batch::*> keys_;
  HeadProbe* current_ = nullptr;  // of the site that the pass is in
};

// Which rows of a site's queries are there, bool [B,T]; undefined: all.
Tensor query_rows(const Site& site, const Batch& batch, int64_t T);

}  // namespace headlab
