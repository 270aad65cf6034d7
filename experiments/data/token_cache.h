// The tokens of long texts, kept in files so that not every command makes them anew.
//
// FOLDER/KEY.ids holds the ids, id_width() bytes each, then a trailer. KEY is the SHA-256 of the
// text, the tokenizer and the version of this encoding, so that no file ever becomes out of date.
// - It is written under another name and renamed when it is whole and on the disk.
// - Two processes that want the same wait for each other (WriterLock). Where the file system has no
//   locks each writes a file of its own, and the last rename stays.
// - It is believed where its size and its trailer are right and the ids have the SHA-256 that the
//   trailer names: to read them takes less than to read the text, which every command does for its
//   key. What is not believed is made anew.
// - It may be removed at any time: who has it mapped keeps it.
#pragma once

#include <filesystem>

#include "experiments/data/formats/plain_text.h"
#include "experiments/data/text_encoding.h"

namespace headlab {

// The ids of a text by all threads: a short one in memory; a long one in the cache folder, where
// they are mapped from, or, where it cannot be written, in memory, too, which is told. LineError,
// NotUtf8 as Tokenizer::encode(); DataError for a file that changes meanwhile.
TokenIds tokens_of(const Tokenizer& tokenizer, const SourceText& text);

// The same in a folder, whatever the text's length. RunError where it cannot be written.
TokenIds kept_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                     const SourceText& text, const EncodingOptions& options);

}  // namespace headlab
