// The ways to compute a call of attention, and which of them is taken.
#pragma once

#include <string>
#include <vector>

#include "core/attention/call/attention_call.h"

namespace headlab {

// A row of the table. Paths give the same numbers up to rounding.
struct Path {
  Backend backend;
  const char* name;
  const char* device;                    // where it runs
  bool chosen;                           // of calls that choose their rows, or of all the others
  bool maps;                             // of composed heads and maps other than the softmax, too
  bool has_lse;                          // gives AttendedRows::lse
  bool (*serves)(const AttentionCall&);  // gives the numbers of eager
  bool (*pays)(const AttentionCall&);    // is taken where no path is asked for
  AttendedRows (*run)(const AttentionCall&);
  const char* limits;  // in words: what it does not serve
};

// In the order in which they are tried.
const std::vector<Path>& attention_paths();
std::vector<std::string> attend_path_names();
// What it takes: "auto", and the names above.
std::vector<std::string> backend_names();
Backend backend_named(const std::string& name);  // one of these, or "auto"

// The rows of a call by the path that it asks for, which has to serve (else BackendError), or by
// the first that serves and pays.
AttendedRows attended(const AttentionCall& call);

// BackendError where a path is asked for by name that makes no maps to be changed: for heads that
// make their own. `what`: "heads that are mixed".
void require_maps(Backend backend, const std::string& what);

// The paths by blocks of rows (core/kernels/compose_rows.h): no map is held, nor for the backward
// pass. Throws where second derivatives are asked for.
bool rows_serve(const AttentionCall& call);
AttendedRows attend_by_rows(const AttentionCall& call);

}  // namespace headlab
