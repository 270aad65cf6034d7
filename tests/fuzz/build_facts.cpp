// The fuzzers are told nothing of the code they are made of.
#include "headlab_build.h"

namespace headlab::build {

const std::string_view kSourceDir, kBinaryDir, kRestDigest, kCommit, kPatch;
const std::span<const std::string_view> kVariantStems, kChangedSources;
const std::span<const SourceDigest> kVariantDigests;

}  // namespace headlab::build
