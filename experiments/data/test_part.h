// The test part of the data. Nothing is chosen by it: validation chooses rates and when to stop,
// and the numbers of the test part are reported.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/config/config.h"

namespace headlab {

class DataSource;

// `test: 0.05`, a share of all examples; `test: own`, or a file where the kind takes one, for a
// test part that the data have of their own. Absent: none is asked for.
class TestPart : public CustomField {
 public:
  enum class Own { kNone, kWord, kFile };  // how a config names a part that the data have
  explicit TestPart(Own own) : names_(own) {}

  Own names() const { return names_; }
  bool is_asked() const { return own_ || share_ || !file_.written.empty(); }
  const FilePath& file() const { return file_; }  // not written: another form, or none

  // The data with the part that is asked for. A part of the data's own is taken as it is, also
  // where a share is asked for. Else the part is cut from validation; training stays as it is, to
  // the bit. Of a text the part is the end of validation, of other data every k-th example, since
  // files may be sorted by class.
  std::shared_ptr<DataSource> added_to(std::shared_ptr<DataSource> data,
                                       const Complain& complain) const;

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  std::string type() const override;
  void forms(Forms& f) const override;

 private:
  Own names_;
  bool own_ = false;
  std::optional<double> share_;
  FilePath file_;
};

// Options of a kind of data that gives a test part: all but `none`.
struct TestPartOption {
  TestPart test;

  explicit TestPartOption(TestPart::Own own = TestPart::Own::kNone) : test(own) {}
  virtual ~TestPartOption() = default;

 protected:
  // `own`: the option or file that names the part that the data have.
  void visit_test(Fields& f, const std::string& own = "");
};

// Whether training measures a test part in the end.
bool asks_for_test(const KindBlock& data);

}  // namespace headlab
