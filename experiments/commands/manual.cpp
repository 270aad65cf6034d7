// The manual page, made from the registered commands.
#include <fmt/format.h>

#include "experiments/commands/command.h"
#include "experiments/commands/reference_pages.h"
#include "experiments/system/own_files.h"
#include "experiments/system/program_name.h"
#include "headlab_build.h"

namespace headlab {
namespace {

// Text that roff takes as it is: a hyphen is one to copy, a dot or quote begins no request.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool first = out.empty() || out.back() == '\n';
    if (first && (c == '.' || c == '\'')) out += "\\&";
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return out;
}

std::string section_of(const Command& command) {
  std::string usage = "headlab " + command.name, options;
  for (const auto& word : words_of(command)) {
    const bool option = word.name.starts_with("--");
    if (!option) usage += " " + word.name;
    if (word.name == "--help") continue;
    std::string facts =
        word.choices.empty() ? word.value : fmt::format("{}", fmt::join(word.choices, "|"));
    if (option && !facts.empty()) facts.insert(0, " ");
    if (!option) facts.clear();
    options +=
        fmt::format(".TP\n\\fB{}\\fR{}\n{}{}\n", plain(word.name), plain(facts), plain(word.help),
                    word.usual.empty() ? "" : plain(" (default: " + word.usual + ")"));
  }
  return fmt::format(".SS {}\n{}.\n.PP\n\\fB{}\\fR [option ...]\n{}.PP\n.EX\n{}\n.EE\n",
                     plain(command.name), plain(command.summary), plain(usage), options,
                     plain(as_called(command.example)));
}

}  // namespace

std::string manual() {
  std::string text = fmt::format(
      ".TH HEADLAB 1 \"\" \"headlab {}\"\n"
      ".SH NAME\nheadlab \\- a laboratory bench for attention heads\n"
      ".SH SYNOPSIS\n\\fBheadlab\\fR command [word ...] [option ...]\n"
      ".SH DESCRIPTION\nA YAML file describes an experiment; \\fBheadlab run\\fR trains it and "
      "watches its heads, the other commands look at what it leaves, cut it and measure what the "
      "cut cost. Results go to standard output (\\fB\\-\\-json\\fR: as one object), progress to "
      "standard error.\n.PP\n{} {}.\n.SH COMMANDS\n",
      plain(std::string(build::kVersion)),
      is_installed() ? "Its own configs are in" : "Its tree, with README.md and docs/, is in",
      plain(own_folder().string()));
  for (const auto& command : commands()) text += section_of(command);
  return text;
}

}  // namespace headlab
