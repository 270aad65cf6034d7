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
      : TextStream(options.context), file_(options.path.resolved) {
    const auto& path = files_.emplace_back(options.path.resolved);
    tokenizer_ = byte_tokenizer();
    tell_of_format(file_.text(), path);
    const std::span bytes(reinterpret_cast<const uint8_t*>(file_.data()), file_.size());
    add_splits(bytes, options.train_share, path);
  }

  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }

 private:
  MappedFile file_;
};

const RegisterData<Bytes> bytes_source("bytes", "the bytes of a file");

}  // namespace
}  // namespace headlab
