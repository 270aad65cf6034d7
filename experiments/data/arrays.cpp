// Examples as arrays, from whatever program wrote them: a safetensors file a split, or a folder of
// .npy files a split.
//
//     ids [N,T] integers, or image [N,C,height,width] of bytes or floats
//     targets [N] or [N,T] integers: classes; floats [N] or [N,k]: numbers to be predicted
//     length [N], segment [N,T] integers, where examples have them
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/epochs.h"
#include "experiments/data/folder_files.h"
#include "experiments/data/formats/npy.h"
#include "experiments/data/scalar_type.h"
#include "experiments/data/test_part.h"
#include "experiments/files/safetensors.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"ids", "image", "targets", "length", "segment"};
constexpr const char* kCounts[] = {"vocabulary", "classes"};  // of a safetensors file's metadata

at::ScalarType scalar_type(const TensorEntry& array, const std::string& place) {
  if (array.dtype == Dtype::kBool) return at::kByte;  // whatever its bytes are
  if (array.dtype == Dtype::kU32 || array.dtype == Dtype::kU64)
    throw DataError(fmt::format("{}: has values of type {}, which is not read; write int64", place,
                                dtype_name(array.dtype)));
  return scalar_type_of(array.dtype);
}

bool is_whole(const TensorEntry& array) { return !at::isFloatingType(scalar_type_of(array.dtype)); }

// One split: its arrays, which lie in mapped files.
class ArraySplit {
 public:
  explicit ArraySplit(const fs::path& path) : path_(path) {
    std::error_code none;
    if (fs::is_directory(path, none))
      map_folder();
    else
      map_file();
    check_sizes();
  }

  int64_t examples() const { return examples_; }
  const std::vector<fs::path>& files() const { return files_; }
  bool has(const char* name) const { return arrays_.contains(name); }
  const TensorEntry& array(const char* name) const { return arrays_.at(name); }
  std::string place(const char* name) const { return fmt::format("{}: {}", path_.string(), name); }
  // What the metadata say; none: nothing.
  std::optional<int64_t> count(const char* name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? std::nullopt : std::optional(found->second);
  }

  // Examples `numbers` of an array, [B,...], in its type.
  Tensor rows(const char* name, const std::vector<int64_t>& numbers) const {
    const auto& all = array(name);
    auto sizes = all.shape;
    sizes[0] = std::ssize(numbers);
    auto rows = at::empty(sizes, scalar_type(all, place(name)));
    const size_t row = examples_ == 0 ? 0 : all.bytes / static_cast<size_t>(examples_);
    auto* to = static_cast<std::byte*>(rows.data_ptr());
    for (const int64_t n : numbers) to = std::copy_n(all.data + n * row, row, to);
    return rows;
  }

  // Calls `look` with parts of an array, some thousand examples each, and the first's number.
  template <class Look>
  void each_part(const char* name, const Look& look) const {
    constexpr int64_t kPart = 4096;
    for (int64_t first = 0; first < examples_; first += kPart) {
      std::vector<int64_t> numbers(std::min(kPart, examples_ - first));
      std::iota(numbers.begin(), numbers.end(), first);
      look(rows(name, numbers), first);
    }
  }

  // The largest of whole numbers, none of which is under `least`.
  int64_t largest(const char* name, int64_t least) const {
    int64_t most = least;
    each_part(name, [&](const Tensor& part, int64_t first) {
      const auto whole = part.to(at::kLong);
      if (whole.numel() == 0) return;
      const auto wrong = whole.lt(least);
      if (wrong.any().item<bool>())
        throw DataError(fmt::format("{}: example {} has {}; must be at least {}", place(name),
                                    first + wrong.nonzero()[0][0].item<int64_t>(),
                                    whole.masked_select(wrong)[0].item<int64_t>(), least));
      most = std::max(most, whole.max().item<int64_t>());
    });
    return most;
  }

 private:
  void map_folder() {
    for (const char* name : kNames) {
      const auto file = path_ / fmt::format("{}.npy", name);
      std::error_code none;
      if (!fs::exists(file, none)) continue;
      npy_.push_back(std::make_unique<NpyFile>(file));
      arrays_[name] = npy_.back()->entry();
      files_.push_back(file);
    }
  }
  void map_file() {
    file_ = std::make_unique<SafetensorsFile>(path_);
    files_.push_back(path_);
    for (const auto& entry : file_->entries()) {
      if (std::ranges::find(kNames, entry.name) == std::end(kNames))
        throw DataError(fmt::format("{}: has an array '{}'; known are {}", path_.string(),
                                    entry.name, fmt::join(kNames, ", ")));
      arrays_[entry.name] = entry;
    }
    for (const char* name : kCounts) {
      const auto found = file_->metadata().find(name);
      if (found == file_->metadata().end()) continue;
      const auto& text = found->second;
      int64_t count = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
      if (error != std::errc() || end != text.data() + text.size() || count < 1)
        throw DataError(fmt::format("{}: metadata {} is '{:.40}'; must be a number from 1",
                                    path_.string(), name, text));
      counts_[name] = count;
    }
  }

