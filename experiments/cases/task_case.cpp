// Files of a synthetic task's examples and labels (`headlab_task`): labels them by the task's own
// rule, from the ids and what they do not tell, and compares exactly. What such a file says of
// distributions is for draws, of which it has none.
#include <fmt/format.h>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

struct TaskConfig : Block {
  KindBlock data{data_registry(), "recall"};
  void visit(Fields& f) override { f("data", data, "the task"); }
};

class TaskCase {
 public:
  explicit TaskCase(const CaseFile& file) : file_(file) {
    TaskConfig config;
    const std::string name = file.name + " (config)";
    auto options = parse_config(file.text("config"), name);
    ConfigNode whole;
    whole.set("data", std::move(options));
    read_config(config, whole);
    source_ = open_data(config.data);
    task_ = dynamic_cast<const RuleTask*>(source_.get());
    if (!task_) file.refuse(config.data.kind() + " has no rule that labels ids");
    ids_ = integers("in.ids", 2, source_->vocabulary());
    if (ids_.size(1) != source_->context())
      file.refuse(fmt::format("in.ids has {} places, the config's context is {}", ids_.size(1),
                              source_->context()));
  }

  Tensor labels() const {
    const auto last = given("in.last", 1, source_->vocabulary());
    const auto queries = given("in.queries", 2, source_->context());
    const auto map = integers("in.map", 1, source_->vocabulary());
    std::vector<Tensor> rows;
    for (int64_t n = 0; n < ids_.size(0); ++n) {
      RuleExample example{.ids = integers_of(ids_[n])};
      if (last.defined()) example.last = last[n].item<int64_t>();
      if (queries.defined()) example.queries = integers_of(queries[n]);
      if (map.defined()) example.map = integers_of(map);
      rows.push_back(at::tensor(label(n, example), at::kLong));
    }
    return rows.empty() ? at::empty_like(ids_) : at::stack(rows);  // [N,T]
  }

 private:
  std::vector<int64_t> label(int64_t n, const RuleExample& example) const {
    try {
      return task_->label(example, /*evaluated=*/false);
    } catch (const DataError& error) {
      file_.refuse(fmt::format("in.ids: example {}, {}", n, error.what()));
    }
  }

  // Integers of 0 .. below - 1; undefined where the file has none. in.ids it must have.
  Tensor integers(const std::string& name, int64_t dimensions, int64_t below) const {
    const auto tensor = name == "in.ids" ? file_.at(name) : file_.find(name);
    if (!tensor.defined()) return {};
    if (!at::isIntegralType(tensor.scalar_type(), false) || tensor.dim() != dimensions)
      file_.refuse(fmt::format("{} must be integers of {} dimensions", name, dimensions));
    if (tensor.numel() > 0 &&
        (tensor.min().item().toLong() < 0 || tensor.max().item().toLong() >= below))
      file_.refuse(fmt::format("{} must lie in 0 .. {}", name, below - 1));
    return tensor;
  }

  // The same, of each example.
  Tensor given(const std::string& name, int64_t dimensions, int64_t below) const {
    const auto tensor = integers(name, dimensions, below);
    if (tensor.defined() && tensor.size(0) != ids_.size(0))
      file_.refuse(name + " must have as many rows as in.ids");
    return tensor;
  }

  const CaseFile& file_;
  std::shared_ptr<DataSource> source_;
  const RuleTask* task_ = nullptr;
  Tensor ids_;  // [N,T]
};

bool is_of_distribution(const std::string& name) {
  return name.ends_with(".mean") || name.ends_with(".std");
}

Judged judge_task(const CaseFile& file, const at::Device&, Backend) {
  CaseFile asked = file;
  std::erase_if(asked.expected, [](const auto& item) { return is_of_distribution(item.first); });
  return judged(asked, {{"out.targets", TaskCase(file).labels()}});
}

const RegisterCase task_cases({.name = "1", .judge = judge_task, .key = "headlab_task"});

}  // namespace
}  // namespace headlab
