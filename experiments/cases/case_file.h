// Files of expected numbers and how they are judged: one format, one registered judge.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/attention/attend.h"
#include "core/config/config.h"
#include "experiments/cases/judge.h"

namespace headlab {

// The metadata's `rtol` and `atol`; 0 where it has none.
Tolerance tolerance_of(const std::map<std::string, std::string>& metadata);

// A case as it lies in the file.
struct CaseFile {
  std::string name;  // for messages: the path
  std::map<std::string, std::string> metadata;
  NamedTensors tensors;   // what the case gives: in.*, w.*, cot.*, without what is expected
  NamedTensors expected;  // out.*, grad.*
  Tolerance tolerance;

  explicit CaseFile(const std::filesystem::path& path);  // DataError
  // The tensor of that name, on the CPU; DataError where it is missing.
  const at::Tensor& at(const std::string& name) const;
  at::Tensor find(const std::string& name) const;  // undefined where it is missing
  // Metadata; DataError where it is missing.
  const std::string& text(const std::string& key) const;
  bool truth(const std::string& key) const;  // "true"; false where it is missing
  // Reads the metadata's `config` into a block, strictly. ConfigError naming the file.
  void read(Block& config) const;
};

struct Judged {
  NamedTensors computed;
  std::vector<Verdict> verdicts;
};

// One format: the value of the metadata's `headlab_case`.
struct CaseFormat {
  std::string name;
  std::function<Judged(const std::filesystem::path& path, const at::Device& device,
                       Backend backend)>
      judge;
};

// Judges a file of any registered format. DataError where the format is not known.
Judged judge_case(const std::filesystem::path& path, const at::Device& device, Backend backend);

// An object of this type registers a format.
struct RegisterCase {
  explicit RegisterCase(CaseFormat format);
  // For formats that are computed on the CPU from one CaseFile: everything the format states, under
  // the names of the file's expected tensors.
  RegisterCase(const char* name, NamedTensors (*compute)(const CaseFile& file));
};

}  // namespace headlab
