#include "experiments/files/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <new>

namespace headlab {

namespace {

// Fails only where it finds no memory.
void require(int done) {
  if (done != 1) throw std::bad_alloc();
}

EVP_MD_CTX* context_in(const std::shared_ptr<void>& held) {
  return static_cast<EVP_MD_CTX*>(held.get());
}

}  // namespace

Sha256::Sha256()
    : context_(EVP_MD_CTX_new(),
               [](void* held) { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(held)); }) {
  require(context_ ? EVP_DigestInit_ex(context_in(context_), EVP_sha256(), nullptr) : 0);
}

void Sha256::add(const void* bytes, size_t count) {
  require(EVP_DigestUpdate(context_in(context_), bytes, count));
}

std::string Sha256::text() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context_in(context_), digest, &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256(std::string_view bytes) {
  Sha256 digest;
  digest.add(bytes.data(), bytes.size());
  return digest.text();
}

std::string sha256_of_part(const MappedFile& file, size_t begin, size_t count) {
  constexpr size_t kPiece = size_t{16} << 20;  // so that no more of a large file is in memory
  Sha256 digest;
  for (const size_t end = begin + count; begin < end;) {
    const size_t piece = std::min(kPiece, end - begin);
    digest.add(file.data() + begin, piece);
    file.forget(file.data() + begin, piece);
    begin += piece;
  }
  return digest.text();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return sha256_of_part(file, 0, file.size());
}

}  // namespace headlab
