#include "variants/families/packed_keys.h"

#include "core/torch.h"

namespace headlab {
namespace {

// bool [B or 1,S]; undefined: all are visible.
Tensor visible_of(const HeadCall& call, int64_t S, const at::Device& device) {
  auto visible = within_length(call.mask.key_length, S, device);
  // A mask of pairs, as a bias of -infinity makes it, hides no token from all queries alike.
  const auto& mask = call.mask.allowed;
  const bool of_keys = mask.defined() && (mask.dim() < 2 || mask.size(-2) == 1) &&
                       (mask.dim() < 3 || mask.size(-3) == 1);
  if (of_keys) visible = both_allowed(visible, mask.reshape({-1, mask.size(-1)}).expand({-1, S}));
  // On a GPU the question would wait for all work that is queued there.
  const bool all = visible.defined() && visible.is_cpu() && visible.all().item<bool>();
  return all ? Tensor() : visible;
}

}  // namespace

PackedKeys::PackedKeys(const HeadCall& call, int64_t B, int64_t S) {
  const auto index = call.positions.options();
  const auto tokens = at::arange(S, index).unsqueeze(0);  // [1,S]
  const auto visible = visible_of(call, S, index.device());
  places = tokens;
  if (!visible.defined()) return;
  any_hidden_ = true;
  places = (visible.cumsum(1) - 1).masked_fill(visible.logical_not(), -1);
  // Padding behind the others moves nothing.
  if (visible.is_cpu() && ((places == tokens) | (places < 0)).all().item<bool>()) return;
  order = std::get<1>(visible.logical_not().to(at::kByte).sort(/*stable=*/true, 1, false))
              .expand({B, S});
}

Tensor PackedKeys::hidden_queries(int64_t T) const {
  if (!any_hidden_) return {};
  return (query_places(T) < 0).unsqueeze(1).unsqueeze(3);
}

Tensor PackedKeys::closed_up(const Tensor& t) const {
  if (!order.defined()) return t;
  const int64_t B = t.size(0), S = t.size(2);
  return t.gather(2, order.view({B, 1, S, 1}).expand(t.sizes()));
}

Tensor PackedKeys::pairs(int64_t T, int64_t back) const {
  const auto key = places.unsqueeze(1).unsqueeze(1);  // [.,1,1,S]
  const auto query = query_places(T).unsqueeze(1).unsqueeze(3);
  return (key >= 0) & (key <= query) & (key >= query - back);  // of a hidden query none
}

}  // namespace headlab
