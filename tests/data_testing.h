// What the tests of data share: a folder for their files, and sources opened as a config does.
#pragma once

#include <cstdlib>
#include <fstream>

#include "core/torch.h"
#include "experiments/data/source.h"
#include "tests/scratch.h"

namespace headlab::testing {

namespace fs = std::filesystem;

// A folder of data files.
class Folder : public Scratch {
 public:
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path() / name, std::ios::binary) << bytes;
  }
  template <class Token>
  void write_tokens(const std::string& name, const std::vector<Token>& tokens) const {
    write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)});
  }
  // NumPy's format, int64. `shape` as Python writes it: "(4,)", "(4, 2)".
  void write_npy(const std::string& name, const std::string& shape,
                 const std::vector<int64_t>& values) const {
    const auto header =
        "{'descr': '<i8', 'fortran_order': False, 'shape': " + shape + ", }" + std::string(64, ' ');
    const std::string magic{"\x93NUMPY\x01\x00", 8};
    write(name, magic + static_cast<char>(header.size()) + '\0' + header +
                    std::string(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(values[0])));
  }
  // Sentences of four ids with one of three classes: split `split` of arrays in directory `at`.
  void write_arrays(const std::string& at, const std::string& split, int64_t first,
                    int64_t count) const {
    std::filesystem::create_directories(path() / at / split);
    std::vector<int64_t> ids, targets;
    for (int64_t n = first; n < first + count; ++n) {
      ids.insert(ids.end(), {n / 100, n / 10 % 10, n % 10, 3});
      targets.push_back(n % 5 % 3);
    }
    const auto examples = std::to_string(count);
    write_npy(at + "/" + split + "/ids.npy", "(" + examples + ", 4)", ids);
    write_npy(at + "/" + split + "/targets.npy", "(" + examples + ",)", targets);
  }
};

struct DataConfig : Block {
  KindBlock data{data_registry(), "copy"};
  void visit(Fields& f) override { f("data", data, "where examples come from"); }
};

// Opens `data: {<options>}`, with paths from `base`.
inline std::shared_ptr<DataSource> open(const std::string& options, const fs::path& base = {}) {
  DataConfig config;
  read_config(config, parse_config("data: {" + options + "}", "f.yaml", base));
  return open_data(config.data);
}

inline std::string contents_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A text as an editor of Windows saves it.
inline std::string with_crlf(const std::string& text) {
  std::string made;
  for (const char c : text) made += c == '\n' ? "\r\n" : std::string(1, c);
  return made;
}

// What the action's error says.
template <class Error, class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Row i of a [B,T] tensor.
inline std::vector<int64_t> row(const Tensor& t, int64_t i) {
  const int64_t* first = t.data_ptr<int64_t>() + i * t.size(1);
  return {first, first + t.size(1)};
}

}  // namespace headlab::testing
