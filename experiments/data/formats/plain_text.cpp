#include "experiments/data/formats/plain_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "core/errors.h"
#include "experiments/files/json_text.h"
#include "experiments/system/output.h"
#include "experiments/text/shell_word.h"
#include "experiments/text/utf8.h"

namespace headlab {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// What a file is, and the command that makes a text of it; {} in it: the file's name.
struct Format {
  std::string name, remedy;
};

constexpr const char* kUtf16 = "iconv -f UTF-16 -t UTF-8 {} > text.txt";
constexpr const char* kUtf32 = "iconv -f UTF-32 -t UTF-8 {} > text.txt";
constexpr const char* kTable =
    R"py(python3 -c "import pandas as p; print(*p.read_{}('{{}}')['text'], sep='\n')" > text.txt)py";

struct Magic {
  std::string_view bytes;
  size_t at;
  const char *name, *remedy;  // no remedy: no text is in there
};
constexpr std::array kMagics{
    Magic{"\xFF\xFE\0\0"sv, 0, "text in UTF-32", kUtf32},  // before UTF-16, which begins alike
    Magic{"\0\0\xFE\xFF"sv, 0, "text in UTF-32", kUtf32},
    Magic{"\xFF\xFE"sv, 0, "text in UTF-16", kUtf16},
    Magic{"\xFE\xFF"sv, 0, "text in UTF-16", kUtf16},
    Magic{"\x1F\x8B"sv, 0, "a gzip file", "gunzip -c {} > text.txt"},
    Magic{"1AY&SY"sv, 4, "a bzip2 file", "bunzip2 -c {} > text.txt"},
    Magic{"\xFD"
          "7zXZ\0"sv,
          0, "an xz file", "xz -dc {} > text.txt"},
    Magic{"\x28\xB5\x2F\xFD"sv, 0, "a Zstandard file", "zstd -dc {} > text.txt"},
    Magic{"\x04\x22\x4D\x18"sv, 0, "an LZ4 file", "lz4 -dc {} > text.txt"},
    Magic{"PK\x03\x04"sv, 0, "a zip file", "unzip -p {} > text.txt"},
    Magic{"PK\x05\x06"sv, 0, "a zip file", "unzip -p {} > text.txt"},
    Magic{"7z\xBC\xAF\x27\x1C"sv, 0, "a 7-Zip file", "7z x -so {} > text.txt"},
    Magic{"ustar"sv, 257, "a tar file", "tar -xOf {} > text.txt"},
    Magic{"PAR1"sv, 0, "a Parquet file", "parquet"},
    Magic{"ARROW1"sv, 0, "an Arrow file", "feather"},
    Magic{"FEA1"sv, 0, "a Feather file", "feather"},
    Magic{"ORC"sv, 0, "an ORC file", "orc"},
    Magic{"Obj\x01"sv, 0, "an Avro file", nullptr},
    Magic{"%PDF-"sv, 0, "a PDF file", "pdftotext {} text.txt"},
    Magic{"\x89HDF\r\n\x1A\n"sv, 0, "an HDF5 file", nullptr},
    Magic{"\x93NUMPY"sv, 0, "a NumPy file", nullptr},
    Magic{"GGUF"sv, 0, "a GGUF file", nullptr},
    Magic{"SQLite format 3\0"sv, 0, "an SQLite file", nullptr},
    Magic{"\x80\x02"sv, 0, "a pickle", nullptr},
    Magic{"\x80\x03"sv, 0, "a pickle", nullptr},
    Magic{"\x80\x04\x95"sv, 0, "a pickle", nullptr},
    Magic{"\x80\x05\x95"sv, 0, "a pickle", nullptr},
    Magic{"\x7F"
          "ELF"sv,
          0, "a program", nullptr},
    Magic{"\x89PNG\r\n\x1A\n"sv, 0, "a PNG image", nullptr},
    Magic{"\xFF\xD8\xFF"sv, 0, "a JPEG image", nullptr},
    Magic{"GIF8"sv, 0, "a GIF image", nullptr},
    Magic{"{\\rtf"sv, 0, "an RTF file", "unrtf --text {} > text.txt"},
};

// safetensors begin with the length of their header, then the header, an object in JSON.
bool is_safetensors(std::string_view bytes) {
  if (bytes.size() < 10 || bytes[8] != '{' || bytes[9] != '"') return false;
  uint64_t length = 0;
  for (int n = 7; n >= 0; --n) length = length << 8 | static_cast<unsigned char>(bytes[n]);
  return length <= bytes.size() - 8;
}

// UTF-16 without a mark: of the text's ASCII every other byte is 0.
std::optional<Format> unmarked_utf16(std::string_view bytes) {
  const auto begin = bytes.substr(0, 512);
  std::array<size_t, 2> zeros{}, printable{};
  for (size_t at = 0; at < begin.size(); ++at) {
    const auto c = static_cast<unsigned char>(begin[at]);
    zeros[at % 2] += c == 0;
    printable[at % 2] += std::isprint(c) != 0 || std::isspace(c) != 0;
  }
  for (const size_t high : {0, 1})
    if (begin.size() >= 4 && zeros[1 - high] == 0 && zeros[high] * 4 > begin.size() &&
        printable[1 - high] * 4 > begin.size())
      return Format{"text in UTF-16", fmt::format("iconv -f UTF-16{} -t UTF-8 {{}} > text.txt",
                                                  high == 1 ? "LE" : "BE")};
  return std::nullopt;
}

// Whether the beginning of a file holds what no text in UTF-8 does.
bool begins_binary(std::string_view bytes) {
  constexpr size_t kBegin = 4096;
  const auto begin = bytes.substr(0, kBegin);
  for (size_t at = 0; at < begin.size();) {
    const auto c = static_cast<unsigned char>(begin[at]);
    const size_t length = utf8_length(begin, at);
    if (length == 0) return at + 4 <= begin.size() || begin.size() < kBegin;
    if (c < 0x08 || (c > 0x0D && c < 0x20 && c != 0x1B)) return true;
    at += length;
  }
  return false;
}

// Whether a text may begin so: "GGUF is a format".
bool is_word(std::string_view magic) {
  return std::ranges::all_of(magic, [](unsigned char c) { return std::isalnum(c) != 0; });
}

// Of bytes that are no text in UTF-8.
std::optional<Format> binary_format(std::string_view bytes) {
  const bool binary = begins_binary(bytes);
  for (const auto& magic : kMagics) {
    if (bytes.size() < magic.at || !bytes.substr(magic.at).starts_with(magic.bytes)) continue;
    if (is_word(magic.bytes) && !binary) continue;
    const std::string remedy = magic.remedy == nullptr ? "" : magic.remedy;
    const bool table = !remedy.empty() && remedy.find(' ') == remedy.npos;  // a reader of pandas
    return Format{magic.name, table ? fmt::format(kTable, remedy) : remedy};
  }
  if (is_safetensors(bytes)) return Format{"a safetensors file", ""};
  return unmarked_utf16(bytes);
}

// A name inside quotes of a command, where it does not end them; else what stands for one.
std::string word_in_quotes(const std::string& name, const char* placeholder) {
  return name.find_first_of("'\"$`\\!") == name.npos && !has_control(name) ? name : placeholder;
}

std::string remedy_for(const Format& format, const std::string& name) {
  if (format.remedy.empty()) return "name a file of text";
  auto command = format.remedy;
  const auto at = command.find("{}");
  const bool quoted = at > 0 && command[at - 1] == '\'';  // for Python, within what a shell reads
  command.replace(at, 2, quoted ? word_in_quotes(name, "FILE") : shell_word(name));
  return command + " makes a text of it";
}

// The first lines of a text that hold anything.
std::vector<std::string_view> first_lines(std::string_view text, size_t most) {
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size() && lines.size() < most;) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != line.npos) lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

