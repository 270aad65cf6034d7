#include "experiments/data/tokenizers/byte_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/data/formats/plain_text.h"

namespace headlab {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 256; }

  // Words are what ASCII's white space separates: a byte beyond it is part of a character.
  Encoding encode(std::string_view text, const std::string&) const override {
    Encoding encoding;
    std::vector<bool> spaces;
    for (size_t at = 0; at < text.size(); ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      encoding.ids.push_back(byte);
      encoding.ranges.push_back({at, at + 1});
      spaces.push_back(byte < 0x80 && is_white_space(byte));
    }
    encoding.words = words_between(spaces);
    return encoding;
  }

  size_t next_cut(std::string_view text, size_t from) const override {
    return std::min(from, text.size());
  }

  std::string bytes(int64_t id, std::optional<int64_t>) const override {
    return {static_cast<char>(checked_id(id))};
  }

  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = byte >= 0x20 && byte < 0x7F;
      texts.push_back(printable ? std::string(1, static_cast<char>(byte))
                                : fmt::format("\\x{:02x}", byte));
    }
    return texts;
  }

  nlohmann::ordered_json json() const override { return {{"kind", "bytes"}}; }
};

const RegisterTokenizer byte_reader("bytes",
                                    [](const nlohmann::ordered_json&) { return byte_tokenizer(); });

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() { return std::make_shared<ByteTokenizer>(); }

SourceText file_for(const Tokenizer& tokenizer, const std::filesystem::path& path) {
  if (dynamic_cast<const ByteTokenizer*>(&tokenizer) == nullptr) return source_of_file(path);
  const auto file = std::make_shared<MappedFile>(path);
  tell_of_format(file->text(), path);
  return {file->text(), path.string(), path, file->stamp(), file};
}

}  // namespace headlab
