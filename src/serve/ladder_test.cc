// SPDX-License-Identifier: Apache-2.0
#include "serve/ladder.h"

#include <map>
#include <thread>

#include "base/test_files.h"

namespace brim::serve {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Tuesday, 2026-06-02, in UTC; the market of the zone below opens at 09:30.
constexpr int64_t kMidnight = 1780358400, kOpen = kMidnight + 10 * 3600, kNight = kMidnight + 3600;

TimeZone made_utc() {
  std::string block = "TZif2" + std::string(23, '\0') + std::string(8, '\0');
  block += std::string(3, '\0') + '\1' + std::string(3, '\0') + '\4' + std::string(6, '\0') + std::string("LMT\0", 4);
  return TimeZone::parse(block + block + "\nUTC0\n", "UTC");
}

LadderRules test_rules() {
  LadderRules r;
  r.name = "sentiment";
  r.rungs = {{"finbert", {}}, {"distil", {}}, {"tiny", GateLimits{0.05, 0.8}}, {"vader", {}}};
  r.default_rung = "distil";
  r.gate.against = "finbert";
  r.sources = {{{"reuters", "bloom*"}, "finbert", false}, {{"sec"}, "finbert", true}};
  r.schedule = Schedule(made_utc(), MarketRungs{MarketCalendar::nyse(), "distil", "", "vader"});
  r.load = LoadRules{250, 100, "tiny"};
  return r;
}

GateFigures made_figures(double recall, double agreement) {
  GateFigures f;
  f.rows = 1000;
  f.macro_recall = recall;
  f.against_recall = 0.90;
  f.agreement = agreement;
  return f;
}

class LadderTest : public testing::Test {
 protected:
  Choice choose(const LadderRequest& request, int64_t unix_seconds = kOpen) {
    return ladder.choose(request, {unix_seconds, ns}, [&](const std::string& model) { return waits[model]; });
  }
  std::string chosen(const LadderRequest& request, int64_t unix_seconds = kOpen) {
    const Choice choice = choose(request, unix_seconds);
    return choice.model + " " + reason_name(choice.reason);
  }

  Ladder ladder{test_rules()};
  std::map<std::string, double> waits;
  int64_t ns = 0;
};

TEST_F(LadderTest, FirstMatchingRuleSelectsRung) {
  EXPECT_EQ(chosen({.model = "vader", .source = "reuters"}), "vader requested");
  EXPECT_EQ(chosen({.model = "sentiment", .source = "Reuters"}), "finbert source");
  EXPECT_EQ(chosen({.source = "Bloomberg TV"}), "finbert source");
  EXPECT_EQ(chosen({.source = "blog"}), "distil schedule");
  EXPECT_EQ(chosen({.source = "blo"}), "distil schedule");
  EXPECT_EQ(chosen({}), "distil schedule");
  EXPECT_EQ(chosen({}, kMidnight + 5 * 3600), "distil default") << "no rule for extended hours";
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { choose({.model = "finbrt"}); }), "did you mean finbert?");
}

TEST_F(LadderTest, SourcesDoNotLoadModelsAtNight) {
  EXPECT_EQ(chosen({}, kNight), "vader schedule");
  EXPECT_EQ(chosen({.source = "reuters"}, kNight), "vader schedule");
  EXPECT_EQ(chosen({.source = "sec"}, kNight), "finbert source");
}

TEST_F(LadderTest, SpillsUnderLoadIfGatePassesAndReturns) {
  ladder.report_gate("tiny", made_figures(0.86, 0.85));
  waits = {{"distil", 251}, {"tiny", 10}};
  EXPECT_EQ(chosen({}), "tiny load");
  EXPECT_EQ(chosen({.may_spill = false}), "distil schedule") << "a job keeps its model";
  EXPECT_EQ(chosen({.model = "distil"}), "distil requested");
  waits["distil"] = 150;
  ns += 60 * kSecond;
  EXPECT_EQ(chosen({}), "tiny load") << "no change between the bounds";
  waits["distil"] = 99;
  EXPECT_EQ(chosen({}), "distil schedule");
  waits["distil"] = 250;
  EXPECT_EQ(chosen({}), "distil schedule") << "no change between the bounds";
  waits["distil"] = 300;
  EXPECT_EQ(chosen({}), "tiny load");
  waits["distil"] = 5;
  ns += 5 * kSecond - 1;
  EXPECT_EQ(chosen({}), "tiny load") << "at least five seconds";
  ns += 1;
  EXPECT_EQ(chosen({}), "distil schedule");
}

