#include "experiments/runs/run_code.h"

#include <fmt/format.h>

#include <algorithm>

#include "experiments/files/replacement_file.h"
#include "experiments/text/file_text.h"
#include "headlab_build.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Null: the kind is not in variants/.
const build::SourceDigest* source_of(const std::string& kind) {
  for (const auto& source : build::kVariantDigests)
    if (source.name == kind) return &source;
  return nullptr;
}

const Json& part(const Json& of, const char* name) {
  static const Json nothing;
  const auto found = of.is_object() ? of.find(name) : of.end();
  return of.is_object() && found != of.end() ? *found : nothing;
}

// What kinds_that_differ() says of all manifests that went into this one, each line once.
void collect(const Json& manifest, std::vector<std::string>& lines) {
  for (auto& line : kinds_that_differ(part(manifest, "code")))
    if (std::find(lines.begin(), lines.end(), line) == lines.end())
      lines.push_back(std::move(line));
  for (const auto& before : part(manifest, "previous")) collect(before, lines);
  if (const auto& parent = part(manifest, "parent"); parent.is_object()) collect(parent, lines);
}

}  // namespace

Json code_json(const std::set<std::string>& kinds) {
  Json digests = Json::object();
  for (const auto& kind : kinds) {
    const auto* source = source_of(kind);
    digests[kind] = source ? Json(source->digest) : Json();
  }
  return {{"kinds", digests}, {"rest", build::kRestDigest}};
}

Json git_json() {
  if (build::kCommit.empty()) return nullptr;
  return {{"commit", build::kCommit},
          {"dirty", !build::kChangedSources.empty()},
          {"changed",
           std::vector<std::string>(build::kChangedSources.begin(), build::kChangedSources.end())}};
}

std::vector<std::string> kinds_that_differ(const Json& code) {
  const auto& kinds = part(code, "kinds");
  if (!kinds.is_object()) return {"it keeps no digest of the code that made it"};
  std::vector<std::string> lines;
  for (const auto& [kind, then] : kinds.items()) {
    const auto* now = source_of(kind);
    if (!now)
      lines.push_back(
          fmt::format("the source of {} is not in variants/, so it is not known", kind));
    else if (!then.is_string() || then != now->digest)
      lines.push_back(fmt::format("the source of {} was another, {}", kind, now->place));
  }
  return lines;
}

bool rest_differs(const Json& code) { return part(code, "rest") != build::kRestDigest; }

std::string code_notice(const Json& manifest) {
  std::vector<std::string> lines;
  collect(manifest, lines);
  return fmt::format("{}", fmt::join(lines, "; "));
}

void keep_patch(const fs::path& run) {
  const auto path = run / "code.patch";
  std::error_code none;
  if (fs::exists(path, none)) {
    if (file_text(path) == build::kPatch) return;
    int number = 1;
    const auto kept = [&] { return run / fmt::format("code-{}.patch", number); };
    while (fs::exists(kept(), none)) ++number;
    fs::rename(path, kept(), none);
  }
  if (!build::kPatch.empty()) replace_file(path, std::string(build::kPatch));
}

}  // namespace headlab
