// Which code made a run, as its manifest says under `code`: digests of the sources of its kinds of
// heads, and of the rest of the program. No torch in here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace headlab {

// {"kinds": {name: SHA-256 of its source in variants/, null where it has none}, "rest": SHA-256},
// of this program as it was built.
nlohmann::ordered_json code_json(const std::set<std::string>& kinds);

// {"commit", "dirty", "changed": names of sources that differ from it or are not tracked}, of this
// program as it was built; null where that was no checkout of git.
nlohmann::ordered_json git_json();

// In which kinds of heads this program differs from the one that a `code` is of, a line each; also
// where that cannot be known. Empty: the same.
std::vector<std::string> kinds_that_differ(const nlohmann::ordered_json& code);
bool rest_differs(const nlohmann::ordered_json& code);

// The same of everything that went into a run: of its manifest, what stands there under `previous`,
// and the runs that it was made from. "" where all is the same; else one line of words.
std::string code_notice(const nlohmann::ordered_json& manifest);

// Leaves the uncommitted text of the sources as code.patch in a run, where there is any. One that
// lies there already and is another becomes code-1.patch, or the next that is free.
void keep_patch(const std::filesystem::path& run);

}  // namespace headlab
