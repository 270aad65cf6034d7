// Tables of a comparison for spreadsheets and papers: what names hold is text there, and no
// command.
#include "experiments/comparison/comparison_tables.h"
#include "tests/catch.h"

namespace headlab::test_comparison_tables {
namespace {

using Catch::Contains;
using Json = nlohmann::ordered_json;

Json comparison_of(const Json& arms) {
  return {{"comparison", "/runs/comparisons/two_kinds-0123abcd"},
          {"baseline", "mha"},
          {"seeds", {1, 2}},
          {"tasks",
           {{{"name", "char_64"},
             {"measured_on", {{"split", "val"}, {"examples", 1742.0}, {"whole_split", 1.0}}},
             {"arms", arms}}}}};
}

Json arm_of(const std::string& name, const Json& metric) {
  return {{"name", name},
          {"reason", ""},
          {"steps", 3000},
          {"rate", {{"chosen", 0.004}, {"tried", {{{"rate", 0.004}}}}}},
          {"metrics", {{"val/loss", metric}}},
          {"notices", {"one, with a comma", "two"}},
          {"curve", {{{"step", 1}}}},
          {"lengths", Json::array({{{"length", 0.5}, {"val/loss", {2.5, 2.25}}, {"runs", {}}}})},
          {"runs",
           {{{"commit", "0123456789abcdef"}, {"machine", "a_CPU"}, {"device", "cpu in fp32"}}}}};
}

TEST_CASE(
    "a CSV file of a comparison has a column each number, and empty cells where there is none",
    "[compare]") {
  const Json metric{{"values", {1.5, 1.25}},
                    {"difference", {{"interval", {-0.5, 0.1}}, {"p", nullptr}}}};
  const Json none{{"name", "linformer"}, {"reason", "it said \"no\""}};
  CHECK(comparison_csv(comparison_of({arm_of("mha", metric), none})) ==
        "task,arm,reason,steps,rate.chosen,val/loss.values.1,val/loss.values.2,"
        "val/loss.difference.low,val/loss.difference.high,val/loss.difference.p,notices,"
        "lengths.0.5.val/loss.1,lengths.0.5.val/loss.2,runs.commit,runs.machine,runs.device\n"
        "char_64,mha,,3000,0.004,1.5,1.25,-0.5,0.1,,\"one, with a comma; two\",2.5,2.25,"
        "0123456789abcdef,a_CPU,cpu in fp32\n"
        "char_64,linformer,\"it said \"\"no\"\"\",,,,,,,,,,,,,\n");
}

TEST_CASE(
    "a table in LaTeX sets names as they are, signs as signs, and leaves out what a paper has no "
    "room for",
    "[compare]") {
  const TaskTable table{
      .head = {"arm", "d_ff", "val/loss [nat], mean ± sd", "less mha's [95 %]", "p", "p, Holm",
               "val/loss at equal time [nat]"},
      .rows = {{"*mha", "256", "1.6580 ± 0.0100", "-", "-", "-", "1.7"},
               {"[a_b] & 50% #1 {x} $y$ ~ ^ \\z", "256", "1.6000 ± 0.0100",
                "-0.0580 [-0.0800, +0.0360]", "< .001", "< .001 *", "> 1.6"},
               {"linformer", "-", "- ('linformer' cannot be causal)", "-", "-", "-", "-"}}};
  auto arms = Json::array({arm_of("mha", {{"values", {1.5, 1.25}}})});
  arms.push_back({{"name", "linformer"}, {"reason", "it_cannot"}});
  const auto text = comparison_latex(comparison_of(arms), {table});
  CHECK_THAT(text, Contains("\\begin{tabular}{lrrrr}"));
  CHECK_THAT(text, Contains("arm & \\shortstack{val/loss {[}nat],\\\\mean $\\pm$ sd} & "
                            "\\shortstack{less mha's\\\\{[}95 \\%]} & \\shortstack{p,\\\\Holm} & "
                            "\\shortstack{val/loss at\\\\equal time\\\\{[}nat]} \\\\\n"));
  CHECK_THAT(text, Contains("{*}mha & 1.6580 $\\pm$ 0.0100 & -- & -- & 1.7 \\\\\n"));
  CHECK_THAT(text,
             Contains("{[}a\\_b] \\& 50\\% \\#1 \\{x\\} \\$y\\$ \\~{} \\^{} \\textbackslash{}z & "
                      "1.6000 $\\pm$ 0.0100 & $-$0.0580 {[}$-$0.0800, +0.0360] & $<$ "
                      ".001$^{*}$ & $>$ 1.6 \\\\\n"));
  CHECK_THAT(text, Contains("linformer & -- & -- & -- & -- \\\\\n\\bottomrule"));
  CHECK_THAT(text,
             Contains("Arms on char\\_64: mean $\\pm$ standard deviation over 2 seeds (1, 2)"));
  CHECK_THAT(text,
             Contains("whole val split, 1,742 examples, ? scored targets, after 3,000 updates"));
  CHECK_THAT(text, Contains("By commit 01234567, on a\\_CPU (cpu in fp32)."));
  CHECK_THAT(text, Contains("linformer has no figures: it\\_cannot."));
  CHECK_THAT(text, Contains("\\label{tab:two-kinds-0123abcd-char-64}"));
  CHECK_THAT(text, Contains("and mean paired difference to mha with its 95 \\% interval."));
  auto solved = comparison_of(arms);
  solved["tasks"][0]["statistics"] = {{"solved", {{"metric", "val/accuracy"}, {"at", 0.9}}}};
  CHECK_THAT(comparison_latex(solved, {table}),
             Contains("and seeds that solved it (val/accuracy: 0.9) and updates until then, tested "
                      "against mha."));
}

}  // namespace
}  // namespace headlab::test_comparison_tables
