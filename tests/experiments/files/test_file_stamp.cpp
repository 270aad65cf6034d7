// What tells a file from one that was there before, and digests in parts.
#include "experiments/files/file_stamp.h"
#include "experiments/files/mapped_file.h"
#include "experiments/files/sha256.h"
#include "tests/catch.h"
#include "tests/scratch.h"

namespace headlab::test_file_stamp {

TEST_CASE("a stamp is of one file with one content, whoever asks for it") {
  const Scratch scratch;
  write_bytes(scratch / "a", "text");
  const auto stamp = stamp_of(scratch / "a");
  CHECK(stamp.bytes == 4);
  CHECK(is_settled(stamp));
  CHECK(MappedFile(scratch / "a").stamp() == stamp);
  write_bytes(scratch / "a", "tex2");
  CHECK(stamp_of(scratch / "a") != stamp);
  write_bytes(scratch / "b", "text");
  CHECK(stamp_of(scratch / "b") != stamp);
  CHECK(stamp_of(scratch / "none") == FileStamp{});
  auto later = stamp;
  later.changed_ns += int64_t{3600} * 1'000'000'000;
  CHECK_FALSE(is_settled(later));  // by a clock that is not ours
}

TEST_CASE("a digest is known again by the stamp") {
  const FileStamp stamp{.device = 1, .inode = 2, .bytes = 3, .modified_ns = 4, .changed_ns = 5};
  CHECK_FALSE(digest_read(stamp));
  remember_digest(stamp, "abc");
  CHECK(digest_read(stamp) == "abc");
  auto other = stamp;
  other.changed_ns = 6;
  CHECK_FALSE(digest_read(other));
}

TEST_CASE("a digest in parts is that of the whole") {
  const Scratch scratch;
  const std::string text(100'000, 'x');
  write_bytes(scratch / "a", "ab" + text);
  const MappedFile file(scratch / "a");
  CHECK(sha256_of_part(file, 2, text.size()) == sha256(text));
  CHECK(sha256_of_part(file, 2, 0) == sha256(""));
  CHECK(sha256_of_file(scratch / "a") == sha256("ab" + text));
  Sha256 digest;
  for (const char c : text) digest.add(&c, 1);
  CHECK(digest.text() == sha256(text));
}

}  // namespace headlab::test_file_stamp
