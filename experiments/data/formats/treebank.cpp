#include "experiments/data/formats/treebank.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "core/errors.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/files/mapped_file.h"

namespace headlab {
namespace {

struct Column {
  enum : int { kId, kForm, kLemma, kUpos, kXpos, kFeats, kHead, kDeprel, kDeps, kMisc, kCount };
};
using Fields = std::array<std::string_view, Column::kCount>;

// A number without sign and leading zeros.
std::optional<int64_t> read_number(std::string_view text) {
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && stop == text.data() + text.size();
  const bool plain = !text.empty() && text[0] != '-' && (text[0] != '0' || text.size() == 1);
  return whole && plain ? std::optional(number) : std::nullopt;
}

bool holds(std::string_view misc, std::string_view wanted) {
  while (!misc.empty()) {
    const size_t bar = std::min(misc.find('|'), misc.size());
    if (misc.substr(0, bar) == wanted) return true;
    misc.remove_prefix(std::min(bar + 1, misc.size()));
  }
  return false;
}

class Reader {
 public:
  Reader(const std::string& name, const TreebankOptions& options)
      : name_(name), options_(options) {}

  std::vector<TreebankSentence> read(std::string_view text) {
    each_line(text, [&](std::string_view line, int64_t number) {
      line_ = number;
      add_line(line);
    });
    ++line_;
    if (sentence_.line > 0) end_sentence();
    return std::move(sentences_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_at(line_, what); }
  [[noreturn]] void fail_at(int64_t line, const std::string& what) const {
    throw DataError(fmt::format("{}:{}: {}", name_, line, what));
  }

  void add_line(std::string_view line) {
    if (line.find('\r') != std::string_view::npos)
      fail("holds a carriage return, which stands in no column of CoNLL-U");
    const bool inside = sentence_.line > 0;
    if (line.empty()) {
      if (inside) end_sentence();
      return;
    }
    if (line[0] == '#') {
      if (inside) fail("a comment stands inside a sentence; an empty line must come before");
      return;
    }
    if (!inside) sentence_.line = line_;
    add_token(split(line));
  }

  Fields split(std::string_view line) const {
    const auto columns = std::count(line.begin(), line.end(), '\t') + 1;
    if (columns != Column::kCount)
      fail(fmt::format("has {} columns, not the {} of CoNLL-U", columns, int{Column::kCount}));
    Fields fields;
    for (int column = 0; column < Column::kCount; ++column) {
      const size_t end = std::min(line.find('\t'), line.size());
      fields[column] = line.substr(0, end);
      if (fields[column].empty()) fail(fmt::format("column {} is empty", column + 1));
      line.remove_prefix(std::min(end + 1, line.size()));
    }
    return fields;
  }

  void add_token(const Fields& fields) {
    const auto id = fields[Column::kId];
    if (const size_t dash = id.find('-'); dash != id.npos)
      add_multiword(fields, read_number(id.substr(0, dash)), read_number(id.substr(dash + 1)));
    else if (const size_t dot = id.find('.'); dot != id.npos)
      check_empty_node(id, read_number(id.substr(0, dot)), read_number(id.substr(dot + 1)));
    else
      add_word(fields, read_number(id));
  }

  int64_t next_id() const { return std::ssize(sentence_.words) + 1; }

  void add_multiword(const Fields& fields, std::optional<int64_t> first,
                     std::optional<int64_t> last) {
    if (!first || !last || *first != next_id() || *last <= *first || *first <= multiword_.last)
      fail(fmt::format("'{}' is no range of words here; the next word is {}", fields[Column::kId],
                       next_id()));
    multiword_ = {*first, *last, write(fields)};
  }

  void check_empty_node(std::string_view id, std::optional<int64_t> after,
                        std::optional<int64_t> number) const {
    if (!after || !number || *after != next_id() - 1 || *number < 1)
      fail(fmt::format("'{}' is no empty node here; the word before is {}", id, next_id() - 1));
  }

  void add_word(const Fields& fields, std::optional<int64_t> id) {
    if (id != next_id())
      fail(fmt::format("the id '{}' is not that of the next word, {}", fields[Column::kId],
                       next_id()));
    const auto head = read_number(fields[Column::kHead]);
    if (!head)
      fail(fmt::format("the head '{}' is not the number of a word", fields[Column::kHead]));
    if (*head == *id) fail("a word cannot be its own head");
    auto relation = fields[Column::kDeprel];
    if (!options_.subtypes) relation = relation.substr(0, relation.find(':'));
    if (relation.empty() || relation == "_") fail("a word needs a relation to its head");
    if (relation == "all") fail("no relation may be called 'all', which stands for every word");
    TreebankWord word{std::string(fields[Column::kForm]), std::string(relation), *head};
    if (*id > multiword_.last) {
      word.begin = write(fields);
      word.end = word.begin + word.form.size();
    }
    sentence_.words.push_back(std::move(word));
    lines_.push_back(line_);
    if (*id == multiword_.last) split_multiword();
  }

  // Appends the form to the text -> where it begins.
  size_t write(const Fields& fields) {
    if (space_due_) sentence_.text += ' ';
    space_due_ = !holds(fields[Column::kMisc], "SpaceAfter=No");
    const size_t begin = sentence_.text.size();
    sentence_.text += fields[Column::kForm];
    return begin;
  }

  // Gives the words of the multiword token at the end of the text their parts of it.
  void split_multiword() {
    const auto first = sentence_.words.begin() + (multiword_.first - 1);
    std::string joined;
    for (auto word = first; word != sentence_.words.end(); ++word) joined += word->form;
    if (sentence_.text.compare(multiword_.begin, std::string::npos, joined) != 0) return;
    size_t at = multiword_.begin;
    for (auto word = first; word != sentence_.words.end(); ++word) {
      word->begin = at;
      word->end = at += word->form.size();
    }
  }

  void end_sentence() {
    const int64_t n = std::ssize(sentence_.words);
    if (n == 0) fail_at(sentence_.line, "the sentence has no words");
    if (multiword_.last > n)
      fail(fmt::format("the sentence ends within the multiword token {}-{}", multiword_.first,
                       multiword_.last));
    for (int64_t i = 0; i < n; ++i)
      if (const int64_t head = sentence_.words[i].head; head > n)
        fail_at(lines_[i], fmt::format("the head {} is beyond the sentence's {} words", head, n));
    sentences_.push_back(std::move(sentence_));
    sentence_ = {};
    multiword_ = {};
    space_due_ = false;
    lines_.clear();
  }

  struct Multiword {
    int64_t first = 0, last = 0;  // words
    size_t begin = 0;             // in the text
  };

  const std::string& name_;
  const TreebankOptions& options_;
  int64_t line_ = 0;
  std::vector<TreebankSentence> sentences_;
  // Of the sentence that is being read.
  TreebankSentence sentence_;
  Multiword multiword_;         // the last one
  bool space_due_ = false;      // before the next token
  std::vector<int64_t> lines_;  // of its words
};

}  // namespace

std::vector<TreebankSentence> parse_treebank(std::string_view text, const std::string& name,
                                             const TreebankOptions& options) {
  return Reader(name, options).read(plain_text(text, name));
}

std::vector<TreebankSentence> read_treebank(const std::filesystem::path& path,
                                            const TreebankOptions& options) {
  const MappedFile file(path);
  auto sentences = parse_treebank(file.text(), path.string(), options);
  if (sentences.empty()) throw DataError(path.string() + ": holds no sentence");
  return sentences;
}

std::vector<std::string> relations_of(const std::vector<TreebankSentence>& sentences) {
  std::map<std::string, int64_t> counts;
  for (const auto& sentence : sentences)
    for (const auto& word : sentence.words) ++counts[word.relation];
  std::vector<std::string> relations;
  for (const auto& [relation, count] : counts) relations.push_back(relation);
  std::stable_sort(relations.begin(), relations.end(),
                   [&](const auto& a, const auto& b) { return counts.at(a) > counts.at(b); });
  relations.insert(relations.begin(), "all");
  return relations;
}

std::optional<std::vector<int64_t>> words_of_tokens(const TreebankSentence& sentence,
                                                    const std::vector<TextRange>& tokens) {
  const auto& words = sentence.words;
  std::vector<int64_t> belongs;
  std::vector<bool> reached(words.size());
  size_t word = 0;
  for (const auto& token : tokens) {
    while (word < words.size() && words[word].end <= token.begin) ++word;
    const bool meets =
        token.begin < token.end && word < words.size() && words[word].begin < token.end;
    belongs.push_back(meets ? static_cast<int64_t>(word) : -1);
    if (meets) reached[word] = true;
  }
  const bool all = std::find(reached.begin(), reached.end(), false) == reached.end();
  return all ? std::optional(belongs) : std::nullopt;
}

}  // namespace headlab
