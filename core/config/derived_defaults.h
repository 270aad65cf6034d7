// Options whose defaults follow from other options, or from what they are options of.
#pragma once

namespace headlab {

// derive() writes down what is left open, as it then is: an option that says what would follow
// anyway makes no other run.
template <class... From>
struct DerivedDefaults {
  virtual ~DerivedDefaults() = default;
  virtual void derive(const From&... from) = 0;
};

}  // namespace headlab
