#include "experiments/files/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <new>

#include "experiments/files/mapped_file.h"

namespace headlab {

namespace {

// Fails only where it finds no memory.
void require(int done) {
  if (done != 1) throw std::bad_alloc();
}

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    require(context_ ? EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) : 0);
  }
  void add(const void* bytes, size_t count) {
    require(EVP_DigestUpdate(context_.get(), bytes, count));
  }
  std::string text() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    require(EVP_DigestFinal_ex(context_.get(), digest, &size));
    std::string text;
    for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256(std::string_view bytes) {
  Digest digest;
  digest.add(bytes.data(), bytes.size());
  return digest.text();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  constexpr size_t kPiece = size_t{16} << 20;  // so that no more of a large file is in memory
  const MappedFile file(path);
  Digest digest;
  for (size_t begin = 0; begin < file.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, file.size() - begin);
    digest.add(file.data() + begin, count);
    file.forget(file.data() + begin, count);
  }
  return digest.text();
}

}  // namespace headlab