  void check_sizes() {
    if (has("ids") == has("image"))
      throw DataError(fmt::format("{}: has {} ids and image; must have one of them", path_.string(),
                                  has("ids") ? "both" : "neither"));
    if (!has("targets")) throw DataError(path_.string() + ": has no targets");
    const char* input = has("ids") ? "ids" : "image";
    want(input, has("ids"), has("ids") ? 2 : 4);
    examples_ = array(input).shape[0];
    if (examples_ == 0) throw DataError(place(input) + ": has no examples");
    const auto& targets = array("targets");
    want("targets", is_whole(targets), is_whole(targets) && targets.shape.size() == 2 ? 2 : 0);
    if (targets.shape.empty() || targets.shape.size() > 2) wrong("targets", "[N], [N,T] or [N,k]");
    if (is_whole(targets) && targets.shape.size() == 2 &&
        (!has("ids") || targets.shape[1] != array("ids").shape[1]))
      wrong("targets", "[N,T] as ids, or [N]");
    if (has("length")) want("length", true, 1);
    if (has("segment")) {
      want("segment", true, 2);
      if (!has("ids") || array("segment").shape != array("ids").shape)
        wrong("segment", "[N,T] as ids");
    }
    for (const auto& [name, array] : arrays_)
      if (array.shape[0] != examples_)
        throw DataError(fmt::format("{}: {} has {} examples, and {} has {}", path_.string(), name,
                                    array.shape[0], input, examples_));
  }
  // Whole numbers where asked for; of `rank` dimensions, 0: any.
  void want(const char* name, bool whole, size_t rank) const {
    const auto& given = array(name);
    if (rank > 0 && given.shape.size() != rank)
      wrong(name, rank == 1 ? "[N]" : rank == 2 ? "[N,T]" : "[N,C,height,width]");
    if (whole && !is_whole(given)) wrong(name, "whole numbers");
    scalar_type(given, place(name));
  }
  [[noreturn]] void wrong(const char* name, const char* wanted) const {
    throw DataError(fmt::format("{}: is {} [{}]; must be {}", place(name),
                                dtype_name(array(name).dtype), fmt::join(array(name).shape, ","),
                                wanted));
  }

  fs::path path_;
  int64_t examples_ = 0;
  std::map<std::string, TensorEntry, std::less<>> arrays_;
  std::map<std::string, int64_t, std::less<>> counts_;
  std::unique_ptr<SafetensorsFile> file_;
  std::vector<std::unique_ptr<NpyFile>> npy_;
  std::vector<fs::path> files_;
};

// The file or folder of a split.
fs::path split_path(const fs::path& folder, const std::string& name) {
  const auto file = folder / (name + ".safetensors");
  std::error_code none;
  return fs::exists(file, none) ? file : folder / name;
}

class Arrays : public FiniteSource {
 public:
  struct Options : DataOptions, ReadsFolder, TestPartOption {
    FilePath path;

    Options() : TestPartOption(TestPart::Own::kWord) {}
    void visit(Fields& f) override {  // examples say how long they are
      f("path", path,
        "the directory of train.safetensors, validation.safetensors and perhaps test.safetensors, "
        "or of directories of these names with an .npy file an array");
      visit_test(f, "test.safetensors");
    }
    std::vector<fs::path> files_in(const fs::path& folder) const override {
      std::vector<fs::path> files;
      std::error_code none;
      for (const char* split : {"train", "validation", "test"}) {
        const auto path = split_path(folder, split);
        if (!fs::is_directory(path, none)) {
          if (fs::exists(path, none)) files.push_back(path);
          continue;
        }
        for (const char* name : kNames)
          if (const auto file = path / fmt::format("{}.npy", name); fs::exists(file, none))
            files.push_back(file);
      }
      return files;
    }
    void check(const Complain& complain) const override {
      if (path.written.empty()) complain("path", "is needed: the directory of the arrays");
    }
  };

  explicit Arrays(const Options& options) {
    const auto& folder = options.path.resolved;
    std::error_code none;
    for (const auto& [split, name] :
         {std::pair(Split::kTrain, "train"), std::pair(Split::kValidation, "validation"),
          std::pair(Split::kTest, "test")}) {
      const auto path = split_path(folder, name);
      if (split == Split::kTest && !fs::exists(path, none)) continue;
      if (!fs::exists(path, none))
        throw DataError(
            fmt::format("{}: is not there, and no {}.safetensors beside it", path.string(), name));
      const auto& one = *splits_.emplace(split, std::make_unique<ArraySplit>(path)).first->second;
      files_.insert(files_.end(), one.files().begin(), one.files().end());
    }
    read_shape();
    for (const auto& [split, arrays] : splits_) check_values(*arrays);
  }

