#include "variants/switchhead/chosen_experts.h"

#include "core/attention/layers.h"
#include "core/attention/paths/chosen_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Experts from which on sorting takes less time than comparing all pairs, and times as many experts
// as chosen ones up to which one product with all of them takes less than one for each expert.
// scripts/bench/kinds --kinds switchhead --set model.attention.experts=16
constexpr int64_t kFewestSorted = 17, kLargestDenseShare = 4;

// The choices [B,T,H,K] sorted by expert, so that each has its tokens in one piece.
struct ByExpert {
  ChosenRows rows;   // of H*E experts
  Tensor slot, row;  // [N] where among the choices a row was; and back

  Tensor weight;  // [B,T,H,K]

  explicit ByExpert(const ChosenExperts& c) : rows(c.selected.flatten(2).transpose(1, 2)) {
    const int64_t tokens = rows.B * rows.T, E = c.score.size(3);
    const auto experts = c.experts();
    weight = c.score.gather(-1, experts);
    const auto first = at::arange(0, rows.H, E, experts.options()).unsqueeze(1);  // [H,1]
    const auto token = at::arange(tokens, experts.options()).view({rows.B, rows.T, 1, 1});
    slot = at::argsort(((experts + first) * tokens + token).flatten());
    row = at::empty_like(slot).scatter(0, slot, at::arange(rows.size(), slot.options()));
  }
};

}  // namespace

ChosenExperts::ChosenExperts(const Tensor& scores, const Tensor& rank, int64_t count)
    : score(scores), K(count) {
  const int64_t E = scores.size(3);
  const auto own = rank.detach();
  if (E <= kFewestSorted) {  // an expert is chosen that fewer than K others come before
    const auto mine = own.unsqueeze(4), other = own.unsqueeze(3);  // [..,E,E]
    const auto earlier =
        at::ones({E, E}, own.options().dtype(at::kBool)).tril_(-1);  // other < mine
    selected = ((other > mine) | ((other == mine) & earlier)).sum(-1) < K;
    return;
  }
  const auto best = at::sort(own, /*stable=*/true, -1, /*descending=*/true);
  selected = at::zeros(score.sizes(), score.options().dtype(at::kBool))
                 .scatter(-1, std::get<1>(best).narrow(-1, 0, K), true);
}

bool ChosenExperts::few() const {
  return score.is_cuda() || score.size(3) <= kLargestDenseShare * K;
}

Tensor ChosenExperts::kept() const { return score * selected; }

Tensor ChosenExperts::experts() const {
  return selected.nonzero().select(1, 3).view({score.size(0), score.size(1), score.size(2), K});
}

Tensor project_by_experts(const Tensor& x, const Tensor& weight, const ChosenExperts& chosen) {
  if (chosen.few()) {
    const auto kept = chosen.kept();  // [B,T,H,E]
    const auto all = project(x, weight).unflatten(2, {kept.size(2), kept.size(3), -1});
    return (all * kept.to(all.scalar_type()).unsqueeze(4)).sum(3).transpose(1, 2);  // [B,H,T,d]
  }
  const ByExpert sorted(chosen);
  const auto packed = project_rows(x, weight.view({sorted.rows.H, -1, x.size(2)}), {},
                                   sorted.rows);  // [N,d]
  auto sizes = sorted.weight.sizes().vec();
  sizes.push_back(packed.size(1));
  const auto products = packed.index_select(0, sorted.row).view(sizes);  // [B,T,H,K,d]
  const auto weights = sorted.weight.to(packed.scalar_type()).unsqueeze(4);
  return (products * weights).sum(3).transpose(1, 2);  // [B,H,T,d]
}

Tensor sum_by_experts(const Tensor& o, const Tensor& weight, const ChosenExperts& chosen) {
  const ByExpert sorted(chosen);
  const int64_t H = chosen.score.size(2), D = weight.size(0);
  const auto weights = sorted.weight.to(o.scalar_type()).unsqueeze(4);            // [B,T,H,K,1]
  const auto weighted = o.unflatten(2, {H, 1, o.size(2) / H}) * weights;          // [B,T,H,K,d]
  const auto packed = weighted.flatten(0, 3).index_select(0, sorted.slot);        // [N,d]
  const auto by_expert = weight.view({D, sorted.rows.H, -1}).permute({1, 2, 0});  // [HE,d,D]
  return sum_rows(packed, by_expert, sorted.rows);
}

Tensor spread_over_experts(const Tensor& o, const Tensor& factors) {
  return (o.unsqueeze(3) * factors.transpose(1, 2).unsqueeze(4).to(o.scalar_type())).flatten(3);
}

Tensor report_experts(HeadObserver& observer, const std::string& side, const ChosenExperts& chosen,
                      const Tensor& counted) {
  at::NoGradGuard no_grad;
  const auto& score = chosen.score;
  const int64_t B = score.size(0), T = score.size(1);
  const auto counts = counted.defined() ? counted : at::ones({B, T}, score.options()).to(at::kBool);
  const auto ignored = counts.logical_not().view({B, T, 1, 1});
  const auto tokens = counts.sum();
  const auto sum = [&](const Tensor& of_token) {
    return of_token.to(at::kDouble).masked_fill(ignored, 0).sum(at::IntArrayRef({0, 1}));  // [H,E]
  };
  const auto report = [&](const char* what, const Tensor& of_token) {
    const auto sums = sum(of_token);
    observer.report(side + what, sums, tokens.expand_as(sums));
  };
  if (observer.wants_statistics()) {
    report("_probability", score);
    report("_selected", chosen.selected);
  }
  return (sum(chosen.kept()) / tokens.clamp_min(1)).unsqueeze(0).unsqueeze(0);
}

}  // namespace headlab
