// A map of one's own, and heads that take any map by option:
//   A_ij = relu(z_ij - least_h) / (i + 1), i the place of the query; each head learns its least
// score, which stays above a floor. Without least: Wortsman et al., arXiv 2309.08586.
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

class ReluMap : public Map {
 public:
  ReluMap(double floor, const Tensor& least) : floor_(floor), least_(least) {}

  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall&) const override {
    const auto a = at::relu(z - least_.to(z.options()).view({-1, 1, 1}));  // [B,H,T,S]
    return allowed.defined() ? a.masked_fill(allowed.logical_not(), 0) : a;
  }
  Tensor row_divisors(const AttentionCall& call, int64_t T,
                      const at::TensorOptions& options) const override {
    return (query_places(call, T, options.device()) + 1).to(options.dtype());
  }
  MapPtr of_heads(int64_t first, int64_t count) const override {
    return std::make_shared<ReluMap>(floor_, some_of_heads(least_, first, count));
  }
  MapPtr with_learned(const Tensor& least) const override {
    return std::make_shared<ReluMap>(floor_, least);
  }
  void after_step(Tensor& least) const override { least.clamp_min_(floor_); }

  std::vector<Statistic> statistics() const override {
    return {head_statistic("empty_rows", "1", "share of rows without weight",
                           "share of rows of A = 0")};
  }
  void report(const MapRows& rows, HeadObserver& observer) const override {
    report_rows(observer, "empty_rows", rows.sums == 0, rows.rows);
  }

 private:
  double floor_;
  Tensor least_;  // [H], or [1] for all
};

struct ReluOptions : MapOptions {
  double floor = 0;

  void visit(Fields& f) override { f("floor", floor, "no head's least score falls below it"); }
  MapPtr map() const override { return std::make_shared<ReluMap>(floor, at::full({1}, floor)); }
  std::optional<Learned> learned(int64_t heads) const override {
    return Learned{"least", at::full({heads}, floor)};
  }
};

const RegisterMap<ReluOptions> map("relu");
const RegisterHeads<MapHeads<MappedOptions>> heads("mapped", "heads with a map by option");

}  // namespace
}  // namespace headlab
