// SPDX-License-Identifier: Apache-2.0
#include "cli/render.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace brim::cli {
namespace {

struct Program {
  CLI::App app{"", "brim"};
  std::string text, more;
  bool fill = false, measure = false;

  Program() {
    app.add_option("--env-file", text);
    CLI::App* score = app.add_subcommand("score");
    score->add_option("input", more);
    score->add_option("--long-text", text);
    score->add_option("-m,--model", text);
    score->add_flag("--fill", fill);
    score->add_flag("-q,--quiet", measure);
    CLI::App* train = app.add_subcommand("train");
    train->add_option("--max-length,--max_length", text);
    train->add_option("--train", text);
    train->add_option("--bf16", text)->expected(0, 1);
    train->add_option("--task", text);
    CLI::App* plan = app.add_subcommand("plan");
    plan->add_flag("--measure", measure);
    plan->add_option("--models", text);
    CLI::App* bench = app.add_subcommand("bench");
    bench->add_option("--texts", text);
    bench->add_subcommand("streams")->add_option("--seconds", text);
  }
  std::string operator()(std::string_view message, const std::string& verb = "score") const {
    return Renderer(app).text(message, verb);
  }
};

TEST(Render, RendersSettingsAsFlagsOfTheCommand) {
  const Program r;
  EXPECT_EQ(r("9 tokens; set `long_text=truncate` or `long_text=window-mean`"),
            "9 tokens; set --long-text truncate or --long-text window-mean");
  EXPECT_EQ(r("`fill` asks, `fill=true` too, `fill=false` not"), "--fill asks, --fill too, --fill false not");
  EXPECT_EQ(r("`model=a b fill=true`: both"), "--model a b --fill: both");
  EXPECT_EQ(r("`model=NAME=a`"), "--model NAME=a");
  EXPECT_EQ(r("`model=`: empty"), "--model '': empty");
  EXPECT_EQ(r("`max_length=9`, `bf16=true`", "train"), "--max-length 9, --bf16");
  EXPECT_EQ(r("`env_file` is every verb's", "train"), "--env-file is every verb's");
  EXPECT_EQ(r("`seconds` and `texts`", "bench streams"), "--seconds and --texts");
  EXPECT_EQ(r("`model=x`", "plan"), "--models x");
  EXPECT_EQ(r("`input=x`"), "input x");  // a positional argument has no dashes
}

TEST(Render, RendersOtherCommandsWithTheirName) {
  const Program r;
  EXPECT_EQ(r("`brim plan measure=true` does"), "`brim plan --measure` does");
  EXPECT_EQ(r("`brim bench streams seconds=2`"), "`brim bench streams --seconds 2`");
  EXPECT_EQ(r("`brim train task=ner`", "train"), "`brim train --task ner`");  // train has a flag of that name
  EXPECT_EQ(r("`brim help` and `brim help plan`"), "`brim help` and `brim help plan`");
}

TEST(Render, LeavesOtherTextUnchanged) {
  const Program r;
  for (const char* same : {"", "`", "``", "no setting", "`measure=true`", "`last` and `text`", "a ` fill ` b", "'fill'",
                           "model=x", "`no such` thing `", "`brim `", "`brim plan`", "`brim nothing x=1`"})
    EXPECT_EQ(r(same), same);
  EXPECT_EQ(r("`last`, `fill`"), "`last`, --fill");
  EXPECT_EQ(r("it's ` alone, `fill`"), "it's ` alone, --fill");
  EXPECT_EQ(r("`fill`", "no such verb"), "`fill`");
  EXPECT_EQ(Renderer().text("`fill`", "score"), "`fill`");
}

}  // namespace
}  // namespace brim::cli
