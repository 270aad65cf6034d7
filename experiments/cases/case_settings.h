// What a case file's metadata says beside the config, of which strangers write files too.
// Everything throws DataError `file: metadata KEY: what is wrong`. No torch in here.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headlab {

class CaseSettings {
 public:
  // `file` stands for the path in messages. Both must outlive this.
  CaseSettings(const std::string& file, const std::map<std::string, std::string>& metadata)
      : file_(file), metadata_(metadata) {}

  const std::string& text(const std::string& key) const;  // which there must be
  double number(const std::string& key) const;            // finite, 0 or more
  bool truth(const std::string& key) const;  // true or false; false where it is missing

  struct Likely {
    double temperature;  // above 0
    int64_t top_k;       // 1 or more
  };
  Likely topk() const;  // of the distribution behind the last token
  // Ids of the longest translation, in `beam`; `otherwise` where it says nothing.
  int64_t beam_length(int64_t otherwise) const;
  std::vector<int64_t> offsets() const;  // of baselines, in words
  int64_t relations() const;             // how many there are, `all` among them
  // The layers `from` and `to` of a conversion's config.
  nlohmann::ordered_json conversion() const;

 private:
  nlohmann::ordered_json json(const std::string& key) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;

  const std::string& file_;
  const std::map<std::string, std::string>& metadata_;
};

}  // namespace headlab
