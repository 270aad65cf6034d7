// `headlab describe KIND`: options, parameters and promises of a kind of heads.
#include <fmt/format.h>

#include "core/head_kinds.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/report.h"

namespace headlab {
namespace {

using Json = nlohmann::ordered_json;

// A small layer, to ask what the kind promises and registers.
std::shared_ptr<AttentionHeads> example(const std::string& kind) {
  HeadShape shape;
  shape.d_model = 16, shape.heads = shape.kv_heads = 4, shape.head_dim = 4, shape.context = 16;
  return make_heads(KindBlock(head_registry(), kind), shape);
}

std::vector<std::pair<const char*, bool>> promises(const HeadTraits& t) {
  return {{"independent heads", t.independent}, {"rows sum to one", t.rows_sum_to_one},
          {"map over tokens", t.token_map},     {"causal", t.causal},
          {"decodes with a cache", t.decodes},  {"cross-attention", t.cross},
          {"grouped kv heads", t.grouped},      {"rotary positions", t.rotary}};
}

Json object_of(const HeadKind& kind) {
  Json object{{"kind", kind.name}, {"summary", kind.summary}, {"options", Json::array()}};
  for (const auto& f : describe_block(*kind.options()))
    object["options"].push_back({{"name", f.name},
                                 {"type", f.type},
                                 {"default", f.default_text},
                                 {"limits", f.limits},
                                 {"help", f.help}});
  const auto heads = example(kind.name);
  for (const auto& [what, holds] : promises(heads->traits())) object["traits"][what] = holds;
  for (const auto& p : heads->named_parameters()) object["parameters"].push_back(p.key());
  return object;
}

std::string text_of(const HeadKind& kind) {
  auto text = fmt::format("{}: {}\n\noptions\n", kind.name, kind.summary);
  for (const auto& f : describe_block(*kind.options())) {
    std::string facts = f.default_text.empty() ? "" : "default " + f.default_text;
    if (!f.limits.empty()) facts += (facts.empty() ? "" : ", ") + f.limits;
    text += fmt::format("  {:<14} {}{}\n  {:<14} {}\n", f.name, f.type,
                        facts.empty() ? "" : " (" + facts + ")", "", f.help);
  }
  const auto heads = example(kind.name);
  text += "\npromises\n";
  for (const auto& [what, holds] : promises(heads->traits()))
    text += fmt::format("  {:<22} {}\n", what, holds ? "yes" : "no");
  text += "\nparameters\n ";
  for (const auto& p : heads->named_parameters()) text += " " + p.key();
  return text + "\n";
}

// The rows of the README's table of kinds.
void print_table() {
  fmt::print("| kind | what | options |\n|---|---|---|\n");
  for (const auto& name : head_names()) {
    const auto& kind = head_kind(name);
    std::string options;
    for (const auto& f : describe_block(*kind.options()))
      options += fmt::format("{}`{}`", options.empty() ? "" : ", ", f.name);
    fmt::print("| `{}` | {} | {} |\n", name, kind.summary, options);
  }
}

struct DescribeOptions {
  std::string kind;
  bool json = false, table = false;

  void visit(Arguments& a) {
    a.option("kind", kind, "kind of heads");
    a.flag("--json", json, "print one JSON object");
    a.flag("--table", table, "print the table of all kinds, in Markdown");
  }
};

int run_describe(const DescribeOptions& o) {
  if (o.table) {
    print_table();
    return kDone;
  }
  if (o.kind.empty()) throw ConfigError("describe: name a kind of heads, or use --table");
  const auto& kind = head_kind(o.kind);
  return print({.object = object_of(kind), .text = text_of(kind)}, o.json);
}

const RegisterCommand describe_command(
    {.name = "describe",
     .summary = "describe a kind of heads: options, promises, parameters",
     .example = "headlab describe mha"},
    run_describe);

}  // namespace
}  // namespace headlab
