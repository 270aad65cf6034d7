// The command line: finds the subcommand, runs it, and maps errors to exit codes.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "core/config.h"
#include "core/errors.h"
#include "experiments/commands/command.h"
#include "headlab_build.h"

namespace headlab {

namespace {

int report(int code, const std::string& what) {
  fmt::print(stderr, "headlab: {}\n", what);
  return code;
}

int run_guarded(const std::function<int()>& action) {
  try {
    return action();
  } catch (const ConfigError& e) {
    return report(kUsage, e.what());
  } catch (const DataError& e) {
    return report(kData, e.what());
  } catch (const RunError& e) {
    return report(kStorage, e.what());
  } catch (const DeviceError& e) {
    return report(kDevice, e.what());
  } catch (const c10::OutOfMemoryError& e) {
    return report(kDevice, e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return report(kDevice, "out of memory; a smaller batch or context needs less");
  } catch (const c10::Error& e) {
    return report(kInternal, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return report(kInternal, e.what());
  }
}

int run(int argc, char** argv) {
  CLI::App app{"headlab: a laboratory bench for attention heads", "headlab"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(build::kVersion));
  std::sort(commands().begin(), commands().end(),
            [](const Command& a, const Command& b) { return a.name < b.name; });
  std::function<int()> action;
  for (const auto& command : commands()) {
    auto* sub = app.add_subcommand(command.name, command.summary);
    sub->footer("Example:\n  " + command.example);
    auto perform = command.add(*sub);
    sub->callback([&action, perform] { action = perform; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    std::vector<std::string> names;
    for (const auto& command : commands()) names.push_back(command.name);
    const bool unknown = argc > 1 && app.get_subcommands().empty() && argv[1][0] != '-';
    report(kUsage, unknown ? fmt::format("no command '{}'{}", argv[1], did_you_mean(argv[1], names))
                           : e.what());
    fmt::print(stderr, "Run with --help for more information.\n");
    return kUsage;
  }
  return run_guarded(action);
}

}  // namespace
}  // namespace headlab

int main(int argc, char** argv) {
  headlab::command_line().assign(argv, argv + argc);
  return headlab::run(argc, argv);
}