  int64_t vocabulary() const override { return shape_.vocabulary; }
  int64_t context() const override { return shape_.context; }
  DataShape shape() const override { return shape_; }
  const Task& task() const override {
    if (shape_.values > 0) return regression_task();
    return shape_.classes > 0 ? classification_task() : prediction_task();
  }
  int64_t examples(Split split) const override {
    const auto found = splits_.find(split);
    return found == splits_.end() ? 0 : found->second->examples();
  }

 private:
  const ArraySplit& train() const { return *splits_.at(Split::kTrain); }

  // What the metadata of training say, else the largest number there, plus one.
  int64_t count_of(const char* count, const std::vector<const char*>& arrays) const {
    if (const auto told = train().count(count)) return *told;
    int64_t largest = 0;
    for (const char* name : arrays)
      largest = std::max(largest, train().largest(name, name == std::string("ids") ? 0 : kIgnored));
    return largest + 1;
  }

  void read_shape() {
    const auto& targets = train().array("targets");
    const bool of_example = targets.shape.size() == 1;
    if (!is_whole(targets))
      shape_.values = of_example ? 1 : targets.shape[1];
    else if (of_example)
      shape_.classes = count_of("classes", {"targets"});
    if (train().has("image")) {
      const auto& image = train().array("image").shape;
      shape_.channels = image[1], shape_.height = image[2], shape_.width = image[3];
      return;
    }
    shape_.context = train().array("ids").shape[1];
    const bool of_tokens = is_whole(targets) && !of_example;
    shape_.vocabulary =
        count_of("vocabulary", of_tokens ? std::vector{"ids", "targets"} : std::vector{"ids"});
  }

  // That every split fits what training has.
  void check_values(const ArraySplit& arrays) const {
    const char* input = train().has("ids") ? "ids" : "image";
    const auto& targets = arrays.array("targets");
    for (const char* name : {input, "targets"}) {
      if (!arrays.has(name)) throw DataError(arrays.place(name) + " is not there, as in training");
      auto then = train().array(name).shape, now = arrays.array(name).shape;
      then[0] = now[0] = 0;
      if (then != now || is_whole(train().array("targets")) != is_whole(targets))
        throw DataError(fmt::format(
            "{}: is {} [N,{}], and in training {} [N,{}]", arrays.place(name),
            dtype_name(arrays.array(name).dtype), fmt::join(now.begin() + 1, now.end(), ","),
            dtype_name(train().array(name).dtype), fmt::join(then.begin() + 1, then.end(), ",")));
    }
    if (arrays.has("ids")) require_below(arrays, "ids", 0, shape_.vocabulary, "vocabulary");
    if (shape_.values > 0)
      arrays.each_part("targets", [&](const Tensor& part, int64_t first) {
        const auto wrong = part.to(at::kDouble).isfinite().logical_not();
        if (wrong.any().item<bool>())
          throw DataError(fmt::format("{}: example {} has a number that is not finite",
                                      arrays.place("targets"),
                                      first + wrong.nonzero()[0][0].item<int64_t>()));
      });
    else
      require_below(arrays, "targets", kIgnored,
                    shape_.classes > 0 ? shape_.classes : shape_.vocabulary,
                    shape_.classes > 0 ? "classes" : "vocabulary");
    if (arrays.has("length"))
      require_below(arrays, "length", 1, shape_.context + 1, "ids' length + 1,");
    if (arrays.has("segment")) require_below(arrays, "segment", 0, 2, "segments");
  }

  static void require_below(const ArraySplit& arrays, const char* name, int64_t least, int64_t end,
                            const char* what) {
    if (const int64_t largest = arrays.largest(name, least); largest >= end)
      throw DataError(fmt::format(
          "{}: has {}, which is not below {} = {}{}", arrays.place(name), largest, what, end,
          std::string_view(what) == "segments" || name == std::string("length")
              ? ""
              : fmt::format("; the metadata '{}' of training, or its largest, "
                            "plus one, says how many there are",
                            what)));
  }

  Batch batch_of(Split split, const std::vector<int64_t>& numbers) const override {
    const auto& arrays = *splits_.at(split);
    const auto whole = [&](const char* name) {
      return arrays.has(name) ? arrays.rows(name, numbers).to(at::kLong) : Tensor();
    };
    Batch batch{.ids = whole("ids"), .length = whole("length"), .segment = whole("segment")};
    if (arrays.has("image")) {
      const auto image = arrays.rows("image", numbers);
      batch.image = image.to(at::kFloat);
      if (image.scalar_type() == at::kByte) batch.image.div_(127.5).sub_(1);  // 0 .. 255 to -1 .. 1
    }
    if (shape_.values == 0) {
      batch.targets = whole("targets");
      batch.targets.masked_fill_(batch.targets.lt(0), kIgnored);
    } else {
      batch.targets = arrays.rows("targets", numbers).to(at::kFloat).view({-1, shape_.values});
    }
    return batch;
  }

  DataShape shape_;
  std::map<Split, std::unique_ptr<ArraySplit>> splits_;
};

const RegisterData<Arrays> arrays_source(
    "arrays", "arrays from any program: ids or images, with classes or numbers to predict");

}  // namespace
}  // namespace headlab
