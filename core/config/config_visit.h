// A visitor of settings whose treatment of every type is one template or overload set: each
// overload of Fields goes to `self.field(name, value, help, limits)`.
#pragma once

#include "core/config/config.h"

namespace headlab {

template <class Self>
class EachField : public Fields {
 public:
  using Name = const char*;
  void operator()(Name n, bool& v, Name h) final { to(n, v, h); }
  void operator()(Name n, int64_t& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, double& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, std::string& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, FilePath& v, Name h) final { to(n, v, h); }
  void operator()(Name n, std::optional<bool>& v, Name h) final { to(n, v, h); }
  void operator()(Name n, std::optional<int64_t>& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, std::optional<double>& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, std::vector<int64_t>& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, std::vector<double>& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, std::vector<std::string>& v, Name h, Limits l) final { to(n, v, h, l); }
  void operator()(Name n, Block& v, Name h) final { to(n, v, h); }
  void operator()(Name n, CustomField& v, Name h) final { to(n, v, h); }

 private:
  template <class T>
  void to(Name name, T& value, Name help, const Limits& limits = {}) {
    static_cast<Self&>(*this).field(name, value, help, limits);
  }
};

}  // namespace headlab
