// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "train/tiny_job.h"

namespace brim::train {
namespace {

// Payloads of the records of a file.
std::vector<std::string> payloads_of(const std::string& bytes) {
  std::vector<std::string> all;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    all.push_back(bytes.substr(at + 12, size));
    EXPECT_EQ(bytes.substr(at, size + 16), event_record(all.back()));
    at += size + 16;
  }
  return all;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

TEST(EventFile, RecordMatchesTensorFlows) {
  // Written by tensorboard's RecordWriter for the payload "brim".
  EXPECT_EQ(event_record("brim"), std::string("\x04\0\0\0\0\0\0\0\x42\x45\x52\x04"
                                              "brim\x2F\x70\xB3\x4E",
                                              20));
}

TEST(EventFile, LeavesOutValuesThatAreNotFinite) {
  TempDir dir;
  EventFile file(dir / "a/b", 0);
  file.add(3, {{"train/mfu", NAN}});
  file.add(3, {{"train/loss", 0.5}, {"train/mfu", NAN}});
  const auto payloads = payloads_of(get_file(file.path()));
  ASSERT_EQ(payloads.size(), 2u);
  EXPECT_HAS(payloads[0], "brain.Event:2");
  EXPECT_HAS(payloads[1], std::string("\x0A\x0Atrain/loss\x15\0\0\0\x3F", 17));
  EXPECT_EQ(payloads[1].find("mfu"), std::string::npos);
}

TEST(EventFile, IsWrittenOnRequestAndContinuedAfterAResume) {
  TinyJob t;
  t.settings.report_to = {"tensorboard"};
  t.settings.save_strategy = Strategy::epoch;
  t.settings.max_steps = 12;
  train(t.settings, {});
  const auto first = files_in(t.out() / "runs");
  ASSERT_EQ(first.size(), 1u);
  const auto payloads = payloads_of(get_file(first[0]));
  EXPECT_EQ(payloads.size(), 1 + 12 + 2u);  // version, steps, evaluations
  EXPECT_HAS(payloads[1], "train/loss");
  EXPECT_HAS(payloads[1], "train/learning_rate");
  EXPECT_HAS(payloads.back(), "eval/accuracy");
  std::filesystem::remove_all(t.out() / "checkpoint-12");
  t.settings.resume_from_checkpoint = "last";
  train(t.settings, {});
  const auto both = files_in(t.out() / "runs");
  ASSERT_EQ(both.size(), 2u);
  const auto resumed = payloads_of(get_file(both[0] == first[0] ? both[1] : both[0]));
  EXPECT_EQ(resumed.size(), 2 + 6 + 1u);
  EXPECT_HAS(resumed[1], std::string("\x10\x07\x3A\x02\x08\x01", 6));  // step 7: start of a session
  t.settings.report_to = {"none"};
  t.settings.resume_from_checkpoint.clear();
  t.settings.overwrite_output_dir = true;
  t.settings.logging_dir = (t.dir / "none").string();
  train(t.settings, {});
  EXPECT_FALSE(std::filesystem::exists(t.dir / "none"));
}

}  // namespace
}  // namespace brim::train
