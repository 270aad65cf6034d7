// Where ablate and analyze keep what they find, and what it says of where it is from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/commands/given_data.h"
#include "experiments/commands/options.h"
#include "experiments/logs/result_file.h"
#include "experiments/system/output_file.h"

namespace headlab {

// Heads as a word of a file's name: "heads-0.1-0.3".
std::string heads_word(const std::vector<std::string>& heads, Model& model);

struct Answer {
  std::string run;          // as it was given
  std::string out;          // --out; empty: a file of the run
  ResultQuestion question;  // its own words alone
  const GivenData& given;
  const MeasureOptions& measure;
  Split split = Split::kValidation;
  std::string treebank = {};  // that is read, too

  // RunError where nothing could be written in the end, or what is read would be lost.
  void require_its_place(const OpenedRun& opened) const;
  // Writes it, with its source at every array that is of examples, and returns where. `title`:
  // "ablation".
  std::filesystem::path write(const OpenedRun& opened, const std::string& title,
                              const at::Device& device, std::vector<LabelledGroup> groups) const;

 private:
  OutputFile named_file(const OpenedRun& opened) const;  // of --out
};

}  // namespace headlab
