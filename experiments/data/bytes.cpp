// Bytes of any file: the id is the byte.
#include <fmt/format.h>

#include "core/files/mapped_file.h"
#include "experiments/data/text_stream.h"

namespace headlab {
namespace {

class Bytes : public TextStream {
 public:
  using Options = TextOptions;

  explicit Bytes(const Options& options)
      : TextStream(options.context), path_(options.path.resolved), file_(path_) {
    const std::span bytes(reinterpret_cast<const uint8_t*>(file_.data()), file_.size());
    add_splits(bytes, options.train_share, path_);
  }

  int64_t vocabulary() const override { return 256; }

  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = byte >= 0x20 && byte < 0x7F;
      texts.push_back(printable ? std::string(1, static_cast<char>(byte))
                                : fmt::format("\\x{:02x}", byte));
    }
    return texts;
  }
  std::vector<uint8_t> token_classes() const override { return punctuation_classes(token_texts()); }

  bool has_text() const override { return true; }
  std::vector<int64_t> encode(const std::string& text) const override {
    std::vector<int64_t> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    std::string text;
    for (int64_t id : ids) text += static_cast<char>(checked_id(id));
    return text;
  }

  std::vector<std::filesystem::path> files() const override { return {path_}; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
};

const RegisterData<Bytes> bytes_source("bytes", "the bytes of a file");

}  // namespace
}  // namespace headlab