TEST_F(LadderTest, SpillConsidersDeadlinesFloorAndWaitOfLowerRungs) {
  ladder.report_gate("distil", made_figures(0.89, 0.95));
  ladder.report_gate("tiny", made_figures(0.86, 0.85));
  ladder.report_gate("vader", made_figures(0.90, 0.99));
  waits = {{"finbert", 80}, {"distil", 60}, {"tiny", 10}};
  EXPECT_EQ(chosen({.source = "reuters", .deadline_ms = 70}), "distil load");
  EXPECT_EQ(chosen({.source = "reuters", .deadline_ms = 50}), "tiny load");
  EXPECT_EQ(chosen({.source = "reuters", .deadline_ms = 100}), "finbert source");
  EXPECT_EQ(chosen({.source = "reuters", .deadline_ms = 5}), "finbert source")
      << "no rung is fast enough; vader is below the floor";
  waits = {{"finbert", 400}, {"distil", 400}, {"tiny", 400}};
  EXPECT_EQ(chosen({.source = "reuters"}), "finbert source");
}

TEST_F(LadderTest, GateRestrictsAutomaticChoiceOnly) {
  waits = {{"distil", 1000}};
  EXPECT_EQ(chosen({}), "distil schedule") << "not measured";
  ladder.report_gate("tiny", made_figures(0.84, 0.95));
  EXPECT_EQ(chosen({}), "distil schedule") << "loses six points, at most five allowed";
  LadderView view = ladder.view(kOpen);
  EXPECT_EQ(view.rungs[2].gate.verdict, Verdict::refused);
  ASSERT_EQ(view.warnings.size(), 1u) << "needed because of load";
  EXPECT_HAS(view.warnings[0],
             "distil is overloaded and no lower rung may answer: tiny loses 6.0 points of macro recall against "
             "finbert, at most 5.0 allowed (1000 rows)");
  EXPECT_EQ(chosen({.model = "tiny"}), "tiny requested");
  ladder.report_gate("tiny", made_figures(0.86, 0.79));
  EXPECT_EQ(chosen({}), "distil schedule");
  EXPECT_HAS(ladder.view(kOpen).rungs[2].gate.why, "agrees with finbert on 79.0 % of rows, at least 80.0 % required");
  ladder.report_gate("tiny", made_figures(0.86, 0.80));
  EXPECT_EQ(chosen({}), "tiny load");
  EXPECT_TRUE(ladder.view(kOpen).warnings.empty());
  EXPECT_EQ(ladder.view(kOpen).rungs[1].gate.verdict, Verdict::not_measured);
  EXPECT_TRUE(ladder.view(kOpen).rungs[1].spilling);
}

TEST_F(LadderTest, RefusedRungIsNoWarningWithoutLoad) {
  ladder.report_gate("tiny", made_figures(0.84, 0.95));
  EXPECT_EQ(ladder.view(kOpen).rungs[2].gate.verdict, Verdict::refused);
  EXPECT_TRUE(ladder.view(kOpen).warnings.empty());
  waits = {{"distil", 1000}};
  EXPECT_EQ(chosen({}), "distil schedule");
  EXPECT_EQ(ladder.view(kOpen).warnings.size(), 1u);
  waits["distil"] = 0;
  ns += 60 * kSecond;
  ladder.update_load(ns, [&](const std::string& model) { return waits[model]; });
  EXPECT_TRUE(ladder.view(kOpen).warnings.empty()) << "the load has ended";
}

