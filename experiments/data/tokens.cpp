// Tokens on disk, as nanoGPT prepares them: a directory with train.bin and val.bin, perhaps
// test.bin, and meta.json (formats/token_files.h). Files are mapped, never copied.
#include "experiments/data/folder_files.h"
#include "experiments/data/text_stream.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

class Tokens : public TextStream {
 public:
  struct Options : DataOptions, ReadsFolder, TestPartOption {
    FilePath path;

    Options() : TestPartOption(TestPart::Own::kWord) {}
    void visit(Fields& f) override {
      DataOptions::visit(f);
      f("path", path, "the directory of train.bin, val.bin and meta.json");
      visit_test(f, "test.bin");
    }
    std::vector<fs::path> files_in(const fs::path& folder) const override {
      return files_of_names(folder, {"meta.json", "train.bin", "val.bin", "test.bin"});
    }
    void check(const Complain& complain) const override {
      if (path.written.empty()) complain("path", "is needed: the directory of the token files");
    }
  };

  explicit Tokens(const Options& options) : TextStream(options.context) {
    const fs::path& directory = options.path.resolved;
    meta_ = read_token_meta(files_.emplace_back(directory / "meta.json"));
    open(Split::kTrain, directory / "train.bin");
    open(Split::kValidation, directory / "val.bin");
    if (fs::exists(directory / "test.bin")) open(Split::kTest, directory / "test.bin");
  }

  int64_t vocabulary() const override { return meta_.vocab_size; }
  std::vector<std::string> token_texts() const override { return meta_.itos; }
  std::vector<uint8_t> token_classes() const override { return punctuation_classes(meta_.itos); }

 private:
  void open(Split split, const fs::path& path) {
    const auto& file = *maps_.emplace_back(std::make_unique<MappedFile>(path));
    files_.push_back(path);
    add_split(split, tokens_in(file.text(), meta_, path.string()), path);
    if (file.text().size() <= kReadWhole) require_known_ids(split);
  }

  // Of longer files every window is looked at when it is read, since to read them takes long.
  static constexpr size_t kReadWhole = 256 << 20;

  TokenMeta meta_;
  std::vector<std::unique_ptr<MappedFile>> maps_;
};

const RegisterData<Tokens> tokens_source("tokens", "token ids on disk, as nanoGPT prepares them");

}  // namespace
}  // namespace headlab
