// A program of another language that answers lines: a question on its stdin, an answer on its
// stdout.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace headlab {

class AskedProgram {
 public:
  // Starts `words`, the first of which is a file, with `environment` set over this process's. What
  // it prints on stderr goes to this process's. RunError where it cannot be started.
  AskedProgram(std::vector<std::string> words,
               const std::map<std::string, std::string>& environment);
  AskedProgram(const AskedProgram&) = delete;
  AskedProgram& operator=(const AskedProgram&) = delete;
  ~AskedProgram();  // its stdin ends, and it is waited for

  // A line, without its end, and the line that it answers. RunError where it has ended.
  std::string ask(const std::string& line);

 private:
  [[noreturn]] void say_ended();

  std::string name_, read_;  // read_: what it has said beyond the last answer
  pid_t pid_ = -1;
  int channel_ = -1;  // a socket, both its stdin and its stdout
};

}  // namespace headlab
