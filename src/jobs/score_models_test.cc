// SPDX-License-Identifier: Apache-2.0
// Names of models. Scoring with several is tested by tests/cli/score_test.cc, shards by tests/cli/shards_test.cc.
#include "jobs/score_models.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_files.h"

namespace brim::jobs {
namespace {

std::vector<std::pair<std::string, std::string>> pairs(const std::vector<NamedModel>& models) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const NamedModel& named : models) all.emplace_back(named.name, named.model);
  return all;
}
using Pairs = std::vector<std::pair<std::string, std::string>>;

TEST(ScoreModels, NamesSeveralModelsAfterTheirDirectories) {
  EXPECT_EQ(pairs(name_models({"models/ner/"})), (Pairs{{"", "models/ner/"}}));
  EXPECT_EQ(pairs(name_models({"a=models/ner"})), (Pairs{{"a", "models/ner"}}));
  EXPECT_EQ(pairs(name_models({"models/ner/", "tone=models/x=y", "vader", "models/x=y"})),
            (Pairs{{"ner", "models/ner/"}, {"tone", "models/x=y"}, {"vader", "vader"}, {"x=y", "models/x=y"}}));
}

TEST(ScoreModels, RejectsDuplicateNames) {
  try {
    name_models({"a/tiny", "b/tiny"});
    ADD_FAILURE() << "two models are named tiny";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(error.problem(), "`model=b/tiny`: duplicate name tiny");
    EXPECT_EQ(error.remedy(), "set another one with `model=NAME=b/tiny`");
  }
}

TEST(ScoreModels, ReadsTheListItWrites) {
  const TempDir temp;
  const std::string dir = (temp.path() / "a").string();
  std::filesystem::create_directory(dir);
  const std::string list = model_list({{"first", dir + "/"}, {"second", "vader"}});
  EXPECT_EQ(list, "first=" + dir + "/,second=vader");
  EXPECT_EQ(pairs(read_model_list(list)), (Pairs{{"first", dir + "/"}, {"second", "vader"}}));
  EXPECT_EQ(pairs(read_model_list("org/name")), (Pairs{{"", "org/name"}}));
}

}  // namespace
}  // namespace brim::jobs
