#include "experiments/conversion/head_alignment.h"

#include <algorithm>
#include <numeric>

#include "core/torch.h"

namespace headlab {
namespace {

using Order = std::vector<int64_t>;

// [Hkv,d,D], or [Hkv,d,D+1] with the biases as a last column
Tensor by_head(const NamedTensors& weights, const std::string& name, int64_t heads) {
  const auto rows = weights.at(name + ".weight").unflatten(0, {heads, -1});
  const auto bias = weights.find(name + ".bias");
  if (bias == weights.end()) return rows;
  return at::cat({rows, bias->second.view({heads, -1, 1})}, 2);
}

// |x_g - x_h|^2 of all pairs, of the heads as they are or, `turning`, as near as a rotation of one
// brings them; relative to the sum over all heads. x [N,d,.] -> [N,N]
Tensor distances(const Tensor& x, bool turning) {
  const auto squared = x.square().sum({1, 2});                          // [N]
  const auto products = at::matmul(x.unsqueeze(1), x.transpose(1, 2));  // [N,N,d,d]
  const auto inner = turning ? at::linalg_svdvals(products).sum(-1)     // [N,N]
                             : products.diagonal(0, 2, 3).sum(-1);
  return (squared.unsqueeze(0) + squared.unsqueeze(1) - 2 * inner) /
         squared.sum().clamp_min(1e-300);
}

// The same groups, by their first heads, which are the least: heads move no more than they must.
Order in_order(const Order& order, int64_t size) {
  std::vector<Order> groups;
  for (auto head = order.begin(); head != order.end(); head += size) {
    groups.emplace_back(head, head + size);
    std::sort(groups.back().begin(), groups.back().end());
  }
  std::sort(groups.begin(), groups.end());
  Order sorted;
  for (const auto& group : groups) sorted.insert(sorted.end(), group.begin(), group.end());
  return sorted;
}

// Which heads stand in each run of `size` places: swaps until none lowers the sum of distances
// within the groups.
Order group(const Tensor& distance, int64_t size) {
  const int64_t heads = distance.size(0);
  const auto d = distance.accessor<double, 2>();
  Order order(heads);
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto to_group = [&](int64_t place, int64_t other) {  // of the head there to other's group
    double sum = 0;
    for (int64_t n = other / size * size; n < (other / size + 1) * size; ++n)
      if (n != place && n != other) sum += d[order[place]][order[n]];
    return sum;
  };
  for (bool better = true; better;) {
    better = false;
    for (int64_t x = 0; x < heads; ++x)
      for (int64_t y = (x / size + 1) * size; y < heads; ++y) {
        const double now = to_group(x, x) + to_group(y, y), then = to_group(x, y) + to_group(y, x);
        if (then >= now - 1e-12) continue;
        std::swap(order[x], order[y]);
        better = true;
      }
  }
  return in_order(order, size);
}

// Rotations [N,d,d] that bring a group's heads x [N,d,.] near each other: each in turn towards the
// mean of all, from where the first one stands.
Tensor towards_each_other(const Tensor& x) {
  constexpr int kRounds = 20;
  const auto onto = [&](const Tensor& target) {  // the nearest to target, of every head
    const auto [u, s, vt] = at::linalg_svd(at::matmul(target, x.transpose(1, 2)));
    return at::matmul(u, vt);
  };
  auto turn = onto(x[0]);
  for (int round = 0; round < kRounds; ++round) turn = onto(at::matmul(turn, x).mean(0));
  return turn;
}

Tensor turns(const Tensor& x, int64_t groups) {  // [Hkv,d,.] -> [Hkv,d,d]
  std::vector<Tensor> all;
  for (const auto& group : x.chunk(groups)) all.push_back(towards_each_other(group));
  return at::cat(all);
}

// Applies turn [H,d,d] to the rows of weight and bias of a projection.
void turn_rows(NamedTensors& weights, const std::string& name, const Tensor& turn) {
  auto& weight = weights.at(name + ".weight");
  weight = at::matmul(turn, weight.unflatten(0, {turn.size(0), -1})).flatten(0, 1);
  if (const auto bias = weights.find(name + ".bias"); bias != weights.end())
    bias->second = at::matmul(turn, bias->second.view({turn.size(0), -1, 1})).flatten();
}

void move_heads(NamedTensors& weights, const Order& heads, const Order& kv_heads) {
  const auto move = [&](const std::string& name, int64_t dim, const Order& order) {
    const auto found = weights.find(name);
    if (found == weights.end()) return;
    const auto blocks = found->second.unflatten(dim, {std::ssize(order), -1});
    found->second =
        blocks.index_select(dim, at::tensor(order, at::kLong)).flatten(dim, dim + 1).contiguous();
  };
  for (const char* part : {".weight", ".bias"}) {
    move(std::string("q") + part, 0, heads);
    move(std::string("k") + part, 0, kv_heads);
    move(std::string("v") + part, 0, kv_heads);
  }
  move("o.weight", 1, heads);
  move("alive", 0, heads);
}

}  // namespace

AlignedHeads align_heads(NamedTensors weights, const HeadShape& shape, int64_t groups,
                         bool turn_keys) {
  const int64_t kv = shape.kv_heads, queries = shape.heads / kv;  // that share a kv head
  const auto distance = distances(by_head(weights, "k", kv), turn_keys) +
                        distances(by_head(weights, "v", kv), /*turning=*/true);
  const auto kv_order = group(distance, kv / groups);
  AlignedHeads aligned;
  for (const int64_t g : kv_order)
    for (int64_t n = 0; n < queries; ++n) aligned.order.push_back(g * queries + n);
  move_heads(weights, aligned.order, kv_order);

  if (turn_keys) {
    const auto turn = turns(by_head(weights, "k", kv), groups);
    turn_rows(weights, "k", turn);
    turn_rows(weights, "q", turn.repeat_interleave(queries, 0));
  }
  const auto turn = turns(by_head(weights, "v", kv), groups);
  turn_rows(weights, "v", turn);
  auto& o = weights.at("o.weight");                                        // o R^T undoes R
  const auto columns = o.unflatten(1, {shape.heads, -1}).transpose(0, 1);  // [H,D,d]
  const auto back = turn.repeat_interleave(queries, 0).transpose(1, 2);
  o = at::matmul(columns, back).transpose(0, 1).flatten(1).contiguous();
  aligned.weights = std::move(weights);
  return aligned;
}

}  // namespace headlab
