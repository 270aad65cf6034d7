// `headlab describe KIND`: options, parameters and promises of a kind of heads.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/head_kinds.h"
#include "core/torch.h"
#include "experiments/commands/command.h"

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

void print_text(const HeadKind& kind) {
  fmt::print("{}: {}\n\noptions\n", kind.name, kind.summary);
  for (const auto& f : describe_block(*kind.options())) {
    std::string facts = f.default_text.empty() ? "" : "default " + f.default_text;
    if (!f.limits.empty()) facts += (facts.empty() ? "" : ", ") + f.limits;
    fmt::print("  {:<14} {}{}\n  {:<14} {}\n", f.name, f.type,
               facts.empty() ? "" : " (" + facts + ")", "", f.help);
  }
  const auto heads = example(kind.name);
  fmt::print("\npromises\n");
  for (const auto& [what, holds] : promises(heads->traits()))
    fmt::print("  {:<22} {}\n", what, holds ? "yes" : "no");
  fmt::print("\nparameters\n ");
  for (const auto& p : heads->named_parameters()) fmt::print(" {}", p.key());
  fmt::print("\n");
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

const RegisterCommand describe_command({
    .name = "describe",
    .summary = "describe a kind of heads: options, promises, parameters",
    .example = "headlab describe mha",
    .add =
        [](Arguments& a) {
          struct Options {
            std::string kind;
            bool json = false, table = false;
          };
          auto o = std::make_shared<Options>();
          a.option("kind", o->kind, "kind of heads");
          a.flag("--json", o->json, "print one JSON object");
          a.flag("--table", o->table, "print the table of all kinds, in Markdown");
          return [o] {
            if (o->table) {
              print_table();
              return kDone;
            }
            if (o->kind.empty())
              throw ConfigError("describe: name a kind of heads, or use --table");
            const auto& kind = head_kind(o->kind);
            if (o->json)
              fmt::print("{}\n", object_of(kind).dump());
            else
              print_text(kind);
            return kDone;
          };
        },
});

}  // namespace
}  // namespace headlab
