// SPDX-License-Identifier: Apache-2.0
// Training loop: which calls a program gets, and when.
#include "train/loop.h"

#include <gtest/gtest.h>

#include <string>

namespace brim::train {
namespace {

// Records the calls: steps as digits, e for an evaluation, s for a checkpoint, ( and ) for a pause.
class Recorded final : public TrainProgram {
 public:
  explicit Recorded(int64_t steps) : steps_(steps) {}
  int64_t total_steps() const override { return steps_; }
  bool ends_epoch(int64_t step) const override { return step % 5 == 4; }
  bool enqueue(int64_t step) override {
    if (step == input_ends_at) return false;
    log += std::to_string(step);
    most_unread = std::max(most_unread, ++unread_);
    if (stop != nullptr && step == stop_at) *stop = true;
    return true;
  }
  int64_t unread_steps() const override { return unread_; }
  void read_step() override { --unread_; }
  bool needs_each_step() const override { return one_by_one; }
  bool can_evaluate() const override { return evaluates; }
  bool evaluate() override {
    EXPECT_EQ(unread_, 0);
    log += "e";
    return ++evaluations_ < patience;
  }
  void save() override { log += "s"; }
  void pauses() override { log += "("; }
  void resumes() override { log += ")"; }

  std::string log;
  int64_t most_unread = 0, input_ends_at = -1, stop_at = -1;
  int patience = 100;
  bool one_by_one = false, evaluates = true;
  std::atomic<bool>* stop = nullptr;

 private:
  int64_t steps_, unread_ = 0;
  int evaluations_ = 0;
};

std::string logged(Recorded& program, const Cadence& cadence, int64_t first = 0, std::atomic<bool>* stop = nullptr) {
  TrainLoop loop(program, cadence, stop);
  loop.run(first);
  EXPECT_EQ(program.unread_steps(), 0);
  EXPECT_GE(loop.seconds(), 0);
  if (loop.stopped_early()) program.log += " early";
  if (loop.interrupted()) program.log += " interrupted";
  return program.log;
}

TEST(TrainLoop, EvaluatesSavesAndEndsOnSchedule) {
  const Cadence by_steps{Strategy::steps, Strategy::steps, 3, 4}, by_epoch{Strategy::epoch, Strategy::epoch, 0, 0};
  Recorded plain(10), epochs(10), resumed(10), last(6), blind(4);
  EXPECT_EQ(logged(plain, by_steps), "012(e)3(s)45(e)67(s)8(e)9(e)");
  EXPECT_EQ(logged(epochs, by_epoch), "01234(es)56789(e)") << "the final model is always written";
  EXPECT_EQ(logged(resumed, by_steps, 7), "7(s)8(e)9(e)");
  EXPECT_EQ(logged(last, {}), "012345");
  blind.evaluates = false;
  EXPECT_EQ(logged(blind, by_steps), "0123");
  EXPECT_EQ(last.most_unread, 2) << "one runs, one waits";
}

TEST(TrainLoop, StopsEarlyOnRequestAndAtTheEndOfInput) {
  const Cadence cadence{Strategy::steps, Strategy::no, 2, 0};
  Recorded enough(10), asked(10), out(10), careful(3);
  enough.patience = 2;
  EXPECT_EQ(logged(enough, cadence), "01(e)23(e) early");
  std::atomic<bool> stop{false};
  asked.stop = &stop;
  asked.stop_at = 4;
  EXPECT_EQ(logged(asked, {}, 0, &stop), "01234(s) interrupted");
  out.input_ends_at = 3;
  EXPECT_EQ(logged(out, {}), "012");
  careful.one_by_one = true;
  EXPECT_EQ(logged(careful, {}), "012");
  EXPECT_EQ(careful.most_unread, 1);
}

}  // namespace
}  // namespace brim::train