TEST_F(LadderTest, OverloadEndsWithoutRequest) {
  ladder.report_gate("tiny", made_figures(0.86, 0.85));
  const auto update = [&] {
    ladder.update_load(ns, [&](const std::string& model) { return waits[model]; });
    return ladder.view(kOpen).rungs[1].spilling;
  };
  waits = {{"distil", 300}, {"tiny", 10}};
  EXPECT_FALSE(update()) << "only a request starts it";
  EXPECT_EQ(chosen({}), "tiny load");
  waits["distil"] = 0;
  EXPECT_TRUE(update()) << "at least five seconds";
  ns += 5 * kSecond;
  EXPECT_FALSE(update());
  waits["distil"] = 300;
  EXPECT_EQ(chosen({}), "tiny load");
  ladder.report_fault("distil", "gone");
  EXPECT_FALSE(ladder.view(kOpen).rungs[1].spilling) << "a failed model is not overloaded";
}

TEST_F(LadderTest, ReplacedModelRequiresNewMeasurement) {
  const auto verdicts = [&] {
    std::string all;
    for (const RungView& rung : ladder.view(kOpen).rungs) all += rung.gate.verdict == Verdict::passed ? 'p' : '-';
    return all;
  };
  for (const char* rung : {"distil", "tiny"}) ladder.report_gate(rung, made_figures(0.90, 0.95));
  waits = {{"distil", 300}, {"tiny", 10}};
  EXPECT_EQ(chosen({}), "tiny load");
  const uint64_t before = ladder.changes();
  ladder.forget_gate("tiny");
  EXPECT_EQ(chosen({}), "distil schedule");
  EXPECT_EQ(verdicts(), "-p--");
  EXPECT_FALSE(ladder.view(kOpen).rungs[2].gate.figures);
  ladder.report_gate("tiny", made_figures(0.90, 0.95), before);
  EXPECT_EQ(chosen({}), "distil schedule") << "result for the previous model";
  ladder.report_gate("tiny", made_figures(0.90, 0.95), ladder.changes());
  EXPECT_EQ(chosen({}), "tiny load");
  EXPECT_EQ(verdicts(), "-pp-");
  ladder.forget_gate("finbert");
  EXPECT_EQ(verdicts(), "----") << "all were measured against it";
}

TEST_F(LadderTest, PinnedRungOverridesRules) {
  ladder.report_gate("tiny", made_figures(0.86, 0.85));
  waits = {{"distil", 300}, {"tiny", 10}};
  ladder.pin("distil");
  EXPECT_EQ(chosen({}), "distil pinned") << "load has no effect";
  EXPECT_EQ(chosen({.source = "reuters"}, kNight), "distil pinned");
  EXPECT_EQ(chosen({.model = "vader"}), "vader requested");
  EXPECT_EQ(ladder.view(kNight).active, "distil");
  ladder.report_fault("distil", "gone");
  EXPECT_EQ(chosen({}), "tiny pinned") << "the next lower rung";
  ladder.report_fault("distil", "");
  ladder.unpin();
  EXPECT_EQ(chosen({}), "tiny load");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { ladder.pin("finbrt"); }), "did you mean finbert?");
}

TEST_F(LadderTest, FailedRungFallsBackToNext) {
  ladder.report_fault("distil", "no such directory");
  Choice choice = choose({});
  EXPECT_EQ(choice.model, "tiny");
  EXPECT_EQ(choice.reason, Reason::schedule);
  EXPECT_EQ(choice.instead_of, "distil");
  EXPECT_EQ(choice.why, "no such directory");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { choose({.model = "distil"}); }), "no such directory");
  const LadderView view = ladder.view(kOpen);
  EXPECT_EQ(view.active, "tiny");
  ASSERT_EQ(view.warnings.size(), 1u);
  EXPECT_HAS(view.warnings[0], "distil is unavailable: no such directory");

  ladder.report_fault("tiny", "broken");
  ladder.report_fault("vader", "broken");
  EXPECT_EQ(choose({}).model, "finbert") << "none below: the nearest above";
  ladder.report_fault("finbert", "lost");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { choose({}); }), "no rung is available");
  EXPECT_EQ(ladder.view(kOpen).active, "");
  ladder.report_fault("distil", "");
  EXPECT_EQ(chosen({}), "distil schedule");
}

TEST_F(LadderTest, ViewReportsNextRung) {
  const LadderView view = ladder.view(kOpen);
  EXPECT_EQ(view.active, "distil");
  EXPECT_EQ(view.market, Market::open);
  EXPECT_EQ(view.next_change, kMidnight + 16 * 3600);
  EXPECT_EQ(view.next, "distil") << "default during extended hours";
  EXPECT_EQ(ladder.view(kNight).next_change, kMidnight + 4 * 3600);
}

