#include "experiments/system/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <new>

#include "core/files/mapped_file.h"

namespace headlab {

std::string sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  // Fails only where it finds no memory.
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    throw std::bad_alloc();
  }
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path) {
  return sha256(MappedFile(path).text());
}

}  // namespace headlab
