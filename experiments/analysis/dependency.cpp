#include "experiments/analysis/dependency.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/torch.h"

namespace headlab {
namespace {

void check_words(const Dependencies& words, int64_t relations) {
  const int64_t n = std::ssize(words.heads);
  TORCH_CHECK(n > 0 && std::ssize(words.relations) == n, n, " heads for ", words.relations.size(),
              " relations");
  for (int64_t i = 0; i < n; ++i) {
    TORCH_CHECK(words.heads[i] >= 0 && words.heads[i] <= n, "head ", words.heads[i], " of ", n,
                " words");
    TORCH_CHECK(words.relations[i] >= 1 && words.relations[i] < relations, "relation ",
                words.relations[i], " of ", relations, ", the first of which is all");
  }
}

// Adds right [...,n] to sums [...,R], each word at its relation and at "all".
void add_by_relation(Tensor& sums, const Tensor& right, const Tensor& relation) {
  sums.select(-1, 0).add_(right.sum(-1));
  sums.index_add_(-1, relation, right);
}

}  // namespace

Tensor align_words(const Tensor& a, const Tensor& word, int64_t words) {
  TORCH_CHECK(
      a.dim() >= 2 && word.dim() == 1 && a.size(-1) == word.size(0) && a.size(-2) == word.size(0),
      "a map ", a.sizes(), " for the words of ", word.sizes(), " tokens");
  const auto belongs = word.unsqueeze(1) == at::arange(words, word.options());  // [T,n]
  const auto sum = belongs.to(a.device(), at::kDouble);
  const auto tokens = sum.sum(0);  // [n]
  TORCH_CHECK(tokens.ge(1).all().item<bool>(), "a word has no token");
  return at::matmul((sum / tokens).t(), at::matmul(a.to(at::kDouble), sum));  // [...,n,n]
}

DependencyScores::DependencyScores(int64_t layers, int64_t heads, int64_t relations)
    : right_(at::zeros({2, layers, heads, relations}, at::kDouble)),
      head_right_(at::zeros({layers, heads, relations}, at::kDouble)),
      count_(at::zeros({relations}, at::kDouble)),
      head_count_(at::zeros({relations}, at::kDouble)) {}

void DependencyScores::add(const Tensor& a, const Dependencies& words) {
  at::NoGradGuard no_grad;
  check_words(words, count_.size(0));
  const int64_t n = std::ssize(words.heads);
  TORCH_CHECK(a.sizes() == at::IntArrayRef({right_.size(1), right_.size(2), n, n}), "a map ",
              a.sizes(), " for ", n, " words of ", right_.sizes());
  const auto heads = at::tensor(words.heads, at::kLong) - 1;  // [n] -1: the root
  const auto relation = at::tensor(words.relations, at::kLong);
  const auto others = a.to(at::kCPU).masked_fill(at::eye(n, at::kBool), 0);
  const auto by_row = others.argmax(-1), by_column = others.argmax(-2);  // [L,H,n]
  auto dependent_row = right_.select(0, 0), head_column = right_.select(0, 1);
  add_by_relation(dependent_row, by_row.eq(heads).to(at::kDouble), relation);
  add_by_relation(head_column, by_column.eq(heads).to(at::kDouble), relation);
  add_by_relation(count_, at::ones({n}, at::kDouble), relation);

  // Row w is right for the relation of the word it points at, where w is that word's head.
  const auto found = heads.index({by_row}).eq(at::arange(n)).to(at::kDouble);  // [L,H,n]
  head_right_.scatter_add_(-1, relation.index({by_row}), found);
  std::set<std::pair<int64_t, int64_t>> head_words;
  for (int64_t i = 0; i < n; ++i)
    if (words.heads[i] > 0) head_words.emplace(words.heads[i], words.relations[i]);
  for (const auto& [head, r] : head_words) head_count_[r] += 1;
}

Tensor DependencyScores::accuracy() const { return right_ / count_; }
Tensor DependencyScores::accuracy_head_row() const { return head_right_ / head_count_; }

DependencyBaselines::DependencyBaselines(int64_t relations, std::vector<int64_t> offsets)
    : offsets_(std::move(offsets)),
      right_(at::zeros({std::ssize(offsets_), relations}, at::kDouble)),
      count_(at::zeros({relations}, at::kDouble)),
      places_(relations) {}

void DependencyBaselines::add(const Dependencies& words) {
  check_words(words, count_.size(0));
  const int64_t n = std::ssize(words.heads);
  const auto heads = at::tensor(words.heads, at::kLong);
  const auto relation = at::tensor(words.relations, at::kLong);
  const auto offsets = at::tensor(offsets_, at::kLong).unsqueeze(1);
  const auto guess = (at::arange(1, n + 1) + offsets).clamp(0, n);  // [offsets,n]
  add_by_relation(right_, guess.eq(heads).to(at::kDouble), relation);
  add_by_relation(count_, at::ones({n}, at::kDouble), relation);
  for (int64_t i = 0; i < n; ++i)
    if (words.heads[i] > 0) ++places_[words.relations[i]][words.heads[i] - (i + 1)];
}

Tensor DependencyBaselines::fixed_offset() const { return right_ / count_; }

Tensor DependencyBaselines::relative_place() const {
  auto best =
      at::full({2, 2, count_.size(0)}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  for (int64_t r = 1; r < count_.size(0); ++r)
    for (const int64_t sign : {1, -1}) {
      int64_t total = 0, most = 0, place = 0;
      for (const auto& [offset, words] : places_[r]) {
        total += words;
        const int64_t here = sign * offset;
        const bool nearer = std::abs(here) < std::abs(place) || here == -std::abs(place);
        if (words > most || (words == most && nearer)) most = words, place = here;
      }
      if (total == 0) continue;
      const int64_t direction = sign > 0 ? 0 : 1;
      best[0][direction][r] = static_cast<double>(most) / static_cast<double>(total);
      best[1][direction][r] = place;
    }
  return best;
}

}  // namespace headlab
