// Files of a task's examples and labels (format headlab_task).
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/cases/case_file.h"
#include "experiments/files/safetensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_task_case {
using namespace testing;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

const fs::path kFolder = fs::path(build::kSourceDir) / "tests/golden/tasks";

struct File {
  explicit File(const std::string& name) {
    tensors = read_tensors(kFolder / (name + ".safetensors"), &metadata);
    metadata.erase("format");
  }
  std::vector<Verdict> verdicts() const {
    const Scratch scratch;
    write_tensors(scratch / "changed", tensors, metadata);
    return judge_case(scratch / "changed", at::kCPU, Backend::kAuto).verdicts;
  }
  std::string refusal() const {
    try {
      verdicts();
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  }
  NamedTensors tensors;
  Metadata metadata;
};

}  // namespace

TEST_CASE("the authors' labels are those of the tasks' rules", "[golden][data]") {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    ++files;
    const auto judged = judge_case(entry.path(), at::kCPU, Backend::kAuto);
    REQUIRE(judged.verdicts.size() == 1);
    INFO(entry.path() << "\n" << verdict_line(judged.verdicts[0]));
    CHECK(judged.verdicts[0].name == "out.targets");
    CHECK(judged.verdicts[0].bound == 0);
    CHECK(judged.verdicts[0].pass);
  }
  CHECK(files >= 11);
}

TEST_CASE("one other label fails the file", "[golden][data]") {
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    File file(entry.path().stem());
    auto& targets = file.tensors.at("out.targets");
    targets = targets.clone();
    auto last = targets.flatten()[targets.numel() - 1];
    last.fill_(last.item<int64_t>() == 1 ? 2 : 1);
    INFO(entry.path());
    CHECK_FALSE(all_pass(file.verdicts()));
  }
}

TEST_CASE("a file of a task that cannot be labelled is refused", "[data]") {
  File file("fuzzy_recall");
  auto without = file;
  without.tensors.erase("in.last");
  CHECK_THAT(without.refusal(), Contains("changed: in.ids: example 0, place 128: in.last"));
  without = file;
  without.tensors["in.last"] = file.tensors["in.last"].slice(0, 0, 3);
  CHECK_THAT(without.refusal(), Contains("in.last must have as many rows as in.ids"));
  without = file;
  without.tensors["in.ids"] = file.tensors["in.ids"].slice(1, 0, 100).contiguous();
  CHECK_THAT(without.refusal(), Contains("in.ids has 100 places, the config's context is 128"));
  without = file;
  without.tensors["in.ids"] = file.tensors["in.ids"] + 1;
  CHECK_THAT(without.refusal(), Contains("in.ids must lie in 0 .. 15"));
  without = file;
  without.tensors["in.ids"] = file.tensors["in.ids"].to(at::kFloat);
  CHECK_THAT(without.refusal(), Contains("in.ids must be integers of 2 dimensions"));
  without = file;
  without.metadata["config"] = R"({"kind": "copy"})";
  CHECK_THAT(without.refusal(), Contains("copy has no rule that labels ids"));
  without.metadata["config"] = R"({"kind": "fuzzy_recall", "symbol": 16})";
  CHECK_THAT(without.refusal(), Contains("data.symbol: ") && Contains("did you mean 'symbols'?"));
  without.metadata.erase("config");
  CHECK_THAT(without.refusal(), Contains("the metadata has no config"));
}

}  // namespace headlab::test_task_case
