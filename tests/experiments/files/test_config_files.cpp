// Configuration files: extends, overrides, kinds that change.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "experiments/files/config_file.h"
#include "tests/catch.h"
#include "tests/config_testing.h"
#include "tests/scratch.h"

namespace headlab::test_config_files {

using namespace config_testing;

namespace fs = std::filesystem;

namespace {

// A folder of files for one test.
class Folder : public Scratch {
 public:
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((path() / name).parent_path());
    write_bytes(path() / name, text);
    return path() / name;
  }
};

// What Folder's files say in messages, with the folder taken out.
std::string without(std::string text, const Folder& folder) {
  const std::string head = (folder / "").string();
  for (size_t at; (at = text.find(head)) != std::string::npos;) text.erase(at, head.size());
  return text;
}

}  // namespace

TEST_CASE("extends merges over the parent, whose paths keep their own directory") {
  Folder folder;
  folder.write("base/root.yaml", "steps: 1\nname: root\nlog: {on: true, path: root.txt}\n");
  folder.write("base/mid.yaml", "extends: root.yaml\nsteps: 2\ndata: mid.txt\nlayers: [1, 2]\n");
  const fs::path top =
      folder.write("top/top.yaml", "extends: ../base/mid.yaml\nlog: {every: 5}\nlayers: [7]\n");
  Settings s;
  read_config(s, load_config(top));
  CHECK(s.steps == 2);
  CHECK(s.name == "root");
  CHECK(s.log.on);
  CHECK(s.log.every == 5);
  CHECK(s.layers == std::vector<int64_t>{7});
  CHECK(s.data.resolved == folder / "base/mid.txt");
  CHECK(s.log.path.resolved == folder / "base/root.txt");
}

TEST_CASE("problems of a parent name the parent") {
  Folder folder;
  folder.write("base.yaml", "\nsteps: 0\nlog:\n  on: true\n");
  const fs::path top = folder.write("a/top.yaml", "extends: ../base.yaml\nlog:\n  on: yes\n");
  Settings s;
  const std::string all = error_of([&] { read_config(s, load_config(top)); });
  CHECK(without(all, folder) ==
        "base.yaml:2:8: steps: must be at least 1, is 0\n"
        "a/top.yaml:3:7: log.on: must be true or false, is 'yes'; did you mean 'true'?");
}

TEST_CASE("files that extend each other, or none, are errors") {
  Folder folder;
  const auto load = [&](const std::string& name) {
    return without(error_of([&] { load_config(folder / name); }), folder);
  };
  folder.write("a.yaml", "x: 1\nextends: b.yaml\n");
  folder.write("b.yaml", "extends: a.yaml\n");
  CHECK(load("a.yaml") ==
        "b.yaml:1:10: extends: a.yaml: extends itself: a.yaml -> b.yaml -> a.yaml");
  folder.write("self.yaml", "extends: self.yaml\n");
  CHECK(load("self.yaml") ==
        "self.yaml:1:10: extends: self.yaml: extends itself: self.yaml -> self.yaml");
  folder.write("lost.yaml", "extends: none.yaml\n");
  CHECK(load("lost.yaml") ==
        "lost.yaml:1:10: extends: none.yaml: cannot open: No such file or directory");
  folder.write("list.yaml", "extends: [a.yaml]\n");
  CHECK(load("list.yaml") == "list.yaml:1:10: extends: must be the path of one file");
  CHECK(load("none.yaml") == "none.yaml: cannot open: No such file or directory");
  folder.write("dir/x", "");
  CHECK(load("dir") == "dir: cannot read: Is a directory");
  CHECK(error_of([] { load_config(""); }) == ": cannot open: No such file or directory");
  fs::create_symlink("ring", folder / "ring");
  CHECK(load("ring") == "ring: cannot open: Too many levels of symbolic links");
  CHECK(load(std::string(300, 'x')) == std::string(300, 'x') + ": cannot open: File name too long");
  CHECK(error_of([] { load_config("/dev/zero"); }) ==
        "/dev/zero: is larger than 1 MiB, so not a configuration");

  for (int i = 0; i < 20; ++i) {
    folder.write(fmt::format("c{}.yaml", i), fmt::format("extends: c{}.yaml\n", i + 1));
  }
  folder.write("c20.yaml", "x: 1\n");
  CHECK(load("c5.yaml") == "no error");
  CHECK(load("c4.yaml") ==
        "c19.yaml:1:10: extends: c20.yaml: more than 16 files extend each other");
}

