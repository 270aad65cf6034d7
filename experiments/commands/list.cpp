// `headlab list`: a line a kind of heads.
#include <fmt/format.h>

#include <algorithm>

#include "core/head_kinds.h"
#include "experiments/commands/command.h"

namespace headlab {
namespace {

struct ListOptions {
  bool json = false;

  void visit(Arguments& a) { a.flag("--json", json, "print one JSON object"); }
};

int run_list(const ListOptions& o) {
  Report report;
  size_t width = 0;
  for (const auto& name : head_names()) width = std::max(width, name.size());
  for (const auto& name : head_names()) {
    const auto& summary = head_kind(name).summary;
    report.object[name] = summary;
    report.text += fmt::format("{:<{}}  {}\n", name, width, summary);
  }
  return print(report, o.json);
}

const RegisterCommand list_command({.name = "list",
                                    .summary = "list the kinds of heads",
                                    .example = "headlab list",
                                    .group = Group::kExtend},
                                   run_list);

}  // namespace
}  // namespace headlab
