// What a command found, and the one way to print it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/system/exit_codes.h"

namespace headlab {

struct Report {
  nlohmann::ordered_json object;
  std::string text;  // lines, each with its end
};

// The object on a line of stdout, or the text; returns kDone.
int print(const Report& report, bool json);

}  // namespace headlab
