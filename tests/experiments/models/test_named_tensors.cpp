// Tensors of every kind of layout through a file and back.
#include <ATen/ATen.h>
#include <stdlib.h>

#include <filesystem>

#include "core/errors.h"
#include "experiments/files/safetensors.h"
#include "experiments/models/named_tensors.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_named_tensors {
namespace {

namespace fs = std::filesystem;

// The path of a file in a directory of its own, gone with the test.
struct ScratchFile {
  Scratch folder;
  fs::path path = folder / "x.safetensors";
};

void check_same(const NamedTensors& got, const NamedTensors& want) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, tensor] : want) {
    INFO(name);
    REQUIRE(got.contains(name));
    CHECK(got.at(name).scalar_type() == tensor.scalar_type());
    CHECK(got.at(name).sizes() == tensor.sizes());
    CHECK(got.at(name).is_contiguous());
    CHECK(got.at(name).equal(tensor.detach()));
  }
}

TEST_CASE("tensors of every dtype that safetensors has come back as they were") {
  const ScratchFile scratch;
  NamedTensors tensors;
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kUInt16, at::kHalf, at::kBFloat16,
        at::kInt, at::kUInt32, at::kFloat, at::kLong, at::kUInt64, at::kDouble}) {
    tensors[at::toString(type)] = at::arange(6).reshape({2, 3}).to(type);  // [2,3]
  }
  write_tensors(scratch.path, tensors);
  check_same(read_tensors(scratch.path), tensors);
}

TEST_CASE("scalars, empty tensors, views, shared storage and parameters are written by value") {
  const ScratchFile scratch;
  const at::Tensor base = at::arange(24, at::kDouble).reshape({2, 3, 4});  // [2,3,4]
  const NamedTensors tensors = {
      {"scalar", at::scalar_tensor(3.5)},
      {"empty", at::empty({0, 3})},
      {"transposed", base.transpose(0, 2)},               // [4,3,2]
      {"strided", base.select(2, 1)},                     // [2,3]
      {"expanded", base.select(0, 0).expand({5, 3, 4})},  // [5,3,4]
      {"whole", base},
      {"parameter", at::ones({2}).requires_grad_()},
  };
  write_tensors(scratch.path, tensors);
  check_same(read_tensors(scratch.path), tensors);
}

TEST_CASE("a view that is negated lazily is written with its values") {
  const ScratchFile scratch;
  const at::Tensor negated = at::imag(at::conj(at::complex(at::ones({2}), at::arange(2.f))));
  REQUIRE(negated.is_neg());
  write_tensors(scratch.path, {{"a", negated}});
  CHECK(read_tensors(scratch.path).at("a").equal(-at::arange(2.f)));
}

TEST_CASE("metadata is carried beside the tensors, which outlive the file") {
  const ScratchFile scratch;
  write_tensors(scratch.path, {{"a", at::ones({3})}}, {{"headlab_case", "1"}});
  std::map<std::string, std::string> metadata = {{"stale", ""}};
  const NamedTensors tensors = read_tensors(scratch.path, &metadata);
  fs::remove(scratch.path);
  CHECK(metadata == std::map<std::string, std::string>{{"format", "pt"}, {"headlab_case", "1"}});
  CHECK(tensors.at("a").equal(at::ones({3})));
}

TEST_CASE("a bool stored as any byte but 0 is read as true") {
  const ScratchFile scratch;
  const std::string bytes("\0\1\2\xff", 4);
  write_safetensors(
      scratch.path,
      {{"a", Dtype::kBool, {4}, reinterpret_cast<const std::byte*>(bytes.data()), 4}});
  const at::Tensor read = read_tensors(scratch.path).at("a");
  CHECK(read.scalar_type() == at::kBool);
  CHECK(read.sum().item<int64_t>() == 3);
}

TEST_CASE("a tensor that safetensors cannot hold is named and nothing is written") {
  const ScratchFile scratch;
  CHECK_THROWS_WITH(write_tensors(scratch.path, {{"c", at::zeros({1}, at::kComplexFloat)}}),
                    Catch::Matchers::StartsWith("tensor 'c': safetensors has no dtype for"));
  CHECK_THROWS_WITH(write_tensors(scratch.path, {{"u", at::Tensor()}}),
                    Catch::Matchers::StartsWith("tensor 'u' is undefined"));
  CHECK_FALSE(fs::exists(scratch.path));
}

TEST_CASE("a missing file of tensors is a data error") {
  const ScratchFile scratch;
  CHECK_THROWS_AS(read_tensors(scratch.path), DataError);
}

}  // namespace
}  // namespace headlab::test_named_tensors
