// `headlab list`: a line a kind of heads.
#include <fmt/format.h>

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
  for (const auto& name : head_names()) {
    const auto& summary = head_kind(name).summary;
    report.object[name] = summary;
    report.text += fmt::format("{:<14}{}\n", name, summary);
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
