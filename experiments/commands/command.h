// A subcommand of `headlab`: one file each, registered by an object, as variants are.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace headlab {

// Exit codes; runner.md relies on them.
enum ExitCode {
  kDone = 0,
  kInternal = 1,
  kCheckFailed = 1,
  kUsage = 2,
  kData = 3,
  kStorage = 4,
  kDiverged = 5,
  kDevice = 6,
  kResumable = 75,
  kInterrupted = 130,
  kTerminated = 143,
};

struct Command {
  std::string name, summary, example;
  // Adds the options to `app` and returns what to do once they are parsed: it returns the exit
  // code.
  std::function<std::function<int()>(CLI::App& app)> add;
};

std::vector<Command>& commands();
std::vector<std::string>& command_line();  // argv, for manifests

// Checks of an option's value; CLI11's own spell out the largest double when they complain.
CLI::Validator above_zero();
CLI::Validator zero_or_more();

struct RegisterCommand {
  explicit RegisterCommand(Command command) { commands().push_back(std::move(command)); }
};

}  // namespace headlab
