// For clang-tidy alone: clang 14 lacks the builtin behind the standard library's source_location.
#pragma once
#if !__has_builtin(__builtin_source_location)
namespace std {
class source_location {
 public:
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           unsigned line = __builtin_LINE()) {
    source_location here;
    here.file_ = file, here.line_ = line;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0;
};
}  // namespace std
#endif
