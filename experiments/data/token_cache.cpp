#include "experiments/data/token_cache.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/errors.h"
#include "experiments/files/cache_folder.h"
#include "experiments/files/mapped_file.h"
#include "experiments/files/replacement_file.h"
#include "experiments/files/sha256.h"
#include "experiments/system/memory.h"
#include "experiments/system/output.h"
#include "experiments/system/signals.h"
#include "experiments/system/writer_lock.h"
#include "experiments/text/duration.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// To be raised whenever a tokenizer gives a text other ids than before.
constexpr int kVersion = 1;

// Shorter texts take no second of one core, about what a command takes to start, and a file of each
// would be clutter. (BPE of 32,000 tokens: 4 MB are made in 0.9 s, and found in less than 0.1 s.)
constexpr size_t kLong = 4 << 20;

using Digits = std::array<char, 64>;  // of a SHA-256
struct Trailer {
  std::array<char, 16> what{"headlab tokens"};
  uint64_t count = 0;
  Digits key{}, ids{};
};

Digits digits(const std::string& sha256) {
  Digits all{};
  std::copy_n(sha256.begin(), std::min(sha256.size(), all.size()), all.begin());
  return all;
}

// Shared with what asks for the file's digest, which a run is known by.
std::string digest_of(const SourceText& text) {
  if (text.file.empty()) return sha256(text.text);
  const bool whole = text.stamp.bytes == std::ssize(text.text);  // no byte order mark
  if (const auto known = digest_read(text.stamp); known && whole) return *known;
  const bool settled = is_settled(text.stamp);
  const auto digest = sha256(text.text);
  if (whole && settled && stamp_of(text.file) == text.stamp) remember_digest(text.stamp, digest);
  return digest;
}

std::string key_of(const Tokenizer& tokenizer, const SourceText& text) {
  return sha256(
      fmt::format("{} {} {}", kVersion, digest_of(text), sha256(tokenizer.json().dump())));
}

// What is in the file; none where it is not there, or is not what was written there.
std::optional<TokenIds> read_ids(const fs::path& path, const std::string& key, int64_t width) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return std::nullopt;
  std::shared_ptr<const MappedFile> file;
  try {
    file = std::make_shared<MappedFile>(path);
  } catch (const DataError&) {  // may not be read
    return std::nullopt;
  }
  Trailer trailer;
  if (file->size() < sizeof trailer) return std::nullopt;
  const size_t bytes = file->size() - sizeof trailer;
  std::memcpy(&trailer, file->data() + bytes, sizeof trailer);
  if (trailer.what != Trailer{}.what || trailer.key != digits(key) ||
      trailer.count * static_cast<uint64_t>(width) != bytes ||
      trailer.ids != digits(sha256_of_part(*file, 0, bytes)))
    return std::nullopt;
  return TokenIds::in(file->text().substr(0, bytes), width, file);
}

// Unless it is held.
void remove_lock(const fs::path& path) {
  try {
    const WriterLock lock(path.parent_path() / path.stem());
  } catch (const RunError&) {  // it is, or another's
  }
}

// What killed processes left. A file that is being written changes all the time.
void remove_left_over(const fs::path& folder) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code none;
    const auto& path = entry->path();
    const auto age = fs::file_time_type::clock::now() - entry->last_write_time(none);
    if (none || age < std::chrono::hours(1)) continue;
    if (path.filename().string().starts_with(".tmp-")) fs::remove(path, none);
    if (path.extension() == ".lock") remove_lock(path);
  }
}

