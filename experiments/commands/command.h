// A subcommand of `headlab`: one file each, registered by an object, as variants are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "experiments/system/exit_codes.h"

namespace CLI {
class App;
}

namespace headlab {

// Visitor of a subcommand's options: a struct whose one `visit(Arguments&)` names every member
// once. Parser, --help, completion scripts and the list of the interface that a test holds are made
// by it. The parsing library stays behind it: a file that includes its headers takes twice as long
// to compile.
class Arguments {
 public:
  enum Rule { kAny, kRequired, kAboveZero, kZeroOrMore };

  explicit Arguments(CLI::App& app) : app_(app) {}
  // `name` without dashes: a positional. The value that `value` has now is the default.
  // A value is a text, one that may be left out, a list of texts, or a number.
  template <class T>
  void option(const std::string& name, T& value, const std::string& help, Rule rule = kAny);
  void choice(const std::string& name, std::string& value, const std::string& help,
              const std::vector<std::string>& words, Rule rule = kAny);
  void flag(const std::string& name, bool& value, const std::string& help);
  // A positional that names a run. What was given for it, such as `@`, is that run (see take_run)
  // before the command begins.
  void run(const std::string& name, std::string& value, const std::string& what = "a run");
  const std::vector<std::string*>& runs() const { return runs_; }

  const std::vector<std::string>& choices_of(const std::string& name) { return choices_[name]; }

 private:
  CLI::App& app_;
  std::vector<std::string*> runs_;
  std::map<std::string, std::vector<std::string>> choices_;
};

// What the help sorts commands by.
enum class Group { kTrain, kLook, kCut, kExchange, kExtend };
inline constexpr std::pair<Group, const char*> kGroups[] = {{Group::kTrain, "Train"},
                                                            {Group::kLook, "Look"},
                                                            {Group::kCut, "Cut"},
                                                            {Group::kExchange, "Exchange"},
                                                            {Group::kExtend, "Extend"}};

struct Command {
  std::string name, summary, example;
  Group group;
  // Asks StopSignals, which are noted for it from main's first line on.
  bool asks_for_signals = false;
  // Visits the options and returns what to do once they are parsed: it returns the exit code.
  std::function<std::function<int()>(Arguments& arguments)> add = {};
};

std::vector<Command>& commands();

// A word that a command takes: an option ("--json"), or by its name a positional ("run").
struct CommandWord {
  std::string name, value, help, usual;  // value: TEXT, INT, ..., "" of a flag; usual: its default
  std::vector<std::string> choices;
  bool required = false, many = false;
};
std::vector<CommandWord> words_of(const Command& command);

// What a command found.
struct Report {
  nlohmann::ordered_json object;
  std::string text;  // lines, each with its end
};
// The object on a line of stdout, or the text; returns kDone.
int print(const Report& report, bool json);

// An object of this type registers a command: of what it is called, and of a function of its
// options that does it and returns the exit code.
struct RegisterCommand {
  explicit RegisterCommand(Command command) { commands().push_back(std::move(command)); }
  template <class Options>
  RegisterCommand(Command command, int (*run)(Options&))
      : RegisterCommand([&] {
          command.add = [run](Arguments& arguments) {
            const auto options = std::make_shared<std::remove_const_t<Options>>();
            options->visit(arguments);
            return [options, run] { return run(*options); };
          };
          return command;
        }()) {}
};

}  // namespace headlab
