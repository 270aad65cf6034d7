// CoNLL-U written in tests, and where the real treebank is.
#pragma once

#include <string>
#include <vector>

#include "experiments/data/formats/treebank.h"
#include "tests/models_testing.h"

namespace headlab::testing {

// One line of CoNLL-U.
inline std::string conllu(const std::string& id, const std::string& form, const std::string& head,
                          const std::string& relation, const std::string& misc = "_") {
  return id + "\t" + form + "\t_\t_\t_\t_\t" + head + "\t" + relation + "\t_\t" + misc + "\n";
}

// Empty, with a line that says so, where it is not there.
inline std::filesystem::path english_treebank() {
  const auto file = shared_folder() / "data/ud_english_ewt/en_ewt-ud-dev.conllu";
  if (std::filesystem::exists(file)) return file;
  skip("no shared treebank; HEADLAB_SHARED names the folder it lies in");
  return {};
}

}  // namespace headlab::testing
