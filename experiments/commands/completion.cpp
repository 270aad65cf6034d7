// `headlab completion SHELL`: a completion script made from the registered commands.
#include <fmt/format.h>

#include "experiments/commands/command.h"

namespace headlab {
namespace {

// The long options of a command, as its own parser knows them.
std::string options_of(const Command& command) {
  CLI::App app;
  command.add(app);
  std::string words;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) words += (words.empty() ? "--" : " --") + name;
  return words;
}

std::string names() {
  std::string words;
  for (const auto& command : commands()) words += (words.empty() ? "" : " ") + command.name;
  return words;
}

std::string bash() {
  std::string cases;
  for (const auto& c : commands())
    cases += fmt::format("    {}) options=\"{}\" ;;\n", c.name, options_of(c));
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
    CLI::App app;
    c.add(app);
    for (const auto* option : app.get_options())
      for (const auto& name : option->get_lnames())
        script += fmt::format("complete -c headlab -n '__fish_seen_subcommand_from {}' -l {}\n",
                              c.name, name);
  }
  return script;
}

const RegisterCommand registered({
    .name = "completion",
    .summary = "print a completion script for a shell",
    .example = "source <(headlab completion bash)",
    .add =
        [](CLI::App& app) {
          auto shell = std::make_shared<std::string>();
          app.add_option("shell", *shell, "bash, zsh or fish")
              ->required()
              ->check(CLI::IsMember({"bash", "zsh", "fish"}));
          return [shell] {
            fmt::print("{}", *shell == "bash" ? bash() : *shell == "zsh" ? zsh() : fish());
            return kDone;
          };
        },
});

}  // namespace
}  // namespace headlab
