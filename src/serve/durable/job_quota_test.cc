// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/job_quota.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/test_files.h"
#include "serve/durable/jobs_store.h"

namespace brim::serve {
namespace {

std::string problem_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cannot_write);
    return error.what();
  }
  return "";
}

TEST(JobQuota, BoundsJobsAndBytes) {
  JobQuota quota({.jobs = 2, .bytes = 2048});
  quota.add_job();
  quota.add_bytes(2000);
  EXPECT_NO_THROW(quota.check(48));
  EXPECT_EQ(problem_of([&] { quota.add_bytes(49); }),
            "the file does not fit in the job quota: 1.95 KiB of 2.00 KiB used; delete finished jobs, or "
            "raise `max_jobs_bytes`");
  EXPECT_NE(problem_of([&] { quota.check(std::numeric_limits<int64_t>::max()); }), "");
  quota.add_bytes(48);
  quota.add_job();
  EXPECT_EQ(problem_of([&] { quota.add_job(); }),
            "too many jobs: 2, at most 2 allowed; delete finished jobs, or raise `max_jobs`");
  quota.remove_job();
  quota.remove_bytes(2048);
  EXPECT_NO_THROW(quota.check(2048));
}

TEST(JobQuota, CountsJobsOfAnEarlierStart) {
  const TempDir dir;
  const StateDir state(dir.path() / "state");
  int64_t now = 1000;
  const auto open = [&] {
    JobsStore::Options options;
    options.keep_seconds = 100;
    options.limits = {.jobs = 2, .bytes = 10};
    return std::make_unique<JobsStore>(
        state, [](const Job&) -> JobModel { return {}; }, [&] { return now; }, options);
  };
  auto store = open();
  std::string id;
  {
    const auto upload = store->begin({});
    upload->write("text\nabc");
    id = upload->finish().id;
  }
  for (int start = 0; start < 2; ++start, store = open()) {
    EXPECT_NE(problem_of([&] { store->quota().check(3); }), "") << start;
    EXPECT_EQ(problem_of([&] { store->quota().check(2); }), "") << start;
  }
  store->begin({});  // abandoned
  store->cancel(id);
  now += 101;
  store->expire();
  EXPECT_EQ(store->find(id)->status, JobStatus::expired);
  EXPECT_EQ(problem_of([&] { store->quota().check(10); }), "") << "an expired job has no file";
  const auto second = store->begin({});
  EXPECT_NE(problem_of([&] { store->begin({}); }), "") << "but counts as a job";
  store->cancel(id);
  EXPECT_EQ(problem_of([&] { store->begin({}); }), "");
}

}  // namespace
}  // namespace brim::serve