// The name of a field: a word, as no sentence has them.
bool is_field(std::string_view name) {
  if (name.size() > 2 && name.front() == '"' && name.back() == '"')
    name = name.substr(1, name.size() - 2);
  return !name.empty() && name.size() <= 40 && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
}

// The field of an object that is likeliest to hold its text.
std::string text_field(const nlohmann::json& object) {
  std::string longest = "text";
  size_t length = 0;
  if (object.contains(longest)) return longest;
  for (const auto& [key, value] : object.items())
    if (is_field(key) && value.is_string() && value.get_ref<const std::string&>().size() >= length)
      longest = key, length = value.get_ref<const std::string&>().size();
  return longest;
}

std::optional<Format> json_lines(std::string_view text) {
  constexpr size_t kLines = 3, kLongest = 1 << 20;
  std::optional<std::string> field;
  for (const auto line : first_lines(text, kLines)) {
    if (line.size() > kLongest || line.find_first_not_of(" \t") != line.find('{')) return {};
    const auto object = parse_json(line);
    if (!object || !object->is_object()) return std::nullopt;
    if (!field) field = text_field(*object);
  }
  if (!field) return std::nullopt;
  return Format{"JSON lines",
                fmt::format("jq -r '.[\"{}\"]' {{}} > text.txt", word_in_quotes(*field, "FIELD"))};
}

// Whether it begins as a list or an object in JSON does.
bool begins_json(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || (text[begin] != '{' && text[begin] != '[')) return false;
  const auto next = text.find_first_not_of(" \t\r\n", begin + 1);
  if (next == text.npos) return false;
  if (text[begin] == '[' && text[next] == '{') return true;
  const auto quote = text.find('"', next + 1);  // of the first key, or of the first text
  if (text[next] != '"' || quote == text.npos) return false;
  const auto behind = text.find_first_not_of(" \t\r\n", quote + 1);
  return behind != text.npos && text[behind] == (text[begin] == '{' ? ':' : ',');
}

// How many fields a line of a table has; 0 where a quote is not closed in it.
int64_t fields_of(std::string_view line, char separator) {
  int64_t fields = 1;
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == separator && !quoted) ++fields;
  }
  return quoted ? 0 : fields;
}

