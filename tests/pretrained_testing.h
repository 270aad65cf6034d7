// Where scripts/data puts real models, if it did.
#pragma once

#include <filesystem>

#include "headlab_build.h"
#include "tests/catch.h"

namespace headlab::testing {

// configs/data/NAME of this tree; empty, with a line that says so, where it is not there.
inline std::filesystem::path pretrained(const std::string& name) {
  const auto folder = std::filesystem::path(build::kSourceDir) / "configs/data" / name;
  if (std::filesystem::exists(folder)) return folder;
  skip("no " + folder.string() + "; scripts/data " + name + " puts it there");
  return {};
}

inline std::filesystem::path minilm() { return pretrained("minilm"); }
inline std::filesystem::path smollm2() {
  const auto folder = pretrained("smollm2");
  return folder.empty() ? folder : folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace headlab::testing
