// Files under names that someone else may have laid: opened only where they are regular files, and
// written only where nothing else is changed by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace headlab {

// A descriptor of open(2) with these flags; -1 with errno where there is no such file or it may not
// be opened. It never waits, as for the writer of a FIFO. RunError for what is no regular file and,
// of a file to be written, for a link and for a file that has another name, too.
int open_regular(const std::filesystem::path& path, int flags);

// RunError as of open_regular(); what cannot be opened at all is left to whoever opens it next.
void require_regular(const std::filesystem::path& path);   // to be read
void require_writable(const std::filesystem::path& path);  // to be written in place

// RunError where a directory that is written to is a link: another place would be changed.
void require_own_directory(const std::filesystem::path& path);

// All bytes of a regular file; none where it cannot be read or has more than `most`.
std::optional<std::string> read_regular(const std::filesystem::path& path, uint64_t most);

}  // namespace headlab
