// SPDX-License-Identifier: Apache-2.0
#include "report/train_report.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "report/markup_check.h"

namespace brim::report {
namespace {

const char* const kRecord =
    R"({"state":{"best_global_step":4,"best_metric":0.75,"best_metric_name":"macro_f1","epoch":1.0,"global_step":4,"max_steps":8,"log_history":[
  {"step":2,"loss":1.2,"learning_rate":1e-5,"grad_norm":2.0,"samples_per_second":100.0,"tokens_per_second":3000.0,"mfu":null,"memory_used_bytes":5000000,"memory_planned_bytes":6000000},
  {"step":4,"loss":0.9,"learning_rate":5e-6,"grad_norm":1.0,"samples_per_second":110.0,"tokens_per_second":3300.0,"mfu":null,"memory_used_bytes":5000000,"memory_planned_bytes":6000000},
  {"step":4,"eval_loss":0.8,"eval_accuracy":0.7,"eval_macro_f1":0.75}]},
  "settings":{"learning_rate":"2e-05","note":"<script>alert(1)</script>"},
  "plan":{"bytes":{"weights":1000,"activations":4000},"limit_bytes":8000,"peak_bytes":5000,"token_budget":512},
  "data":{"train":["a&b.csv"],"validation":[],"rows":10,"tokens":300,"validation_rows":0,"truncated":0,"token_set":"resident"},
  "model":"tiny <b>","device":"cpu","precision":"fp32","parameters":1234,"seconds":2.5,"samples":16,"tokens":480})";

TEST(TrainReport, ContainsEscapedCurvesPlanAndSettings) {
  const std::string html = train_report_html(kRecord);
  EXPECT_EQ(check_markup(html).problem, "");
  for (const char* part : {"Loss", "Metrics on the validation set", "Throughput", "Memory", "Learning rate", "4 (best)",
                           "0.7500", "learning_rate", "a&amp;b.csv", "tiny &lt;b&gt;"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("<script>alert"), std::string::npos);
  EXPECT_EQ(html.find("https://"), std::string::npos);  // no external resources
  EXPECT_EQ(html.find("src="), std::string::npos);
  EXPECT_EQ(html.find("Device utilisation"), std::string::npos);  // all gaps: no empty plot
}

TEST(TrainReport, AddsTheTimeBeforeAResume) {
  std::string record = kRecord;
  record.insert(record.size() - 1, R"(,"seconds_before":61.5)");
  EXPECT_NE(train_report_html(record).find("<dd>1m 04s</dd>"), std::string::npos);
  EXPECT_NE(train_report_html(record).find("<dd>6</dd>"), std::string::npos) << "16 rows in the 2.5 s of this part";
}

TEST(TrainReport, PlotsTheLossOfEachHead) {
  EXPECT_EQ(train_report_html(kRecord).find("Loss by head"), std::string::npos);
  std::string record = kRecord;
  record.replace(record.find(R"("loss":0.9)"), 10, R"("loss":0.9,"sequence_loss":0.6,"token_loss":0.3)");
  const std::string html = train_report_html(record);
  for (const char* part : {"Loss by head", "classifier, training", "tagger, training"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

TEST(TrainReport, ShowsTeachersAndRowsToLabel) {
  std::string record = kRecord;
  record.insert(record.size() - 1, R"(,"teachers":{"teachers":[{"model":"a/nli","weight":0.75,"agreement":0.9,
      "label_agreement":null},{"model":"scores.csv","weight":0.25}],"rows":40,"rows_compared":20,"agreement":0.85,
      "mean_confidence":0.7654,"confidence":[0,0,0,0,10,0,0,0,0,30],"label_agreement":null,
      "to_label":[{"text":"<b>w5","from":"a.csv:3","teacher_label":"x","teacher_score":0.5,"student_label":"y",
      "student_score":0.6,"reason":"student disagrees"}]})");
  const std::string html = train_report_html(record);
  EXPECT_EQ(check_markup(html).problem, "");
  for (const char* part : {"Teachers", "85.0 %", "0.765", "90.0 %", "nli", "scores.csv", "0.4 to 0.5", "75.0 %",
                           "&lt;b&gt;w5", "a.csv:3", "x 0.500", "y 0.600", "student disagrees"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(train_report_html(kRecord).find("labelling by hand"), std::string::npos);
}

TEST(TrainReport, RejectsAnInvalidRecord) {
  for (const char* bad : {"", "[]", "{}", R"({"state":{}})"}) EXPECT_THROW(train_report_html(bad), Error) << bad;
}

}  // namespace
}  // namespace brim::report
