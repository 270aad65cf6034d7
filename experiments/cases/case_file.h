// Files of expected numbers and how they are judged: one format, one registered judge.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <source_location>
#include <string>
#include <vector>

#include "core/attention/attend.h"
#include "core/config/config.h"
#include "experiments/cases/case_settings.h"
#include "experiments/cases/judge.h"

namespace headlab {

// A case as it lies in the file. Whatever is wrong with it is a DataError that names the file.
struct CaseFile {
  std::string name;                  // for messages: the path
  std::filesystem::path model = {};  // that a whole model's case is of; empty: beside the file
  std::map<std::string, std::string> metadata;
  NamedTensors tensors;   // what the case gives: in.*, w.*, cot.*, without what is expected
  NamedTensors expected;  // out.*, grad.*
  Tolerance tolerance;    // the metadata's `rtol` and `atol`; 0 where it has none

  explicit CaseFile(const std::filesystem::path& path);
  // Of a part of another file: `name` stands for it in messages.
  CaseFile(std::string name, NamedTensors tensors, std::map<std::string, std::string> metadata);

  const at::Tensor& at(const std::string& name) const;  // which there must be
  at::Tensor find(const std::string& name) const;       // undefined where it is missing

  CaseSettings settings() const { return {name, metadata}; }  // no longer than this lives
  const std::string& text(const std::string& key) const { return settings().text(key); }
  double number(const std::string& key) const { return settings().number(key); }
  // Reads the metadata's `key` into a block, strictly.
  void read(Block& block, const std::string& key = "config") const;

  // A layer or model of so many weights cannot be this file's unless it holds as many: says so
  // before anything of that size is made. `what` is what has them.
  void require_weights(double least, const std::string& what) const;
  [[noreturn]] void refuse(const std::string& what) const;
};

// In a catch block: throws what the exception means for whoever gave this file.
[[noreturn]] void rethrow_for_case(const std::string& file);

// Does something with a case file. Settings, sizes and types that do not fit, whoever notices, are
// the file's fault: DataError naming it instead of ConfigError and of a broken contract.
template <class Work>
auto of_case(const std::string& file, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception&) {
    rethrow_for_case(file);
  }
}

// The elements of a tensor, row-major.
std::vector<int64_t> integers_of(const at::Tensor& tensor);

struct Judged {
  NamedTensors computed;
  std::vector<Verdict> verdicts;
};
Judged judged(const CaseFile& file, NamedTensors computed);  // by what the file expects

inline constexpr const char* kModelKey = "headlab_model";  // of files of whole models

// One format: the metadata says `name` under `key`.
struct CaseFormat {
  std::string name;
  std::function<Judged(const CaseFile& file, const at::Device& device, Backend backend)> judge;
  std::string key = "headlab_case";
};

// Judges a file of any registered format. `model`: what a file of a whole model is judged by.
// DataError where the format is not known, ConfigError where a model is given to one of no model.
Judged judge_case(const std::filesystem::path& path, const at::Device& device, Backend backend,
                  const std::filesystem::path& model = {});

// An object of this type registers a format.
struct RegisterCase {
  explicit RegisterCase(CaseFormat format,
                        const std::source_location& where = std::source_location::current());
  // For formats that are computed on the CPU: everything the format states, under the names of the
  // file's expected tensors.
  RegisterCase(const char* name, NamedTensors (*compute)(const CaseFile& file),
               const std::source_location& where = std::source_location::current());
};

}  // namespace headlab
