// What the fuzzers share: bytes as the files that a parser reads, which of its exceptions are
// lawful refusals, and how much memory it may ask for. Whatever breaks these rules ends the
// process, and libFuzzer keeps the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace headlab::fuzzing {

// A folder of this process, in TMPDIR, which scripts/fuzz puts into memory and removes.
const std::filesystem::path& folder();
// Writes a file there -> its path.
std::filesystem::path write(const std::string& name, std::string_view bytes);

// Inputs that stand for several files: what lies between lines of "%%", at most `count`, the last
// with all the rest. Always `count` of them, missing ones are empty.
std::vector<std::string_view> parts(std::string_view input, size_t count);

// Runs a parser on a file of so many bytes. ConfigError, DataError and RunError are its answers, as
// long as they say what file they are about (`names`: a part of its name); others escape and are
// crashes. No allocation may have more than max(1 MB, 4 times the bytes) and twice `unpacked`, what
// a header announces; all that lives at once not more than 64 MB and 32 times the bytes.
void parse(size_t bytes, std::string_view names, const std::function<void()>& work,
           size_t unpacked = 0);

// Ends the process where two things that must agree do not.
void require(bool holds, const char* what);

// Reads every byte, so that the sanitizers see whether they are there.
void touch(const void* data, size_t bytes);

}  // namespace headlab::fuzzing
