// What there is to say of a kind of heads: for `headlab describe` and docs/kinds.md.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/head_kinds.h"
#include "experiments/files/field_table.h"

namespace headlab {

struct HeadFacts {
  std::string name, summary;
  std::string opening;  // the comment that its file begins with: paper, equations; "": no file
  std::vector<std::string> papers;  // the arXiv numbers in it
  std::vector<FieldInfo> options;
  std::optional<InitDifferences> init;  // none: it does not know `init_weights: host`
  std::vector<std::pair<const char*, bool>> promises;
  std::vector<std::string> parameters;
  std::vector<Statistic> own;        // statistics beside those of all kinds
  std::vector<std::string> without;  // of those of all kinds, what it has none of
};

// Asks a small layer, built with the kind's defaults, and runs it once.
HeadFacts facts_of(const HeadKind& kind);

}  // namespace headlab
