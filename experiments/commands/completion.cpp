// `headlab completion SHELL`: a completion script made from the registered commands.
#include <fmt/format.h>

#include "experiments/commands/command.h"

namespace headlab {
namespace {

std::string names() {
  std::string words;
  for (const auto& command : commands()) words += (words.empty() ? "" : " ") + command.name;
  return words;
}

std::string bash() {
  std::string cases;
  for (const auto& c : commands())
    cases += fmt::format("    {}) options=\"{}\" ;;\n", c.name, fmt::join(long_options(c), " "));
  return fmt::format(R"(_headlab() {{
  local options word=${{COMP_WORDS[COMP_CWORD]}}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "{}" -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _headlab headlab
)",
                     names(), cases);
}

std::string zsh() { return "autoload -U +X bashcompinit && bashcompinit\n" + bash(); }

std::string fish() {
  std::string script = "complete -c headlab -n __fish_use_subcommand -f\n";
  for (const auto& c : commands()) {
    script += fmt::format("complete -c headlab -n __fish_use_subcommand -a {} -d '{}'\n", c.name,
                          c.summary);
    for (const auto& option : long_options(c))
      script += fmt::format("complete -c headlab -n '__fish_seen_subcommand_from {}' -l {}\n",
                            c.name, option.substr(2));
  }
  return script;
}

struct CompletionOptions {
  std::string shell;

  void visit(Arguments& a) {
    a.choice("shell", shell, "bash, zsh or fish", {"bash", "zsh", "fish"}, Arguments::kRequired);
  }
};

int run_completion(const CompletionOptions& o) {
  fmt::print("{}", o.shell == "bash" ? bash() : o.shell == "zsh" ? zsh() : fish());
  return kDone;
}

const RegisterCommand completion_command({.name = "completion",
                                          .summary = "print a completion script for a shell",
                                          .example = "source <(headlab completion bash)",
                                          .group = Group::kExtend},
                                         run_completion);

}  // namespace
}  // namespace headlab
