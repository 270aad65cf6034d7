// `headlab list`: a line a kind of heads.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/head_kinds.h"
#include "experiments/commands/command.h"

namespace headlab {
namespace {

const RegisterCommand list_command({
    .name = "list",
    .summary = "list the kinds of heads",
    .example = "headlab list",
    .add =
        [](Arguments& a) {
          auto json = std::make_shared<bool>(false);
          a.flag("--json", *json, "print one JSON object");
          return [json] {
            nlohmann::ordered_json object;
            for (const auto& name : head_names()) {
              const auto& summary = head_kind(name).summary;
              object[name] = summary;
              if (!*json) fmt::print("{:<14}{}\n", name, summary);
            }
            if (*json) fmt::print("{}\n", object.dump());
            return kDone;
          };
        },
});

}  // namespace
}  // namespace headlab
