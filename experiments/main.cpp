// The command line: finds the subcommand, runs it, and maps errors to exit codes.
#include <ATen/Context.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <omp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>

#include "core/config/config.h"
#include "core/config/registry.h"
#include "core/kernels/isa_choice.h"
#include "experiments/commands/command.h"
#include "experiments/commands/failure.h"
#include "experiments/runs/bounded_tensors.h"
#include "experiments/runs/known_runs.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/system/busy_cores.h"
#include "experiments/system/exit_codes.h"
#include "experiments/system/most_threads.h"
#include "experiments/system/output.h"
#include "experiments/system/program_name.h"
#include "experiments/system/signals.h"
#include "experiments/system/startable_threads.h"
#include "headlab_build.h"

namespace headlab {

namespace {

int report(int code, const std::string& what) {
  tell("{}", what);
  return code;
}

int run_guarded(const std::function<int()>& action) {
  try {
    return action();
  } catch (...) {
    const auto failure = current_failure();
    return report(failure.code, failure.what);
  }
}

// What is wrong with the words of the command line, and where help is, in one line.
std::string usage_problem(const CLI::App& app, const CLI::ParseError& error, const char* first) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty() && first == nullptr)
    return "name a command; " + program_name() + " --help lists them";
  if (chosen.empty() && first[0] != '-') {
    std::vector<std::string> names;
    for (const auto& command : commands()) names.push_back(command.name);
    return fmt::format("no command '{}'{}; {} --help lists them", first, did_you_mean(first, names),
                       program_name());
  }
  const CLI::App& asked = chosen.empty() ? app : *chosen[0];
  const std::string name = program_name() + (chosen.empty() ? "" : " " + asked.get_name());
  std::string what = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    const auto words = app.remaining(true);
    const auto word = std::find_if(words.begin(), words.end(),
                                   [](const auto& word) { return word.starts_with('-'); });
    if (word == words.end()) {
      what = fmt::format("does not expect '{}'", words.at(0));
    } else {
      std::vector<std::string> options;
      for (const auto* option : asked.get_options())
        for (const auto& option_name : option->get_lnames()) options.push_back("--" + option_name);
      const auto option = word->substr(0, word->find('='));
      what = fmt::format("no option '{}'{}", option, did_you_mean(option, options));
    }
  }
  return fmt::format("{}; see {} --help", what, name);
}

// What is wrong with OMP_NUM_THREADS; "": nothing. OpenMP itself would end the process.
std::string threads_problem() {
  const char* asked = std::getenv("OMP_NUM_THREADS");
  const int threads = omp_get_max_threads();
  if (!asked || threads <= std::max(kMostThreads, omp_get_num_procs())) return "";
  return fmt::format("OMP_NUM_THREADS={}: must be at most {}", asked, kMostThreads);
}

int run(int argc, char** argv) {
  if (const auto problem = threads_problem(); !problem.empty()) return report(kUsage, problem);
  if (const auto problem = isa_problem(std::getenv(kIsaVariable)); !problem.empty())
    return report(kUsage, problem);
  if (const auto& conflicts = registration_conflicts(); !conflicts.empty()) {
    for (const auto& conflict : conflicts) report(kInternal, conflict);
    return kInternal;
  }
  CLI::App app{"headlab: a laboratory bench for attention heads", program_name()};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(build::kVersion));
  std::sort(commands().begin(), commands().end(), [](const Command& a, const Command& b) {
    return std::tie(a.group, a.name) < std::tie(b.group, b.name);
  });
  std::function<int()> action;
  for (const auto& command : commands()) {
    auto* sub = app.add_subcommand(command.name, command.summary);
    for (const auto& [group, title] : kGroups)
      if (group == command.group) sub->group(title);
    sub->footer("Example:\n  " + as_called(command.example));
    Arguments arguments(*sub);
    auto perform = command.add(arguments);
    sub->callback([&action, perform, runs = arguments.runs()] {
      action = [perform, runs] {
        for (auto* run : runs) *run = take_run(*run).string();
        return perform();
      };
    });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    action = [code = app.exit(e)] { return code; };  // --help, --version
  } catch (const CLI::ParseError& e) {
    return report(kUsage, usage_problem(app, e, argc > 1 ? argv[1] : nullptr));
  }
  return run_guarded([&] {
    require_startable_threads(omp_get_max_threads());
    const int code = action();
    flush_results();
    return code;
  });
}

// Freed buffers of tensors stay with the process. Given back to the system, as glibc does by
// default with large ones, they cost a page fault for every page of the next pass: half the time of
// evaluations on a small model.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

// Numbers too small for their type to hold with all digits count as 0, in this thread and in those
// that it starts: weights of keys that are far below others end there, and each product with one
// takes as long as a hundred others.
void flush_denormals() { at::globalContext().setFlushDenormal(true); }

bool asks_for_signals(std::string_view name) {
  return std::ranges::any_of(commands(), [&](const Command& command) {
    return command.asks_for_signals && command.name == name;
  });
}

// One thread for each core, which counts itself: g++ leaves out a team that does nothing.
void open_team() {
  std::atomic<int> threads = 0;
#pragma omp parallel num_threads(omp_get_num_procs())
  ++threads;
}

// Ends the process; what is written is closed by now. Not by a return: libtorch's destructors would
// take its operators out of their tables one by one, a quarter of the time of a short command.
[[noreturn]] void leave(int code) {
  std::cout.flush();
  std::fflush(nullptr);
#ifdef __SANITIZE_ADDRESS__
  std::exit(code);  // looks for leaks
#else
  std::_Exit(code);
#endif
}

// Whoever closes one of the three would otherwise find what is meant for it in the next file that
// the program opens.
void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
      std::ignore = ::open("/dev/null", O_RDWR);  // the lowest that is free
}

// What no other place has caught, such as what a thread throws, in words of ours.
[[noreturn]] void say_last_words() {
  const auto error = std::current_exception();
  std::_Exit(error ? run_guarded([&]() -> int { std::rethrow_exception(error); })
                   : report(kInternal, "ended by std::terminate"));
}

// Before any other thread begins. Never let go: a signal while the process ends would have the
// default action, all being saved.
int take_signals(bool note_them) {
  return run_guarded([&] {
    [[maybe_unused]] static const auto* const thread = new SignalThread;
    [[maybe_unused]] static const auto* const signals = note_them ? new StopSignals : nullptr;
    return kDone;
  });
}

int begin_and_run(int argc, char** argv) {
  open_standard_descriptors();
  std::set_terminate(say_last_words);
  std::signal(SIGXFSZ, SIG_IGN);    // a write beyond the limit then fails, and is told
  ::prctl(PR_SET_NAME, "headlab");  // of a sweep's training: "exe"
  if (const int code = take_signals(argc > 1 && asks_for_signals(argv[1])); code != kDone)
    return code;
  keep_freed_memory();
  flush_denormals();
  bound_tensors();
  command_line().assign(argv, argv + argc);
  const int code = run_guarded([&] {
    watch_busy_cores(open_team);
    return run(argc, argv);
  });
  end_busy_cores();
  return code;
}

}  // namespace
}  // namespace headlab

int main(int argc, char** argv) { headlab::leave(headlab::begin_and_run(argc, argv)); }