WriterLock lock_when_free(const fs::path& path, const std::string& name) {
  for (bool told = false;;) {
    try {
      return WriterLock(path);
    } catch (const TakenError&) {
      if (!std::exchange(told, true))
        tell("{}: waits for {}, which makes the same tokens", name,
             WriterLock::holder(path).value_or("another process"));
    }
    StopSignals::end_if_received();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

double bytes_of(const EncodingCost& cost, const Tokenizer& tokenizer) {
  return cost.tokens * static_cast<double>(id_width(tokenizer.vocabulary()));
}

// `where`: "in memory", of what is told of the tokens' bytes.
void tell_cost(const Tokenizer& tokenizer, const SourceText& text,
               const std::optional<EncodingCost>& cost, const EncodingOptions& options,
               const std::string& where) {
  const auto size = readable_bytes(static_cast<double>(text.text.size()));
  if (!cost) return tell("{}: {} of text become tokens {}", text.name, size, where);
  tell("{}: {} of text become about {} tokens in about {} with {} thread{}: {} {}", text.name, size,
       with_commas(static_cast<int64_t>(cost->tokens)), duration_text(cost->seconds),
       options.threads, options.threads == 1 ? "" : "s", readable_bytes(bytes_of(*cost, tokenizer)),
       where);
}

void require_room(const fs::path& folder, double bytes) {
  std::error_code error;
  const auto room = fs::space(folder, error);
  if (!error && static_cast<double>(room.available) < bytes)
    throw RunError(fmt::format("{}: has {} left, and the tokens take {}", folder.string(),
                               readable_bytes(static_cast<double>(room.available)),
                               readable_bytes(bytes)));
}

void require_unchanged(const SourceText& text) {
  if (!text.file.empty() && stamp_of(text.file) != text.stamp)
    throw DataError(text.name + ": has changed while it was read; run the command again");
}

void write_ids(const fs::path& path, const std::string& key, const Tokenizer& tokenizer,
               const SourceText& text, const EncodingOptions& options) {
  ReplacementFile file(path);
  const UnfinishedFile unfinished(file.temporary());
  Sha256 digest;
  size_t bytes = 0;
  encode_in_parts(tokenizer, text.text, text.name, options, [&](std::string_view ids) {
    file.write(ids.data(), ids.size());
    digest.add(ids.data(), ids.size());
    bytes += ids.size();
  });
  require_unchanged(text);
  const auto width = static_cast<size_t>(id_width(tokenizer.vocabulary()));
  const Trailer trailer{.count = bytes / width, .key = digits(key), .ids = digits(digest.text())};
  file.write(&trailer, sizeof trailer);
  file.commit();
}

}  // namespace

TokenIds kept_tokens(const fs::path& folder, const Tokenizer& tokenizer, const SourceText& text,
                     const EncodingOptions& options) {
  const auto key = key_of(tokenizer, text);
  const auto path = folder / (key + ".ids");
  const auto width = id_width(tokenizer.vocabulary());
  if (auto ids = read_ids(path, key, width)) return std::move(*ids);
  make_cache_folder(folder);
  const auto lock = lock_when_free(path, text.name);
  if (auto ids = read_ids(path, key, width)) return std::move(*ids);  // made by another process
  remove_left_over(folder);
  const auto cost = estimated_cost(tokenizer, text.text, options);
  if (cost) require_room(folder, bytes_of(*cost, tokenizer));
  tell_cost(tokenizer, text, cost, options,
            fmt::format("in {}, for later commands", folder.string()));
  write_ids(path, key, tokenizer, text, options);
  if (auto ids = read_ids(path, key, width)) return std::move(*ids);
  throw RunError(path.string() + ": cannot be read again");
}

TokenIds tokens_of(const Tokenizer& tokenizer, const SourceText& text) {
  const EncodingOptions options{.threads = encoding_threads()};
  const auto in_memory = [&] { return encode_in_memory(tokenizer, text.text, text.name, options); };
  if (text.text.size() < kLong) return in_memory();
  std::string reason = "neither XDG_CACHE_HOME nor HOME names a folder";
  try {
    if (const auto cache = cache_folder(); !cache.empty())
      return kept_tokens(cache / "tokens", tokenizer, text, options);
  } catch (const RunError& error) {
    reason = error.what();
  }
  tell_cost(tokenizer, text, estimated_cost(tokenizer, text.text, options), options,
            fmt::format("in memory, by every command anew, for they cannot be kept: {}", reason));
  return in_memory();
}

}  // namespace headlab