TEST_CASE("overrides go through the same reader and start paths at the caller") {
  Folder folder;
  const fs::path file =
      folder.write("c.yaml", "steps: 5\nlog: {every: 4}\nattention: {kind: moh, shared: 1}\n");
  const auto with = [&](const std::vector<std::string>& overrides) {
    Settings s;
    read_config(s, load_config(file, overrides));
    return s;
  };
  const Settings s = with({"steps=7", "log.on=true", "data=x/y.txt", "name=a=b", "layers=[1, 2]",
                           "attention.shared=0", "log.path=/abs/z"});
  CHECK(s.steps == 7);
  CHECK(s.log.on);
  CHECK(s.log.every == 4);
  CHECK(s.data.resolved == fs::current_path() / "x/y.txt");
  CHECK(s.log.path.resolved == fs::path("/abs/z"));
  CHECK(s.name == "a=b");
  CHECK(s.layers == std::vector<int64_t>{1, 2});
  CHECK(s.attention.as<Moh>().shared == 0);
  CHECK(with({"steps=7", "steps=8"}).steps == 8);
  CHECK(with({"log={on: true}"}).log.every == 4);

  const auto told = [&](const std::vector<std::string>& overrides) {
    return without(error_of([&] { with(overrides); }), folder);
  };
  CHECK(told({"steps=0"}) == "override: steps: must be at least 1, is 0");
  CHECK(told({"step=1"}) == "override: step: unknown key; did you mean 'steps'?");
  CHECK(told({"log.evry=1"}) == "override: log.evry: unknown key; did you mean 'every'?");
  CHECK(told({"log={evry: 1}"}) == "override: log.evry: unknown key; did you mean 'every'?");
  CHECK(told({"steps"}) == "override: steps: must be written a.b.c=value");
  CHECK(told({"=3"}) == "override: has an empty key; write a.b.c=value");
  CHECK(told({"log..on=3"}) == "override: log..on: has an empty key; write a.b.c=value");
  CHECK(told({"layers=[1"}) == "override: layers: the bracket is not closed");
  CHECK(told({"layers=[1, &x 2]"}) ==
        "override: layers[1]: anchors (&) are not supported; write the value out");
  CHECK(told({"log={on: true, on: true}"}) == "override: log.on: duplicate key");
  CHECK(told({"steps="}) == "override: steps: must be an integer, is empty");
  CHECK(told({"steps.x=1"}) ==
        "override: steps.x: 'steps' is a plain value, not a mapping; write steps={x: ...}");
  CHECK(told({"layers=[1]", "layers.x=1"}) ==
        "override: layers.x: 'layers' is a list, not a mapping; write layers={x: ...}");
  CHECK(told({"steps=13"}) == "override: steps: must not be 13");
  // A mapping that an override passes through keeps its place.
  CHECK(told({"attention.kind=moh", "attention.shared=9"}) ==
        "c.yaml:3:12: attention: too many heads");
}

TEST_CASE("a kind that changes takes none of the old options with it") {
  Folder folder;
  const fs::path file = folder.write("c.yaml", "attention: {kind: moh, shared: 1}\n");
  const auto with = [&](const std::vector<std::string>& overrides) {
    Settings s;
    read_config(s, load_config(file, overrides));
    return s.attention;
  };
  CHECK(with({"attention.kind=mha"}).kind() == "mha");
  CHECK(with({"attention={kind: mha, bias: false}"}).kind() == "mha");
  CHECK(with({"attention=mha"}).kind() == "mha");
  CHECK(with({"attention.kind=moh"}).as<Moh>().shared == 1);
  CHECK(with({"attention={kind: moh, active: 3}"}).as<Moh>().shared == 1);
  // Whichever is named first.
  CHECK_FALSE(with({"attention.bias=false", "attention.kind=mha"}).as<Mha>().bias);
  CHECK_FALSE(with({"attention.kind=mha", "attention.bias=false"}).as<Mha>().bias);

  folder.write("child.yaml", "extends: c.yaml\nattention: {kind: mha}\n");
  Settings s;
  read_config(s, load_config(folder / "child.yaml"));
  CHECK(s.attention.kind() == "mha");
}

}  // namespace headlab::test_config_files
