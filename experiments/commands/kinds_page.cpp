// docs/kinds.md: every kind of heads with what its file and a small layer of it say.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/attention/call/statistic.h"
#include "experiments/commands/head_facts.h"
#include "experiments/commands/reference_pages.h"

namespace headlab {
namespace {

std::string links(const std::vector<std::string>& papers) {
  std::string text;
  for (const auto& paper : papers)
    text += fmt::format("{}[{}](https://arxiv.org/abs/{})", text.empty() ? "" : ", ", paper, paper);
  return text;
}

std::string statistics(const std::vector<Statistic>& table) {
  auto page = table_of_texts({"statistic", "unit", "what", "formula"});
  for (const auto& s : table)
    page.add({code(s.name), std::string_view(s.units) == "1" ? "" : s.units, s.long_name,
              code(s.formula)});
  return page.markdown();
}

std::string init_sentence(const HeadFacts& f) {
  if (!f.init) return "`init_weights: host` is refused.";
  if (f.init->empty()) return "`init_weights`: `paper` and `host` are the same.";
  std::string text = "`init_weights`:\n";
  for (const auto& d : *f.init)
    text += fmt::format("\n- {}: by `paper` {}; by `host` {}", d.parameters, d.paper, d.host);
  return text;
}

std::string section(const HeadFacts& f) {
  std::string yes, no;
  for (const auto& [what, holds] : f.promises)
    (holds ? yes : no) += fmt::format("{}{}", (holds ? yes : no).empty() ? "" : ", ", what);
  std::string text = fmt::format("## {}\n\n{}.\n\n", f.name, f.summary);
  if (!f.papers.empty()) text += fmt::format("arXiv: {}\n\n", links(f.papers));
  if (!f.opening.empty()) text += fmt::format("```text\n{}\n```\n\n", f.opening);
  text += field_table(f.options) + '\n';
  text += init_sentence(f) + "\n\n";
  text += fmt::format("Promises: {}. Not: {}.\n\n", yes, no.empty() ? "nothing of these" : no);
  text += fmt::format("Parameters: `{}`\n\n", fmt::join(f.parameters, "`, `"));
  if (!f.own.empty()) text += "Statistics of its own:\n\n" + statistics(f.own) + '\n';
  if (!f.without.empty()) text += fmt::format("Without: `{}`\n\n", fmt::join(f.without, "`, `"));
  return text;
}

}  // namespace

std::string kinds_table() {
  auto table = table_of_texts({"kind", "what", "paper, arXiv"});
  for (const auto& name : head_names()) {
    const auto facts = facts_of(head_kind(name));
    table.add({code(name), facts.summary, links(facts.papers)});
  }
  return table.markdown();
}

std::string kinds_page() {
  std::string text;
  for (const auto& name : head_names()) text += section(facts_of(head_kind(name)));
  return text + "## Statistics of every kind\n\n" + statistics(statistic_table());
}

}  // namespace headlab
