#include "core/attention/attend.h"
#include "core/attention/call/choice_observer.h"
#include "core/torch.h"
#include "variants/families/chosen_blocks.h"

namespace headlab {
namespace {

// Share of its choices that head g makes as head h does: free [B,H,T,N] bool.
void report_overlap(HeadObserver& observer, const Tensor& free) {
  const auto f = free.to(at::kDouble).transpose(0, 1).flatten(1);  // [H,BTN]
  const auto count = f.sum(1, /*keepdim=*/true);
  observer.report("choice_overlap", f.mm(f.t()), count.expand({-1, f.size(0)}));
}

}  // namespace

void observe_choice(const Tensor& blocks, const BlockRules& rules, int64_t S,
                    const HeadCall& call) {
  auto* observer = choice_observer(call);
  if (!observer) return;
  const auto sizes = blocks.sizes();
  const int64_t N = rules.blocks(S);
  const auto chosen =
      at::zeros({sizes[0], sizes[1], sizes[2], N + 1}, blocks.options().dtype(at::kByte));
  chosen.scatter_(3, blocks.masked_fill(blocks < 0, N), 1);
  observer->choice("blocks", chosen.narrow(3, 0, N).contiguous());
}

std::vector<Statistic> choice_statistics() {
  auto recall = head_statistic("choice_recall", "1", "dense mass on the chosen tokens",
                               "sum over the tokens of chosen blocks of the softmax over all keys");
  recall.always = false;
  Statistic overlap{.name = "choice_overlap",
                    .long_name = "share of choices that two heads have in common",
                    .formula = "share of equal choices; contested rows",
                    .per = Per::kPair};
  return {head_statistic("own_block", "1", "mass on the query's own block",
                         "sum_j a_ij, j in the block of i"),
          head_statistic("chosen_mass", "1", "mass on blocks that no rule forces",
                         "sum_j a_ij, j in blocks chosen by score; contested rows"),
          head_statistic("chosen_distance", "block", "distance to blocks that no rule forces",
                         "mean of own block - block, of those chosen by score; contested rows"),
          overlap, recall};
}

void report_choice(const Tensor& q, const Tensor& k, const Tensor& blocks, const BlockRules& rules,
                   const PackedKeys& tokens, const HeadCall& call, double scale) {
  auto& observer = *call.observer;
  if (!observer.wants_statistics() || q.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const int64_t T = q.size(2), S = k.size(2), N = rules.blocks(S);
  const auto z = scores(q, k, call, scale);  // [B,H,T,S]
  const auto weights = [&](const Tensor& chosen) {
    const auto mask = masked_to_chosen(chosen, rules, tokens, call, T, S).mask;
    return masked_softmax(z, allowed_keys(mask, T, S, z.device()));
  };
  const auto a = weights(blocks), dense = weights({});
  const auto by_query = [](const Tensor& t) { return t.unsqueeze(1).unsqueeze(3); };
  const auto own = by_query(tokens.query_places(T).floor_divide(rules.block));  // [.,1,T,1]
  const auto of_key = tokens.places.floor_divide(rules.block).view({-1, 1, 1, S});
  const auto j = at::arange(N, own.options());
  const auto sees = (blocks.unsqueeze(-1) == j).any(3);  // [B,H,T,N]
  const auto free = sees & (j >= rules.first_blocks) & (j <= own - rules.local_blocks);
  const auto of_keys = [&](const Tensor& of_blocks) {  // [B,H,T,N] -> [B,H,T,S]
    return of_blocks.gather(3, of_key.clamp_min(0).expand(z.sizes())) & (of_key >= 0);
  };
  const auto mass = [](const Tensor& p, const Tensor& on) { return (p * on).sum(-1); };
  const auto counted = counted_pairs(a, dense > 0, call.mask).any(-1);  // [B,H,T]
  const auto contested = counted & (own.squeeze(3) >= rules.selected);
  const auto count = free.sum(-1);
  report_rows(observer, "own_block", mass(a, of_key == own), counted);
  report_rows(observer, "chosen_mass", mass(a, of_keys(free)), contested);
  report_rows(observer, "chosen_distance", ((own - j) * free).sum(-1) / count.clamp_min(1),
              contested & (count > 0));
  report_rows(observer, "choice_recall", mass(dense, of_keys(sees)), counted);
  report_overlap(observer, free & contested.unsqueeze(3));
}

}  // namespace headlab
