#include "experiments/data/answers.h"

#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

Answers answers_of_shape(const DataShape& shape) {
  const bool classes = shape.classes > 0;
  const int64_t all = classes ? shape.classes : shape.vocabulary;
  auto among = at::ones({all}, at::kBool);
  const auto leave_out = [&](const std::optional<int64_t>& id) {
    if (!classes && id && *id < all) among[*id] = false;
  };
  leave_out(shape.pad), leave_out(shape.mask);
  if (shape.start != shape.end) leave_out(shape.start);  // some models have one token for both
  if (shape.mask) leave_out(shape.end);
  const auto count = with_commas(among.sum().item<int64_t>());
  return {.among = among, .of = fmt::format("any of {} {}", count, classes ? "classes" : "tokens")};
}

}  // namespace

Answers answers_of(const DataSource& data, const Batch& batch) {
  return data.answers(batch).value_or(answers_of_shape(data.shape()));
}

Tensor ids_between(int64_t first, int64_t end, int64_t vocabulary) {
  auto ids = at::zeros({vocabulary}, at::kBool);
  ids.slice(0, first, end).fill_(true);
  return ids;
}

}  // namespace headlab
