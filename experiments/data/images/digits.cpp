// 1,797 handwritten digits of 8x8 pixels, 0 to 16, that lie in the program: scikit-learn's copy of
// the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998, UCI).
#include "experiments/data/formats/digits_file.h"
#include "experiments/data/images/images.h"

namespace headlab {
namespace {

class Digits : public ImageSource {
 public:
  using Options = ImageOptions;

  explicit Digits(const Options&)
      : ImageSource(kDigitSide, kDigitSide, {{.most = kDigitInk, .mean = 0, .std = 1}}),
        digits_(read_digits()) {
    add_with_fifths(digits_.pixels.data(), digits_.labels);
  }

 private:
  DigitImages digits_;
};

const RegisterData<Digits> digits_source("digits", "1,797 handwritten digits, in the program");

}  // namespace
}  // namespace headlab
