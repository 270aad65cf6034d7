#include "core/attention/observer.h"

#include "core/torch.h"

namespace headlab {

void report_rows(HeadObserver& observer, const char* name, const Tensor& of_row,
                 const Tensor& counted) {
  const auto of_heads = [](const Tensor& t) { return t.sum(at::IntArrayRef({0, 2})); };  // [H]
  observer.report(name, of_heads(at::where(counted, of_row.to(at::kDouble), 0.0)),
                  of_heads(counted));
}

}  // namespace headlab
