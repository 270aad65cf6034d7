// Tokens on disk, as nanoGPT prepares them: a directory with train.bin and val.bin, perhaps
// test.bin (little-endian ids without a header), and meta.json: {"vocab_size": V, "dtype": "uint16"
// or "uint32" (uint16), "itos": [the text of every token] (none)}. Files are mapped, never copied.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "core/files/mapped_file.h"
#include "experiments/data/text_stream.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

struct Meta {
  int64_t vocab_size = 0;
  std::string dtype = "uint16";
  std::vector<std::string> itos;
};

// Other keys are for other readers.
Meta read_meta(const fs::path& path) {
  const auto fail = [&](const std::string& what) { throw DataError(path.string() + ": " + what); };
  const json all = json::parse(MappedFile(path).text(), nullptr, false);
  if (!all.is_object()) fail("is not a JSON object");
  Meta meta;
  const json size = all.value("vocab_size", json());
  if (!size.is_number_integer() || size < 1 || size > int64_t{1} << 32)
    fail("vocab_size must be an integer from 1 to 2^32");
  meta.vocab_size = size;
  const json dtype = all.value("dtype", json(meta.dtype));
  if (dtype != "uint16" && dtype != "uint32") fail("dtype must be \"uint16\" or \"uint32\"");
  meta.dtype = dtype;
  if (meta.dtype == "uint16" && meta.vocab_size > 1 << 16)
    fail(fmt::format("uint16 cannot hold vocab_size {}; is dtype uint32?", meta.vocab_size));
  const json itos = all.value("itos", json::array());
  const auto is_text = [](const json& text) { return text.is_string(); };
  if (!itos.is_array() || !std::all_of(itos.begin(), itos.end(), is_text))
    fail("itos must be a list of texts");
  meta.itos = itos;
  if (!meta.itos.empty() && std::ssize(meta.itos) != meta.vocab_size)
    fail(fmt::format("itos has {} texts, vocab_size is {}", meta.itos.size(), meta.vocab_size));
  return meta;
}

template <class Token>
TokenSpan tokens_of(const MappedFile& file, const fs::path& path) {
  if (file.size() % sizeof(Token) != 0)
    throw DataError(
        fmt::format("{}: {} bytes are no whole number of {}-byte tokens; it is "
                    "truncated, or dtype in meta.json is wrong",
                    path.string(), file.size(), sizeof(Token)));
  return std::span(reinterpret_cast<const Token*>(file.data()), file.size() / sizeof(Token));
}

class Tokens : public TextStream {
 public:
  struct Options : DataOptions {
    FilePath path;

    void visit(Fields& f) override {
      DataOptions::visit(f);
      f("path", path, "the directory of train.bin, val.bin and meta.json");
    }
    void check(const Complain& complain) const override {
      if (path.written.empty()) complain("path", "is needed: the directory of the token files");
    }
  };

  explicit Tokens(const Options& options) : TextStream(options.context) {
    const fs::path& directory = options.path.resolved;
    paths_.push_back(directory / "meta.json");
    meta_ = read_meta(paths_.back());
    open(Split::kTrain, directory / "train.bin");
    open(Split::kValidation, directory / "val.bin");
    if (fs::exists(directory / "test.bin")) open(Split::kTest, directory / "test.bin");
  }

  int64_t vocabulary() const override { return meta_.vocab_size; }
  std::vector<std::string> token_texts() const override { return meta_.itos; }
  std::vector<uint8_t> token_classes() const override { return punctuation_classes(meta_.itos); }

  std::string decode(const std::vector<int64_t>& ids) const override {
    if (meta_.itos.empty())
      throw DataError(paths_.front().string() + ": has no itos, so tokens have no text");
    std::string text;
    for (int64_t id : ids) text += meta_.itos[checked_id(id)];
    return text;
  }

  std::vector<fs::path> files() const override { return paths_; }

 private:
  void open(Split split, const fs::path& path) {
    const auto& file = *files_.emplace_back(std::make_unique<MappedFile>(path));
    paths_.push_back(path);
    add_split(
        split,
        meta_.dtype == "uint16" ? tokens_of<uint16_t>(file, path) : tokens_of<uint32_t>(file, path),
        path);
  }

  Meta meta_;
  std::vector<fs::path> paths_;
  std::vector<std::unique_ptr<MappedFile>> files_;
};

const RegisterData<Tokens> tokens_source("tokens", "token ids on disk, as nanoGPT prepares them");

}  // namespace
}  // namespace headlab
