// Texts as files hold them: where a line ends, what a byte order mark is, which files are no text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "experiments/files/mapped_file.h"

namespace headlab {

// Bytes of the end of a line at `at`: LF or CRLF; 0 where none is. A carriage return without a line
// feed ends no line and is a character of it, so that a text and its translation have as many lines
// here as for wc.
size_t line_end_at(std::string_view text, size_t at);

// Calls `take` with each line, without its end, and its number, from 1 on. A text that ends without
// the end of a line ends its last one.
using TakeLine = std::function<void(std::string_view line, int64_t number)>;
void each_line(std::string_view text, const TakeLine& take);

// A text without the byte order mark (U+FEFF in UTF-8) that it may begin with. DataError `name:
// ...` with the remedy for bytes that are no text in UTF-8: other encodings, NUL, the files of
// other programs (gzip, Parquet, HDF5, PDF, ...).
std::string_view plain_text(std::string_view bytes, const std::string& name);

// A text as it is given to a tokenizer.
struct SourceText {
  std::string_view text;
  std::string name;                              // what messages call it
  std::filesystem::path file = {};               // that it was read from; "": none
  FileStamp stamp = {};                          // of the file, when it was opened
  std::shared_ptr<const void> memory = nullptr;  // that the text lies in
};

// A file of text, mapped. It tells on stderr where the text is one in the syntax of JSON, CSV, XML
// or HTML, which would be read as words, and how the text is taken out of it.
class TextFile {
 public:
  // DataError as of MappedFile and plain_text().
  explicit TextFile(const std::filesystem::path& path);
  std::string_view text() const { return text_; }
  const FileStamp& stamp() const { return file_.stamp(); }

 private:
  MappedFile file_;
  std::string_view text_;
};

SourceText source_of_file(const std::filesystem::path& path);  // as TextFile

// Tells on stderr, for whoever takes the bytes of a file as they are, that they are another
// format's and what makes a text of it.
void tell_of_format(std::string_view bytes, const std::filesystem::path& path);

}  // namespace headlab
