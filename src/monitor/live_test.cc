// SPDX-License-Identifier: Apache-2.0
#include "monitor/live.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "base/test_files.h"

namespace brim::monitor {
namespace {

class LiveTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return dir_ / (std::to_string(::getpid()) + ".live"); }
  const TempDir temp_;
  const std::filesystem::path dir_ = temp_ / "live";  // does not exist yet
};

TEST_F(LiveTest, PublishesARecordAndRemovesTheFileAtExit) {
  {
    LivePublisher publisher(dir_);
    ASSERT_TRUE(publisher.active());
    EXPECT_TRUE(read_live(dir_).empty());  // not published yet
    RunRecord r;
    r.verb = "score";
    r.model = "/models/" + std::string(200, 'x') + "/roberta";
    r.device = "NVIDIA H200";
    r.on_card = true;
    r.stats.rows = 123, r.stats.tokens = 4567, r.mfu = 0.459, r.planned_bytes = int64_t{945} << 20;
    for (int i = 0; i < 12; ++i) r.stages.emplace_back("stage", i * 0.1);
    publisher.publish(r);
    const auto runs = read_live(dir_);
    ASSERT_EQ(runs.size(), 1U);
    EXPECT_EQ(runs[0].pid, ::getpid());
    EXPECT_EQ(runs[0].verb, "score");
    EXPECT_TRUE(runs[0].model.ends_with("/roberta"));
    EXPECT_LT(runs[0].model.size(), 128U);
    EXPECT_EQ(runs[0].device_title(), "cuda:0 NVIDIA H200");
    EXPECT_EQ(runs[0].stats.rows, 123);
    EXPECT_EQ(runs[0].stages, r.stages);
    EXPECT_GT(runs[0].start_unix_ns, 0);
    EXPECT_GE(runs[0].updated_unix_ns, runs[0].start_unix_ns);
    EXPECT_EQ(runs[0].limit_bytes, std::nullopt);
    r.output = std::string(100'000, 'x');  // does not fit: the earlier record stays
    publisher.publish(r);
    EXPECT_EQ(read_live(dir_).at(0).output, "");
  }
  EXPECT_FALSE(std::filesystem::exists(file()));
  EXPECT_TRUE(read_live(dir_).empty());
}

TEST_F(LiveTest, ReadersNeverSeeAPartialUpdate) {
  LivePublisher publisher(dir_);
  ASSERT_TRUE(publisher.active());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int64_t i = 1; i <= 20'000; ++i) {
      RunRecord r;
      r.stats.rows = r.stats.tokens = i;
      r.token_budget = i;
      r.loss = static_cast<double>(i);
      r.stages = {{"read", static_cast<double>(i)}};
      publisher.publish(r);
    }
    stop = true;
  });
  std::atomic<int64_t> seen{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r)
    readers.emplace_back([&] {
      int64_t last = 0;
      bool once_more = true;
      while (once_more) {
        once_more = !stop;
        const auto f = read_live_file(file());
        if (!f) continue;
        const int64_t rows = f->stats.rows;
        ASSERT_EQ(rows, f->stats.tokens);
        ASSERT_EQ(rows, f->token_budget);
        ASSERT_EQ(static_cast<double>(rows), f->loss);
        ASSERT_EQ(static_cast<double>(rows), f->stages.at(0).second);
        ASSERT_GE(rows, last);
        last = rows;
        ++seen;
      }
    });
  writer.join();
  for (auto& r : readers) r.join();
  EXPECT_GT(seen, 0);
}

TEST_F(LiveTest, EstimatesTheTimeLeftFromTheFirstKnownShare) {
  LivePublisher publisher(dir_);
  RunRecord f;
  const auto publish = [&](int64_t step) {
    f.step = step;
    publisher.publish(f);
    return read_live_file(file())->seconds_left;
  };
  EXPECT_FALSE(publish(5));  // the number of steps is unknown
  f.total_steps = 100;
  EXPECT_FALSE(publish(80));  // a resumed run
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const double left = publish(90).value_or(-1);  // as long as the ten steps before
  EXPECT_GE(left, 0.03);
  EXPECT_LT(left, 10);
  EXPECT_EQ(publish(100), 0);
}

TEST_F(LiveTest, RemovesFilesOfDeadProcessesOnly) {
  std::filesystem::create_directories(dir_);
  const pid_t child = ::fork();
  if (child == 0) {
    LivePublisher publisher(dir_);
    publisher.publish({});
    ::_exit(0);  // as if killed: no destructor
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const auto orphan = dir_ / (std::to_string(child) + ".live");
  ASSERT_TRUE(std::filesystem::exists(orphan));
  const auto foreign = dir_ / "notes.live", own = dir_ / (std::to_string(::getpid()) + ".live");
  std::ofstream(foreign) << "mine";
  std::ofstream(own) << "too short";
  EXPECT_TRUE(read_live(dir_).empty());
  EXPECT_FALSE(std::filesystem::exists(orphan));
  EXPECT_TRUE(std::filesystem::exists(foreign));
  EXPECT_EQ(read_live_file(own), std::nullopt);
  EXPECT_EQ(read_live_file(dir_ / "absent.live"), std::nullopt);
  LivePublisher publisher(dir_);  // replaces a file with the same name
  EXPECT_TRUE(publisher.active());
}

TEST_F(LiveTest, RejectsAFileOfRandomBytes) {
  std::uintmax_t size = 0;
  {
    LivePublisher publisher(dir_);
    publisher.publish({});
    size = std::filesystem::file_size(file());
  }
  // A valid header, then all ones: the sequence number stays odd.
  std::string noise(size, '\xFF');
  noise.replace(0, 16, std::string("BRIMLIVE\5\0\0\0\0\0\0\0", 16));
  std::ofstream(file(), std::ios::binary) << noise;
  EXPECT_EQ(read_live_file(file()), std::nullopt);
  noise[24] = '\xFE';  // even: the length is read, and is too large
  std::ofstream(file(), std::ios::binary) << noise;
  EXPECT_EQ(read_live_file(file()), std::nullopt);
  noise.replace(32, 8, std::string("\x10\0\0\0\0\0\0\0", 8));  // sixteen bytes that are not JSON
  std::ofstream(file(), std::ios::binary) << noise;
  EXPECT_EQ(read_live_file(file()), std::nullopt);
}

TEST_F(LiveTest, DoesNothingIfTheFileCannotBeCreated) {
  LivePublisher publisher("/proc/brim");
  EXPECT_FALSE(publisher.active());
  publisher.publish({});
  std::ofstream(dir_) << "a file, not a directory";
  EXPECT_FALSE(LivePublisher(dir_).active());
  EXPECT_TRUE(read_live(dir_).empty());
}

}  // namespace
}  // namespace brim::monitor
