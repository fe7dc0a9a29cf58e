// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <gtest/gtest.h>

#include "base/test_files.h"

namespace brim {
namespace {

enum class Colour { red, blue };

struct Made {
  std::string name;
  int64_t size = 4;
  int few = 1;
  double rate = 0.5;
  bool fast = false;
  Colour colour = Colour::red;
  std::string shape = "round";
  std::vector<std::string> files;
};

const SettingsTable<Made>& table() {
  using namespace setting;  // NOLINT
  static const SettingsTable<Made> made(
      {{"name", "its name", text(&Made::name)},
       {"size", "its size", number(&Made::size, above_zero), Keep::same, {"max_size", "biggest"}, "biggest"},
       {"few", "a small number", number(&Made::few)},
       {"rate", "a share", number(&Made::rate, share), Keep::report},
       {"fast",
        "quick",
        truth(&Made::fast),
        Keep::same,
        {},
        nullptr,
        [](const Made& m) { return m.fast ? "very" : ""; }},
       {"colour", "red or blue",
        choice(&Made::colour, {{"red", Colour::red}, {"blue", Colour::blue}, {"azure", Colour::blue}})},
       {"shape", "round or square", word(&Made::shape, {"round", "square"})},
       {"files", "files", texts(&Made::files)},
       {"old", "nobody needs it"}},
      {{"quick", "fast"}});
  return made;
}

Made with(const std::string& key, const std::string& value) {
  Made m;
  EXPECT_EQ(table().apply(m, key, value, ""), "");
  return m;
}

std::string refused(const std::string& key, const std::string& value, const std::string& where = "") {
  Made m;
  return error_of(ErrorCode::usage, [&] { table().apply(m, key, value, where); });
}

TEST(Settings, AcceptAnyOfTheirNames) {
  EXPECT_EQ(with("name", "a b").name, "a b");
  for (const char* key : {"size", "max_size", "max-size", "biggest"}) EXPECT_EQ(with(key, "9").size, 9) << key;
  EXPECT_EQ(with("rate", "1e-1").rate, 0.1);
  EXPECT_TRUE(with("fast", "True").fast);
  EXPECT_EQ(with("colour", "Azure").colour, Colour::blue);
  EXPECT_EQ(with("shape", "square").shape, "square");
  Made m;
  for (const char* file : {"a", "b"}) table().apply(m, "files", file, "");
  EXPECT_EQ(m.files, (std::vector<std::string>{"a", "b"}));
}

TEST(Settings, InvalidValueIsReportedWithItsLocation) {
  EXPECT_EQ(refused("size", "many"), "`size=many`: must be an integer");
  EXPECT_EQ(refused("max-size", "0"), "`max_size=0`: must be above zero");
  EXPECT_EQ(refused("few", "99999999999"), "`few=99999999999`: number is too large");
  EXPECT_EQ(refused("rate", "nan", "a.yaml:3"), "a.yaml:3: rate: nan: must be between 0 and 1");
  EXPECT_EQ(refused("fast", "perhaps"), "`fast=perhaps`: must be true or false");
  EXPECT_EQ(refused("colour", "green"), "`colour=green`: use red, blue or azure");
  EXPECT_EQ(refused("shape", "oval"), "`shape=oval`: use round or square");
  EXPECT_EQ(refused("sise", "1", "a.yaml:3"), "a.yaml:3: unknown key sise; did you mean size?");
  EXPECT_EQ(refused("quick", "1"), "unknown key quick; did you mean fast?");
  EXPECT_EQ(refused("qqqqqqqqqq", "1"), "unknown key qqqqqqqqqq");
}

TEST(Settings, IgnoredSettingIsExplained) {
  Made m;
  EXPECT_EQ(table().apply(m, "old", "x", ""), "`old` is ignored: nobody needs it");
  EXPECT_EQ(table().apply(m, "old", "x", "a.yaml:3"), "a.yaml:3: old is ignored: nobody needs it");
}

TEST(Settings, IgnoredSwitchMustBeTrueOrFalse) {
  SettingValue<Made> ignored_switch;
  ignored_switch.is_switch = true;
  const SettingsTable<Made> made({{"pin", "nobody needs it", ignored_switch}});
  Made m;
  EXPECT_EQ(made.apply(m, "pin", "yes", ""), "`pin` is ignored: nobody needs it");
  EXPECT_EQ(error_of(ErrorCode::usage, [&] { made.apply(m, "pin", "maybe", "a.yaml:3"); }),
            "a.yaml:3: pin: maybe: must be true or false");
}

TEST(Settings, HintsTranslateNamesAndValuesOfOtherTools) {
  const auto hint = [](const char* key, const char* value) { return hint_text(hint_for(key, value), ""); };
  EXPECT_EQ(hint("memory_fraction", "0.98"), "`memory_limit=98%`");
  EXPECT_EQ(hint("gpu-memory-fraction", "most"), "memory_limit");
  EXPECT_EQ(hint("gpu", "0"), "`device=cuda:0`");
  EXPECT_EQ(hint("gpu_id", "-1"), "`device=cpu`");
  EXPECT_EQ(hint("gpu", ""), "device");
  EXPECT_EQ(hint("fp16", ""), "`precision=fp16`");
  EXPECT_EQ(hint("half", "true"), "`precision=fp16`");
  EXPECT_EQ(hint("fp16", "false"), "");
  EXPECT_EQ(hint("seed", "1"), "");
  EXPECT_EQ(hint_text(hint_for("memory_fraction", "0.9"), "a.yaml:3"), "memory_limit: 90%");
}

TEST(Settings, AreCheckedRegardlessOfSource) {
  Made m;
  table().check(m);
  m.size = 0;
  EXPECT_EQ(error_of(ErrorCode::usage, [&] { table().check(m); }), "`size=0`: must be above zero");
  m.size = 1;
  m.shape = "oval";
  EXPECT_EQ(error_of(ErrorCode::usage, [&] { table().check(m); }), "`shape=oval`: use round or square");
}

TEST(Settings, InfosHaveOneRowPerName) {
  std::vector<std::string> names;
  for (const SettingInfo& info : table().infos()) names.push_back(info.name + "=" + info.default_value);
  EXPECT_EQ(names, (std::vector<std::string>{"name=", "size=4", "max_size=4", "biggest=4", "few=1", "rate=0.5",
                                             "fast=false", "colour=red", "shape=round", "files=", "old="}));
  const auto infos = table().infos();
  EXPECT_EQ(infos[2].help, "same as `size`");
  EXPECT_EQ(infos[1].type, "INT");
  EXPECT_TRUE(infos[6].is_switch);
  EXPECT_EQ(infos[7].choices.size(), 3u);
  EXPECT_TRUE(infos[9].is_list);
  EXPECT_TRUE(infos[10].ignored);
}

TEST(Settings, RecordsAccordingToTheTable) {
  Made m;
  m.fast = true;
  std::string all;
  for (const KeptSetting& kept : table().kept(m))
    all += kept.name + "=" + kept.value + (kept.keep == Keep::same ? "! " : " ");
  EXPECT_EQ(all, "biggest=4! rate=0.5 fast=very! ");
}

}  // namespace
}  // namespace brim
