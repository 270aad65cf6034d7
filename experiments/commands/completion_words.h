// What may be typed behind the name of the program: what completion scripts and the manual are made
// of.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace headlab {

// Of the keys that a config may have: `train.steps`; the options of all kinds side by side.
struct ConfigWords {
  std::vector<std::string> keys;                           // sorted
  std::map<std::string, std::vector<std::string>> values;  // of keys that take one of few words
};
ConfigWords config_words();

}  // namespace headlab
