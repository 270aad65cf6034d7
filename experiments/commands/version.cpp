// `headlab version`: what this build is made of.
#include <fmt/format.h>
#include <torch/version.h>

#include "experiments/commands/command.h"
#include "experiments/runs/run_manifest.h"
#include "headlab_build.h"

namespace headlab {
namespace {

struct VersionOptions {
  bool json = false;

  void visit(Arguments& a) { a.flag("--json", json, "print one JSON object"); }
};

int run_version(const VersionOptions& o) {
  Report versions;
  versions.object = {{"headlab", std::string(build::kVersion)},
                     {"torch", TORCH_VERSION},
                     {"hdf5", hdf5_version()},
                     {"compiler", std::string(build::kCompiler)},
                     {"build", std::string(build::kType)},
                     {"cuda", build::kCuda}};
  for (const auto& [name, value] : versions.object.items())
    versions.text += fmt::format("{:<10}{}\n", name,
                                 value.is_string() ? value.get<std::string>() : value.dump());
  return print(versions, o.json);
}

const RegisterCommand version_command(
    {.name = "version",
     .summary = "print the versions of headlab and of what it is built on",
     .example = "headlab version --json",
     .group = Group::kExtend},
    run_version);

}  // namespace
}  // namespace headlab
