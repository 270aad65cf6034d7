"""Sources of a folder that are compiled together keep names of their own, whatever their neighbours' are."""

import importlib.util
import shutil
import subprocess

from conftest import ROOT

spec = importlib.util.spec_from_file_location("own_names", ROOT / "scripts/cmake/own_names.py")
own_names = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own_names)

SOURCE = '''#include <map>
namespace headlab {
namespace {  // of this file: int no_name;

using Ids = std::vector<int>;
constexpr int kOne = 1, kTwo[] = {2, kOne};
const std::string text = "int in_text;";
std::map<int, int> counts{{1, 2}};
enum class Side { kLeft };
struct Point : Base<int> {
  int member = 0;
  int method() const { return member; }
};
class Declared;

template <typename T, int N = 2>
std::vector<T> made(const T& parameter, int other = kOne) {
  int local = 0;
  return {parameter};
}
bool operator==(const Point&, const Point&) { return true; }
const auto lambda = [](int a) { return a; };
static_assert(kOne == 1);
[[maybe_unused]] int last(int) { return 0; }

}  // namespace

int outside() { return last(1); }
int Other::made_here() { return 0; }

}  // namespace headlab
'''


def test_names_are_those_that_anonymous_namespaces_declare():
    assert own_names.own_names(SOURCE) == {("headlab::Ids", "std::vector<int>")} | {
        (f"headlab::{name}", "") for name in
        ("kOne", "kTwo", "text", "counts", "Side", "Point", "Declared", "made", "lambda", "last")}
    assert own_names.own_names("namespace headlab::test_a {\nnamespace {\nint a;\n}\n}\n") == {
        ("headlab::test_a::a", "")}


def in_headlab(text):
    return f"namespace headlab {{\nnamespace {{\n{text}\n}}\n}}\n"


def test_sources_with_a_name_alike_are_in_no_unit_together(tmp_path):
    sources = {"a": "using A = int;\nA twice(int) { return 1; }", "b": "using A = int;\nA once(int) { return 1; }",
               "c": "double twice(int) { return 2; }"}
    for name, text in sources.items():
        (tmp_path / "core").mkdir(exist_ok=True)
        (tmp_path / f"core/{name}.cpp").write_text(in_headlab(text))
    (tmp_path / "scripts/cmake").mkdir(parents=True)
    for name in "Units.cmake", "edited_sources", "own_names.py":
        shutil.copy(ROOT / "scripts/cmake" / name, tmp_path / "scripts/cmake")
    (tmp_path / "CMakeLists.txt").write_text('''cmake_minimum_required(VERSION 3.24)
project(units NONE)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
include(scripts/cmake/Units.cmake)
file(GLOB sources core/*.cpp)
headlab_units(compiled all ${sources})
file(WRITE ${CMAKE_BINARY_DIR}/compiled "${compiled}")
''')
    build = tmp_path / "build"
    subprocess.run(["cmake", "-S", tmp_path, "-B", build], check=True, capture_output=True)
    alone, unit = (build / "compiled").read_text().split(";")
    assert alone == f"{tmp_path}/core/c.cpp"
    subprocess.run(["c++", "-std=c++20", "-fsyntax-only", "-I", tmp_path, unit], check=True)
    (build / "together.cpp").write_text('#include "core/a.cpp"\n#include "core/c.cpp"\n')
    assert subprocess.run(["c++", "-std=c++20", "-fsyntax-only", "-I", tmp_path, build / "together.cpp"],
                          capture_output=True).returncode != 0
