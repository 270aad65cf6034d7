#include "experiments/files/field_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/config/config_fields.h"

namespace headlab {
namespace {

class Accepted : public Forms {
 public:
  std::vector<std::string> parts;

  void integer(const Limits& limits) override { add(limits_text(limits)); }
  void number(const Limits& limits) override { add(limits_text(limits)); }
  void word(const std::vector<std::string>& words) override { add(limits_text(one_of(words))); }
  void kinds(const KindRegistry& registry, const std::string&) override { word(registry.names()); }

 private:
  void add(const std::string& text) {
    if (!text.empty()) parts.push_back(text);
  }
};

// What a value with a syntax of its own accepts: the words of a kind or a choice, bounds; or "".
std::string accepted(const CustomField& field) {
  Accepted forms;
  field.forms(forms);
  return fmt::format("{}", fmt::join(forms.parts, ", or "));
}

void describe(Block& block, const std::string& prefix, std::vector<FieldInfo>& table) {
  for (const BlockField& f : fields_of(block)) {
    if (f.block) {
      describe(*f.block, prefix + f.name + '.', table);
      continue;
    }
    const std::string type = f.list ? "list of " + f.type + 's' : f.type;
    std::string value;
    if (f.value) value = to_flow(f.custom ? f.custom->write_minimal() : *f.value);
    const std::string limits = f.custom ? accepted(*f.custom) : limits_text(f.limits);
    table.push_back({prefix + f.name, type, value, limits, f.help});
  }
}

}  // namespace

std::vector<FieldInfo> describe_block(Block& block) {
  std::vector<FieldInfo> table;
  describe(block, "", table);
  return table;
}

}  // namespace headlab