Format table_format(char separator, const std::string& column) {
  const bool comma = separator == ',';
  return {comma ? "CSV" : "TSV",
          fmt::format(
              R"py(python3 -c "import pandas as p; print(*p.read_csv('{{}}', sep='{}')['{}'], )py"
              R"py(sep='\n')" > text.txt)py",
              comma ? "," : "\\t", word_in_quotes(column, "FIELD"))};
}

// A line of names, then lines of as many fields.
std::optional<Format> table_in(std::string_view text, bool named) {
  constexpr size_t kLines = 6;
  auto lines = first_lines(text, kLines);
  if (lines.empty()) return std::nullopt;
  for (auto& line : lines)
    if (line.ends_with('\r')) line.remove_suffix(1);
  for (const char separator : {',', '\t'}) {
    const auto fields = fields_of(lines[0], separator);
    std::vector<std::string_view> columns;
    for (auto rest = lines[0]; columns.size() < static_cast<size_t>(fields);) {
      const auto end = std::min(rest.find(separator), rest.size());
      columns.push_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    const bool alike =
        std::ranges::all_of(lines, [&](auto line) { return fields_of(line, separator) == fields; });
    const bool header = fields > 1 && std::ranges::all_of(columns, is_field);
    if (!header || !(named || (alike && lines.size() >= 4))) continue;
    const bool has_text = std::ranges::find(columns, "text") != columns.end();
    std::string column(has_text ? "text" : columns.back());
    std::erase(column, '"');
    return table_format(separator, column);
  }
  return std::nullopt;
}

// Of a text that is one in a syntax, by its file's name or by its shape.
std::optional<Format> syntax_of(std::string_view text, const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto named = [&](auto... names) { return ((extension == names) || ...); };
  if (auto lines = json_lines(text)) return lines;
  if (named(".jsonl", ".ndjson")) return Format{"JSON lines", "jq -r .text {} > text.txt"};
  if (named(".json", ".ipynb") || begins_json(text))
    return Format{"JSON", "jq -r '.[].text' {} > text.txt"};
  const auto begin = text.substr(0, 256);
  for (const char* mark : {"<?xml", "<!DOCTYPE", "<!doctype", "<html", "<HTML"})
    if (begin.substr(std::min(begin.find_first_not_of(" \t\r\n"), begin.size())).starts_with(mark))
      return Format{"XML or HTML", "pandoc -f html -t plain {} > text.txt"};
  if (auto table = table_in(text, named(".csv", ".tsv"))) return table;
  if (named(".csv")) return table_format(',', "text");
  if (named(".tsv")) return table_format('\t', "text");
  return std::nullopt;
}

}  // namespace

size_t line_end_at(std::string_view text, size_t at) {
  const auto rest = text.substr(std::min(at, text.size()), 2);
  return rest.starts_with('\n') ? 1 : rest == "\r\n" ? 2 : 0;
}

void each_line(std::string_view text, const TakeLine& take) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    auto end = std::min(text.find('\n', at), text.size());
    const size_t next = end + 1;
    if (end > at && line_end_at(text, end - 1) == 2) --end;
    take(text.substr(at, end - at), ++number);
    at = next;
  }
}

std::string_view plain_text(std::string_view bytes, const std::string& name) {
  if (const auto format = binary_format(bytes))
    throw DataError(fmt::format("{}: is {}, not a text in UTF-8; {}", name, format->name,
                                remedy_for(*format, name)));
  if (const auto at = bytes.find('\0'); at != bytes.npos)
    throw DataError(
        fmt::format("{}: byte {} is NUL, which no text holds; tr -d '\\000' < {} > text.txt drops "
                    "such bytes from what is a text otherwise",
                    name, at, shell_word(name)));
  return bytes.starts_with(kByteOrderMark) ? bytes.substr(kByteOrderMark.size()) : bytes;
}

TextFile::TextFile(const std::filesystem::path& path)
    : file_(path), text_(plain_text(file_.text(), path.string())) {
  if (const auto syntax = syntax_of(text_, path))
    tell("warning: {}: is {}: its syntax and the names of its fields are read as text; {}",
         path.string(), syntax->name, remedy_for(*syntax, path.string()));
  if (text_.find('\n') == text_.npos && text_.find('\r') != text_.npos)
    tell(
        "warning: {}: has carriage returns and no line feed: it is read as one line; tr '\\r' "
        "'\\n' < {} > text.txt makes lines of it",
        path.string(), shell_word(path.string()));
}

SourceText source_of_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<TextFile>(path);
  return {file->text(), path.string(), path, file->stamp(), file};
}

void tell_of_format(std::string_view bytes, const std::filesystem::path& path) {
  auto format = binary_format(bytes);
  if (!format && bytes.find('\0') == bytes.npos) format = syntax_of(bytes, path);
  if (format)
    tell("warning: {}: is {}: its bytes are taken as they are; {}", path.string(), format->name,
         remedy_for(*format, path.string()));
}

}  // namespace headlab