TEST(Ladder, PredictsNextRungAcrossClockChanges) {
  std::string block = "TZif2" + std::string(31, '\0');
  block += std::string(3, '\0') + '\1' + std::string(3, '\0') + '\4' + std::string(6, '\0') + std::string("LMT\0", 4);
  const TimeZone new_york = TimeZone::parse(block + block + "\nEST5EDT,M3.2.0,M11.1.0\n", "America/New_York");
  LadderRules rules = test_rules();
  rules.schedule = Schedule(new_york, MarketRungs{MarketCalendar::nyse(), "distil", "tiny", "vader"});
  rules.lead_seconds = 90;
  const auto coming = [&rules](int64_t now) {
    const auto next = Ladder(rules).coming(now);
    return next ? fmt::format("{} in {}", next->model, next->unix_seconds - now) : std::string();
  };
  // On Friday, 2026-03-06, New York is five hours behind UTC; on Monday, the 9th, four.
  constexpr int64_t kFriday = 1772755200, kMonday = kFriday + 3 * 86'400;
  EXPECT_EQ(coming(kFriday + 9 * 3600 - 91), "");
  EXPECT_EQ(coming(kFriday + 9 * 3600 - 90), "tiny in 90") << "04:00, before hours";
  EXPECT_EQ(coming(kFriday + 9 * 3600), "") << "already active";
  EXPECT_EQ(coming(kFriday + 14 * 3600 + 1800 - 30), "distil in 30") << "09:30";
  EXPECT_EQ(coming(kMonday + 9 * 3600 - 30), "") << "an hour too late";
  EXPECT_EQ(coming(kMonday + 8 * 3600 - 30), "tiny in 30");
  EXPECT_EQ(coming(kMonday + 13 * 3600 + 1800 - 30), "distil in 30");
  EXPECT_EQ(coming(kMonday + 24 * 3600 - 45), "vader in 45") << "20:00: rules, which need no loading";
  // Friday, 2026-07-03, is a holiday (Independence Day observed); Monday, the 6th, is a regular day.
  constexpr int64_t kHoliday = 1783036800;
  for (int hour = 0; hour < 24; ++hour)
    for (const int minute : {0, 30}) {
      const int64_t change = kHoliday + hour * 3600 + minute * 60;
      EXPECT_EQ(coming(change - 30), hour == 0 && minute == 0 ? "vader in 30" : "") << hour << ":" << minute;
    }
  EXPECT_EQ(coming(kHoliday + 3 * 86'400 + 8 * 3600 - 30), "tiny in 30");
  // In November clocks go back on Sunday, the 1st; a span from 01:30 starts in the first of the two hours.
  rules.schedule = Schedule(new_york, std::vector<TimedRung>{{0x7F, 90, 150, "finbert"}});
  constexpr int64_t kNovember = 1793491200;
  EXPECT_EQ(coming(kNovember + 5 * 3600 + 1800 - 30), "finbert in 30");
  // In March 02:30 is skipped: a span from then starts at the clock change.
  rules.schedule = Schedule(new_york, std::vector<TimedRung>{{0x7F, 150, 600, "finbert"}});
  EXPECT_EQ(coming(kMonday - 86'400 + 7 * 3600 - 30), "finbert in 30");

  Ladder ladder(rules);
  const int64_t soon = kMonday - 86'400 + 7 * 3600 - 30;
  ladder.report_fault("finbert", "gone");
  EXPECT_EQ(ladder.coming(soon)->model, "distil") << "its fallback";
  ladder.pin("tiny");
  EXPECT_FALSE(ladder.coming(soon)) << "the schedule does not decide";
  EXPECT_EQ(ladder.pinned(), "tiny");
  ladder.unpin();
  EXPECT_FALSE(ladder.pinned());
  rules.lead_seconds = 0;
  EXPECT_EQ(coming(soon), "");
}

TEST(Ladder, RejectsRulesWithUnknownRungs) {
  const auto refusal = [](const std::function<void(LadderRules&)>& spoil) {
    LadderRules r = test_rules();
    spoil(r);
    return error_of(ErrorCode::usage, [&] { Ladder ladder(r); });
  };
  EXPECT_HAS(refusal([](LadderRules& r) { r.default_rung = "distill"; }), "default: unknown rung distill");
  EXPECT_HAS(refusal([](LadderRules& r) { r.load->floor = "x"; }), "load: unknown rung x");
  EXPECT_HAS(refusal([](LadderRules& r) { r.gate.against = "x"; }), "gate: unknown rung x");
  EXPECT_HAS(refusal([](LadderRules& r) { r.sources[0].rung = "x"; }), "sources: unknown rung x");
  EXPECT_HAS(refusal([](LadderRules& r) { r.rungs.erase(r.rungs.begin() + 3); }), "schedule: unknown rung vader");
  EXPECT_HAS(refusal([](LadderRules& r) { r.rungs.push_back({"distil", {}}); }), "duplicate rung");
  EXPECT_HAS(refusal([](LadderRules& r) { r.rungs.clear(); }), "no rungs");
  EXPECT_HAS(refusal([](LadderRules& r) { r.load->back_under_ms = 300; }), "back_under_ms=300");
}

TEST(Ladder, SupportsConcurrentChoices) {
  Ladder ladder(test_rules());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        if (t == 0) ladder.report_fault("distil", i % 2 == 0 ? "gone" : "");
        if (t == 1) ladder.report_gate("tiny", made_figures(0.9, 0.9));
        const Choice choice = ladder.choose({}, {kOpen, i}, [](const std::string&) { return 300.0; });
        EXPECT_TRUE(choice.model == "distil" || choice.model == "tiny") << choice.model;
        if (i % 100 == 0) ladder.view(kOpen);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Gate, ComparesTwoClassModelOnItsClasses) {
  jobs::ModelRun large{.name = "large", .labels = {"negative", "neutral", "positive"}, .predicted = {0, 0, 1, 1, 2, 2}};
  jobs::ModelRun small{.name = "small", .labels = {"NEGATIVE", "POSITIVE"}, .predicted = {0, 1, 0, 1, 1, 1}};
  const std::vector<std::string> expected = {"negative", "negative", "neutral", "neutral", "positive", "positive"};
  const jobs::Comparison comparison = jobs::compare_models({large, small}, expected, 0.02);
  const GateFigures figures = gate_figures(comparison, 1, 0);
  EXPECT_EQ(figures.rows, 4);
  EXPECT_NEAR(figures.known_share, 4.0 / 6, 1e-12);
  EXPECT_NEAR(*figures.macro_recall, 0.75, 1e-12);  // half of the negative and all of the positive rows
  EXPECT_NEAR(*figures.against_recall, 1, 1e-12);
  EXPECT_NEAR(figures.agreement, 0.75, 1e-12);
  ASSERT_EQ(figures.per_class.size(), 2u);
  EXPECT_EQ(figures.per_class[0].second.false_negatives, 1);
  EXPECT_EQ(figures.per_class[1].second.false_positives, 1);
  EXPECT_HAS(judge(figures, {0.02, 0.88}, "large").why, "loses 25.0 points");
  EXPECT_HAS(judge(figures, {0.3, 0.7}, "large").why, "25.0 points of macro recall lost, 75.0 % agreement with large");
  EXPECT_HAS(judge(figures, {0.3, 0.7}, "large").why, "67 % of the data");
  EXPECT_EQ(judge({}, {}, "large").verdict, Verdict::not_measured);
}

TEST(Gate, UsesAgreementWithoutLabels) {
  jobs::ModelRun a{.name = "a", .labels = {"n", "p"}, .predicted = {0, 0, 1, 1}};
  jobs::ModelRun b{.name = "b", .labels = {"n", "p"}, .predicted = {0, 0, 1, 0}};
  const GateFigures figures = gate_figures(jobs::compare_models({a, b}, {}, 0.02), 1, 0);
  EXPECT_FALSE(figures.loss());
  EXPECT_NEAR(figures.agreement, 0.75, 1e-12);
  EXPECT_EQ(judge(figures, {0.0, 0.75}, "a").verdict, Verdict::passed);
  EXPECT_EQ(judge(figures, {0.0, 0.76}, "a").verdict, Verdict::refused);
}

}  // namespace
}  // namespace brim::serve
