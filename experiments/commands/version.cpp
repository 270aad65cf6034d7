// `headlab version`: what this build is made of.
#include <fmt/format.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "experiments/commands/command.h"
#include "experiments/runs/run_manifest.h"
#include "headlab_build.h"

namespace headlab {
namespace {

const RegisterCommand version_command({
    .name = "version",
    .summary = "print the versions of headlab and of what it is built on",
    .example = "headlab version --json",
    .add =
        [](Arguments& a) {
          auto json = std::make_shared<bool>(false);
          a.flag("--json", *json, "print one JSON object");
          return [json] {
            nlohmann::ordered_json versions;
            versions = {{"headlab", std::string(build::kVersion)},
                        {"torch", TORCH_VERSION},
                        {"hdf5", hdf5_version()},
                        {"compiler", std::string(build::kCompiler)},
                        {"build", std::string(build::kType)},
                        {"cuda", build::kCuda}};
            if (*json) {
              fmt::print("{}\n", versions.dump());
            } else {
              for (const auto& [name, value] : versions.items())
                fmt::print("{:<10}{}\n", name,
                           value.is_string() ? value.get<std::string>() : value.dump());
            }
            return kDone;
          };
        },
});

}  // namespace
}  // namespace headlab
