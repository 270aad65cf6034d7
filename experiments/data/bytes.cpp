// Bytes of any file: the id is the byte.
#include "experiments/data/formats/plain_text.h"
#include "experiments/data/text_stream.h"
#include "experiments/data/tokenizers/byte_tokenizer.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

class Bytes : public TextStream {
 public:
  using Options = OneTextOptions;

  explicit Bytes(const Options& options)
      : TextStream(options.context), path_(options.path.resolved), file_(path_) {
    tell_of_format(file_.text(), path_);
    const std::span bytes(reinterpret_cast<const uint8_t*>(file_.data()), file_.size());
    add_splits(bytes, options.train_share, path_);
  }

  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return tokenizer_; }
  std::vector<std::filesystem::path> files() const override { return {path_}; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::shared_ptr<const Tokenizer> tokenizer_ = byte_tokenizer();
};

const RegisterData<Bytes> bytes_source("bytes", "the bytes of a file");

}  // namespace
}  // namespace headlab
