// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/jobs_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>

#include "base/test_files.h"
#include "base/test_syscalls.h"
#include "engine/testing.h"
#include "io/compress.h"
#include "jobs/score_file.h"
#include "model/golden_models.h"
#include "serve/durable/time_left.h"

namespace brim::serve {
namespace {

using JobText = nlohmann::ordered_json;

// Labels depend on the length. Scores also depend on the index in the block, like sums on a device may depend on the
// batch.
class BlockScorer : public Scorer {
 public:
  ModelKind kind() const override { return ModelKind::classifier; }
  const std::vector<std::string>& labels() const override { return labels_; }
  const std::vector<std::string>& score_names() const override { return labels_; }
  std::string device() const override { return "cpu (stand-in)"; }
  std::string precision() const override { return "fp32"; }
  MemoryPlan plan() const override { return {}; }
  int64_t max_length() const override { return 0; }
  ScorerLoad load() const override { return {}; }
  std::vector<TextToken> tokenize(std::string_view) const override { return {}; }
  void submit(std::span<const Request>, Completion&) override {}
  void close() override {}
  Predictions score(std::span<const std::string_view> texts, std::stop_token stop,
                    const std::function<void(size_t)>&) override {
    Predictions p;
    p.rows = texts.size();
    p.width = 2;
    if (on_score) on_score();
    p.tokens = static_cast<int64_t>(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      if (stop.stop_requested() || texts[i] == "refuse") p.errors.emplace_back(i, Error(ErrorCode::bad_data, "no"));
      const float score = static_cast<float>(i + texts[i].size()) / 1000;
      p.labels.push_back(static_cast<int32_t>(texts[i].size() % 2));
      p.label_scores.push_back(score);
      p.scores.insert(p.scores.end(), {score, 1 - score});
    }
    return p;
  }
  Predictions score_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                          std::stop_token stop, const std::function<void(size_t)>& progress) override {
    std::vector<std::string> both;
    for (size_t i = 0; i < texts.size(); ++i) both.push_back(std::string(texts[i]).append(pairs[i]));
    return score(std::vector<std::string_view>(both.begin(), both.end()), stop, progress);
  }
  std::function<void()> on_score;

 private:
  std::vector<std::string> labels_ = {"even", "odd"};
};

struct JobBench {
  JobBench() { open(); }
  void open() {
    store.reset();
    state.reset();
    state.emplace(dir / "state");
    store = make_store(*state, scorer, [this] { return now; });
  }
  static std::unique_ptr<JobsStore> make_store(
      const StateDir& state, std::shared_ptr<Scorer> scorer, JobsStore::Clock clock = [] { return int64_t{1000}; }) {
    const auto models = [scorer](const Job& job) {
      const std::string& name = job.model.empty() ? job.request.model : job.model;
      if (name == "none") fail(ErrorCode::bad_model, "none: no such directory");
      const std::string chosen = name.empty() || name == "ladder" ? "small" : name;
      const ScoreTexts score = [scorer](Texts texts, Texts pairs, std::stop_token stop) {
        return score_texts(*scorer, texts, pairs, std::move(stop));
      };
      return JobModel{chosen, "weights of " + chosen, {}, scorer, score, "schedule", "large"};
    };
    JobsStore::Options options;
    options.block_rows = 10;
    options.checkpoint_seconds = 0;
    return std::make_unique<JobsStore>(state, models, std::move(clock), options);
  }
  Job put(const std::string& content, const JobRequest& request = {}) {
    const auto upload = store->begin(request);
    upload->write(content);
    return upload->finish();
  }
  std::string output(const Job& job) { return get_file(store->output(job.id).value()); }

  TempDir dir;
  int64_t now = 1000;
  std::shared_ptr<BlockScorer> scorer = std::make_shared<BlockScorer>();
  std::optional<StateDir> state;
  std::unique_ptr<JobsStore> store;
};

std::string many_rows(int rows) {
  std::mt19937 random(3);
  std::string text = "id,text\n";
  for (int i = 0; i < rows; ++i)
    text += random() % 23 == 0 ? std::to_string(i) + "\n"
                               : std::to_string(i) + "," + std::string(1 + random() % 30, 'x') + "\n";
  return text;
}

TEST(JobsStore, SyncsOutputBeforeCompletionRecord) {
  JobBench bench;
  const SyscallLog log;
  const Job sent = bench.put(many_rows(50), {.text_column = "text"});
  const size_t sent_calls = log.calls().size();
  EXPECT_EQ(unsynced(log.calls(), sent_calls, bench.dir.path().string()), std::vector<std::string>{});
  EXPECT_TRUE(bench.store->run_next({}));
  const auto calls = log.calls();
  const size_t output = find_call(calls, "rename", "/output.csv");
  ASSERT_LT(output, calls.size());
  size_t completed = output;
  for (size_t i = output; i < calls.size(); ++i)
    if (calls[i].call == "rename" && calls[i].target.ends_with("/job.json")) completed = i;
  ASSERT_GT(completed, output) << "the completion record is written last";
  EXPECT_EQ(unsynced(calls, completed, bench.dir.path().string()), std::vector<std::string>{});
  EXPECT_EQ(unsynced(calls, calls.size(), bench.dir.path().string()), std::vector<std::string>{});
}

TEST(JobsStore, ReportsSpeedAndTimeLeftWhileRunning) {
  JobBench bench;
  const Job sent = bench.put(many_rows(50), {.text_column = "text"});
  std::vector<JobText> seen;
  bench.scorer->on_score = [&] { seen.push_back(to_json(*bench.store->find(sent.id))); };
  EXPECT_TRUE(bench.store->run_next({}));
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_TRUE(seen[0]["rows_per_second"].is_null()) << "no row is done";
  EXPECT_EQ(seen[2]["model"], "small");
  EXPECT_GT(seen[2]["rows_per_second"].get<double>(), 0);
  EXPECT_GT(seen[2]["seconds_left"].get<double>(), 0);
  EXPECT_GT(seen[2]["progress"].get<double>(), 0.2);
  EXPECT_LT(seen[2]["progress"].get<double>(), 0.8) << "not the end of the chunk that was read";
  const JobText ended = to_json(*bench.store->find(sent.id));
  EXPECT_TRUE(ended["rows_per_second"].is_null());
  EXPECT_TRUE(ended["seconds_left"].is_null());
}

TEST(JobsStore, EstimatesTimeLeftSinceFirstKnownProgress) {
  TimeLeft fresh(0.0), resumed(std::nullopt);
  EXPECT_FALSE(fresh.after(1, 0));
  EXPECT_EQ(fresh.after(2, 0.5), 2.0);
  EXPECT_FALSE(resumed.after(1, 0.5)) << "the first known progress";
  EXPECT_EQ(resumed.after(2, 0.75), 1.0);
  EXPECT_EQ(resumed.after(3, 1), 0.0);
}

TEST(JobsStore, ResumedCompressedJobReportsTimeLeft) {
  JobBench bench;
  std::mt19937_64 random(7);
  io::AtomicFile packed(bench.dir / "rows.gz");
  auto sink = io::make_sink(packed, io::Compression::gzip);
  for (int row = 0; row < 120; ++row) {
    std::string text;
    while (text.size() < 100'000) text += fmt::format("{:016x}", random());
    sink->write(text + "\n");
  }
  sink->end_member();
  packed.commit();
  const Job sent = bench.put(get_file(bench.dir / "rows.gz"), {.format = "txt"});
  std::stop_source stop;
  int blocks = 0;
  bench.scorer->on_score = [&] {
    if (++blocks == 9) stop.request_stop();  // more decompressed bytes than the file has compressed ones
  };
  bench.store->run_next(stop.get_token());
  bench.open();
  std::vector<JobText> seen;
  bench.scorer->on_score = [&] { seen.push_back(to_json(*bench.store->find(sent.id))); };
  bench.store->run_next({});
  EXPECT_EQ(bench.store->find(sent.id)->completed_rows, 120);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_TRUE(seen[1]["seconds_left"].is_null()) << "after one block";
  EXPECT_TRUE(seen.back()["seconds_left"].is_number()) << seen.back();
}

// The progress record must not be durable before the rows it counts.
TEST(JobsStore, SyncsRowsBeforeProgressRecord) {
  JobBench bench;
  bench.put(many_rows(2000), {.text_column = "text"});
  const SyscallLog log;
  EXPECT_TRUE(bench.store->run_next({}));
  const auto calls = log.calls();
  size_t notes = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].call != "rename" || !calls[i].target.ends_with(".part.json")) continue;
    ++notes;
    for (const std::string& path : unsynced(calls, i, bench.dir.path().string()))
      ADD_FAILURE() << path << " before note " << notes;
  }
  EXPECT_GT(notes, 1u);
}

TEST(JobsStore, CountsBlankLines) {
  JobBench bench;
  const Job sent = bench.put("text\n\nabc\n\"\"\n\nab\n\n", {.model = "ladder", .text_column = "text"});
  EXPECT_TRUE(bench.store->run_next({}));
  EXPECT_EQ(to_json(*bench.store->find(sent.id))["request_counts"]["total"], 3);
  EXPECT_EQ(to_json(*bench.store->find(sent.id))["blank_lines"], 3);
  bench.open();
  EXPECT_EQ(to_json(*bench.store->find(sent.id))["blank_lines"], 3);
}

TEST(JobsStore, ScoresFile) {
  JobBench bench;
  const Job sent = bench.put("id,text\n1,abc\n2,refuse\n3\n4,ab\n", {.model = "ladder", .text_column = "text"});
  EXPECT_EQ(sent.status, JobStatus::validating);
  EXPECT_FALSE(bench.store->output(sent.id));
  EXPECT_TRUE(bench.store->run_next({}));
  EXPECT_FALSE(bench.store->run_next({}));
  EXPECT_EQ(bench.output(sent), "id,text,label,score\n1,abc,odd,0.003\n2,refuse,,\n3,,,\n4,ab,even,0.004\n");
  const JobText json = to_json(*bench.store->find(sent.id));
  EXPECT_EQ(json["object"], "batch");
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["model"], "small") << "selected by the ladder";
  EXPECT_EQ(json["reason"], "schedule");
  EXPECT_EQ(json["instead_of"], "large");
  EXPECT_EQ(json["request_counts"].dump(), R"({"total":4,"completed":2,"failed":2})");
  EXPECT_EQ(json["completed_at"], 1000);
  EXPECT_EQ(json["cancelled_at"], nullptr);
  EXPECT_EQ(json["progress"], 1.0);
  const int64_t tokens = bench.store->find(sent.id)->tokens;
  EXPECT_EQ(tokens, 3) << "of all rows with a text";
  bench.open();
  EXPECT_EQ(to_json(*bench.store->find(sent.id)), json) << "it is all on disk";
  EXPECT_EQ(bench.store->find(sent.id)->tokens, tokens);
  const auto record = bench.dir / ("state/jobs/" + sent.id + "/job.json");
  JobText older = JobText::parse(get_file(record));
  older.erase("tokens");
  put_file(record, older.dump());
  bench.open();
  EXPECT_EQ(to_json(*bench.store->find(sent.id)), json) << "a record of an older version";
  EXPECT_FALSE(bench.store->run_next({}));
  EXPECT_TRUE(bench.store->cancel(sent.id)) << "deletes a finished job";
  EXPECT_FALSE(bench.store->find(sent.id));
  EXPECT_FALSE(std::filesystem::exists(bench.dir / ("state/jobs/" + sent.id)));
}

TEST(JobsStore, SupportsFormatsAndAllScores) {
  JobBench bench;
  const Job lines = bench.put("{\"text\":\"abc\"}\n", {.format = "jsonl", .all_scores = true});
  const Job plain = bench.put("abc\nab\n", {.format = "txt", .output_format = "jsonl"});
  while (bench.store->run_next({})) {
  }
  EXPECT_EQ(bench.output(lines),
            "{\"text\":\"abc\",\"label\":\"odd\",\"score\":0.003,\"scores\":{\"even\":0.003,\"odd\":0.997}}\n");
  EXPECT_HAS(bench.output(plain), R"("label":"even","score":0.003)");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { bench.store->begin({.format = "xml"}); }), "xml");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { bench.store->begin({.format = "auto"}); }), "use txt");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { bench.store->begin({.output_format = "xml"}); }), "xml");
  io::AtomicFile packed(bench.dir / "rows.gz");
  auto sink = io::make_sink(packed, io::Compression::gzip);
  sink->write("abc\nab\n");
  sink->end_member();
  packed.commit();
  const Job gzip = bench.put(get_file(bench.dir / "rows.gz"), {.format = "txt"});
  bench.store->run_next({});
  EXPECT_EQ(bench.store->find(gzip.id)->total_rows, 2) << "stored compressed, as received";
}

TEST(JobsStore, KeepsPairsAfterRestart) {
  JobBench bench;
  const Job sent = bench.put("id,a,b\n1,abc,de\n2,ab,c\n", {.text_column = "a", .pair_column = "b"});
  bench.open();
  ASSERT_EQ(bench.store->find(sent.id)->request.pair_column, "b");
  EXPECT_TRUE(bench.store->run_next({}));
  EXPECT_EQ(bench.output(sent), "id,a,b,label,score\n1,abc,de,odd,0.005\n2,ab,c,odd,0.004\n");
}

TEST(JobsStore, KeepsLabelsAfterRestart) {
  JobBench bench;
  JobRequest request;
  request.zero_shot = ZeroShot{{"a, b", "c"}, "This is {}.", true};
  const Job sent = bench.put("text\nabc\n", request);
  bench.open();
  const auto kept = bench.store->find(sent.id)->request.zero_shot;
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->labels, request.zero_shot->labels);
  EXPECT_EQ(kept->text_template, "This is {}.");
  EXPECT_TRUE(kept->multi_label);
  request.pair_column = "b";
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { bench.store->begin(request); }), "candidate_labels");
}

TEST(JobsStore, ReportsErrors) {
  JobBench bench;
  const Job no_model = bench.put("text\na\n", {.model = "none"});
  const Job no_column = bench.put("a,b\n1,2\n", {.text_column = "c"});
  const Job long_row = bench.put(std::string(kLongestRow + 1, 'x') + "\n", {.format = "txt"});
  const Job good = bench.put("text\na\n");
  while (bench.store->run_next({})) {
  }
  EXPECT_EQ(bench.store->find(no_model.id)->status, JobStatus::failed);
  EXPECT_HAS(to_json(*bench.store->find(no_model.id))["errors"]["data"][0]["message"].get<std::string>(),
             "none: no such directory");
  EXPECT_EQ(bench.store->find(no_column.id)->status, JobStatus::failed);
  EXPECT_HAS(bench.store->find(long_row.id)->error, "line 1: the record is longer than 16");
  EXPECT_EQ(bench.store->find(good.id)->status, JobStatus::completed);
  EXPECT_EQ(bench.store->list().front().id, good.id) << "newest first";

  put_file(bench.dir / "state/jobs/batch_odd/job.json", "{\"version\":9}");
  put_file(bench.dir / "state/jobs/batch_upload/input.csv.part", "half");
  bench.open();
  EXPECT_HAS(bench.store->find("batch_odd")->error, "version 9");
  EXPECT_FALSE(bench.store->find("batch_upload")) << "an incomplete upload is removed";
  EXPECT_FALSE(bench.store->run_next({}));
}

TEST(JobsStore, RemovesIncompleteUpload) {
  JobBench bench;
  bench.store->begin({})->write("text\na\n");
  EXPECT_TRUE(bench.store->list().empty());
  EXPECT_TRUE(std::filesystem::is_empty(bench.dir / "state/jobs"));
}

TEST(JobsStore, KeepsUnreadableJob) {
  JobBench bench;
  const Job job = bench.put("a\nb\n");
  const auto file = bench.dir / "state" / "jobs" / job.id / "job.json";
  std::filesystem::remove(file);
  std::filesystem::create_symlink("job.json", file);  // a symlink loop
  bench.open();
  ASSERT_TRUE(bench.store->find(job.id).has_value());
  EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::failed);
  EXPECT_TRUE(std::filesystem::is_directory(file.parent_path()));
}

TEST(JobsStore, CancelsWaitingAndRunningJobs) {
  JobBench bench;
  const Job running = bench.put(many_rows(100)), waiting = bench.put(many_rows(100));
  int blocks = 0;
  bench.scorer->on_score = [&] {
    if (++blocks == 3) {
      EXPECT_EQ(bench.store->cancel(waiting.id)->status, JobStatus::cancelled);
      EXPECT_EQ(bench.store->cancel(running.id)->status, JobStatus::cancelling);
    }
  };
  while (bench.store->run_next({})) {
  }
  EXPECT_EQ(blocks, 3);
  EXPECT_EQ(bench.store->find(running.id)->status, JobStatus::cancelled);
  EXPECT_EQ(bench.store->find(running.id)->completed_rows + bench.store->find(running.id)->failed_rows, 20);
  EXPECT_TRUE(bench.store->output(running.id)) << "rows so far";
  EXPECT_FALSE(bench.store->cancel("batch_none"));
}

TEST(JobsStore, JobSurvivesDeviceLoss) {
  JobBench bench;
  const Job job = bench.put(many_rows(100));
  int blocks = 0;
  bench.scorer->on_score = [&] {
    if (++blocks == 3) fail(ErrorCode::device_lost, "the card is gone");
  };
  EXPECT_THROW(bench.store->run_next({}), Error);
  EXPECT_FALSE(bench.store->find(job.id)->ended());
  bench.scorer->on_score = {};
  bench.open();  // restart of the server
  while (bench.store->run_next({})) {
  }
  EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::completed);
  EXPECT_EQ(bench.store->find(job.id)->completed_rows + bench.store->find(job.id)->failed_rows, 100);
}

TEST(JobsStore, RetriesTransientErrorsAndRunsOtherJobsFirst) {
  JobBench whole;
  const Job expected = whole.put(many_rows(100));
  whole.store->run_next({});
  for (const ErrorCode code : {ErrorCode::does_not_fit, ErrorCode::cannot_write})
    for (const int block : {1, 3}) {
      JobBench bench;
      const Job job = bench.put(many_rows(100), {.model = "ladder"}), next = bench.put(many_rows(10));
      int blocks = 0;
      bench.scorer->on_score = [&] {
        if (++blocks == block) fail(code, "for now");
      };
      EXPECT_TRUE(bench.store->run_next({}));
      EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::in_progress);
      EXPECT_EQ(to_json(*bench.store->find(job.id))["waiting"], "for now");
      EXPECT_EQ(bench.store->find(job.id)->model.empty(), code == ErrorCode::does_not_fit && block == 1)
          << "the ladder may switch before the first row";
      EXPECT_TRUE(bench.store->run_next({}));
      EXPECT_EQ(bench.store->find(next.id)->status, JobStatus::completed);
      bench.now += 9;
      EXPECT_FALSE(bench.store->run_next({})) << "not yet";
      bench.now += 1;
      EXPECT_TRUE(bench.store->run_next({}));
      EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::completed);
      EXPECT_EQ(to_json(*bench.store->find(job.id))["waiting"], nullptr);
      EXPECT_EQ(bench.output(job), whole.output(expected));
    }
}

TEST(JobsStore, WaitingJobCanBeCancelledAndResumed) {
  JobBench bench;
  const Job job = bench.put(many_rows(10)), other = bench.put(many_rows(10));
  bench.scorer->on_score = [] { fail(ErrorCode::does_not_fit, "for now"); };
  while (bench.store->run_next({})) {
  }
  EXPECT_EQ(bench.store->cancel(other.id)->status, JobStatus::cancelled);
  bench.scorer->on_score = {};
  bench.open();
  EXPECT_TRUE(bench.store->run_next({})) << "at once";
  EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::completed);
}

TEST(JobsStore, ExpiresFinishedJobs) {
  JobBench bench;
  const Job job = bench.put("abc\n", {.format = "txt"});
  const Job failed = bench.put("abc\n", {.model = "none"});
  while (bench.store->run_next({})) {
  }
  const Job waits = bench.put("abc\n", {.format = "txt"});
  constexpr int64_t kMonth = 30 * 86'400;
  bench.now += kMonth;
  bench.store->expire();
  EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::completed) << "not yet";
  bench.now += 1;
  bench.store->expire();
  const auto folder = bench.dir / ("state/jobs/" + job.id);
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::expired);
    EXPECT_EQ(bench.store->find(failed.id)->status, JobStatus::expired);
    EXPECT_EQ(bench.store->find(waits.id)->status, JobStatus::validating);
    EXPECT_EQ(to_json(*bench.store->find(job.id))["expired_at"], bench.now);
    EXPECT_FALSE(bench.store->output(job.id));
    EXPECT_EQ(files(), 1) << "job.json";
    bench.open();
  }
  bench.now += kMonth + 1;
  bench.store->expire();
  EXPECT_FALSE(bench.store->find(job.id));
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_TRUE(bench.store->find(waits.id)) << "regardless of age";
}

TEST(JobsStore, ListsJobsByPage) {
  JobBench bench;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.insert(ids.begin(), bench.put("a\n", {.format = "txt"}).id);
  const auto listed = [&](size_t most, const std::string& after) {
    std::vector<std::string> names;
    for (const Job& job : bench.store->list(most, after)) names.push_back(job.id);
    return names;
  };
  EXPECT_EQ(listed(SIZE_MAX, ""), ids);
  EXPECT_EQ(listed(2, ""), std::vector(ids.begin(), ids.begin() + 2));
  EXPECT_EQ(listed(2, ids[1]), std::vector(ids.begin() + 2, ids.begin() + 4));
  EXPECT_EQ(listed(2, ids[3]), std::vector(ids.begin() + 4, ids.end()));
  EXPECT_TRUE(listed(2, ids[4]).empty());
}

TEST(JobsStore, ResumesAfterStopWithSameBytes) {
  JobBench whole, stopped;
  const Job expected = whole.put(many_rows(1000));
  whole.store->run_next({});
  const Job job = stopped.put(many_rows(1000), {.model = "ladder"});
  int runs = 0;
  for (bool done = false; !done && runs < 100; ++runs) {
    std::stop_source stop;
    int blocks = 0;
    stopped.scorer->on_score = [&] {
      if (++blocks == 4) stop.request_stop();
    };
    stopped.store->run_next(stop.get_token());
    done = stopped.store->find(job.id)->status == JobStatus::completed;
    EXPECT_EQ(stopped.store->find(job.id)->status, done ? JobStatus::completed : JobStatus::in_progress);
    stopped.open();
  }
  EXPECT_GT(runs, 20);
  EXPECT_EQ(stopped.output(job), whole.output(expected));
  const int64_t tokens = stopped.store->find(job.id)->tokens;
  EXPECT_EQ(tokens, whole.store->find(expected.id)->tokens) << "of all attempts, also after a restart";
  EXPECT_GT(tokens, 900);
  EXPECT_EQ(stopped.store->find(job.id)->completed_rows, whole.store->find(expected.id)->completed_rows);
}

// tests/data/formats_0.1/README.md
TEST(JobsStore, ContinuesJobsOfAnEarlierVersion) {
  namespace fs = std::filesystem;
  JobBench bench, whole;
  bench.store.reset();
  bench.state.reset();
  fs::copy(fs::path(BRIM_SOURCE_DIR) / "tests/data/formats_0.1/server/state", bench.dir / "state",
           fs::copy_options::recursive);
  const fs::path folder = bench.dir / "state/jobs/batch_2", sidecar = folder / "output.csv.part.json";
  nlohmann::json state = nlohmann::json::parse(get_file(sidecar));
  // The state of a run has the path and the time of its input.
  state["run"]["inputs"][0]["path"] = (folder / "input.csv").string();
  put_file(sidecar, state.dump());
  const timespec times[2] = {{1'763'424'000, 0}, {1'763'424'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "input.csv").c_str(), times, 0), 0);
  bench.open();

  const Job first = bench.store->find("batch_1").value();
  EXPECT_EQ(first.status, JobStatus::completed);
  EXPECT_EQ(bench.output(first), "id,text,label,score\n1,abc,odd,0.003\n2,refuse,,\n3,,,\n4,ab,even,0.004\n");
  const Job second = bench.store->find("batch_2").value();
  EXPECT_EQ(second.status, JobStatus::in_progress);
  EXPECT_EQ(second.model, "small");
  int blocks = 0;
  bench.scorer->on_score = [&] { ++blocks; };
  EXPECT_TRUE(bench.store->run_next({}));
  EXPECT_EQ(bench.store->find("batch_2")->status, JobStatus::completed);
  EXPECT_EQ(blocks, 3) << "three of six blocks were written";
  const Job expected = whole.put(get_file(folder / "input.csv"), {.text_column = "text", .all_scores = true});
  whole.store->run_next({});
  EXPECT_EQ(bench.output(second), whole.output(expected));
}

TEST(JobsStore, ResumesAfterKillWithSameBytes) {
  JobBench whole;
  const Job expected = whole.put(many_rows(3000));
  whole.store->run_next({});
  const TempDir dir;
  std::string id;
  {
    const StateDir state(dir / "state");
    const auto store = JobBench::make_store(state, std::make_shared<BlockScorer>());
    const auto upload = store->begin({});
    upload->write(many_rows(3000));
    id = upload->finish().id;
  }
  std::mt19937 random(5);
  int kills = 0;
  for (int status = 1; status != 0 && kills < 500;) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        const StateDir state(dir / "state");
        auto scorer = std::make_shared<BlockScorer>();
        scorer->on_score = [] { ::usleep(200); };
        JobBench::make_store(state, scorer)->run_next({});
      } catch (const std::exception&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    ::usleep(random() % 20'000);
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    kills += status != 0 ? 1 : 0;
    ASSERT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0);
  }
  const StateDir state(dir / "state");
  const auto store = JobBench::make_store(state, std::make_shared<BlockScorer>());
  store->run_next({});
  EXPECT_EQ(store->find(id)->status, JobStatus::completed);
  EXPECT_EQ(get_file(store->output(id).value()), whole.output(expected));
  EXPECT_GT(kills, 5);
}

TEST(JobsStore, WritesTheSameBytesAsScoringAFile) {
  const TempDir dir;
  model::put_golden_model(dir / "model", "bert_sequence");
  const std::shared_ptr<Scorer> scorer = Scorer::open(engine::cpu_options(dir / "model"));
  std::string content = "id,text\n";
  for (int i = 0; i < 95; ++i)
    content += fmt::format("{},w{} w{}{}\n", i, 5 + i % 40, 6 + i, i % 9 == 0 ? " w7 w8" : "");
  const StateDir state(dir / "state");
  const auto store = JobBench::make_store(state, scorer);
  const auto upload = store->begin({.text_column = "text", .all_scores = true});
  upload->write(content);
  const Job job = upload->finish();
  ASSERT_TRUE(store->run_next({}));
  put_file(dir / "rows.csv", content);
  rows::RowReaderOptions reading;
  reading.text_column = "text";
  rows::RowReader reader({(dir / "rows.csv").string()}, reading);
  jobs::ScoredRows scored({jobs::ScoredModel{scorer.get()}}, reader.schema(), rows::OutputFormat::csv, true);
  jobs::ScoreFile file((dir / "scored.csv").string(), {}, {}, reader, scored);
  engine::score_rows(*scorer, reader, [&](engine::ScoredChunk& chunk) { file.write(chunk, jobs::BadRows::null); },
                     nullptr, {});
  file.output().commit();
  EXPECT_EQ(file.counters().at("rows"), 95);
  EXPECT_EQ(get_file(store->output(job.id).value()), get_file(dir / "scored.csv"));
}

TEST(JobsStore, WorkerWaitsForJobs) {
  JobBench bench;
  std::jthread worker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      bench.store->wait_for_work(stop);
      bench.store->run_next(stop);
    }
  });
  std::vector<Job> sent;
  for (int i = 0; i < 5; ++i) sent.push_back(bench.put(many_rows(50)));
  for (const Job& job : sent) wait_until([&] { return bench.store->find(job.id)->ended(); });
  for (const Job& job : sent) EXPECT_EQ(bench.store->find(job.id)->status, JobStatus::completed);
}

TEST(JobsStore, ScoresWithVader) {
  JobBench bench;
  const std::shared_ptr<Scorer> vader = Scorer::open({.model = "vader"});
  bench.store = JobBench::make_store(*bench.state, vader);
  const Job job = bench.put("text\nwhat a great day\nawful\n", {.all_scores = true});
  bench.store->run_next({});
  EXPECT_HAS(bench.output(job), "what a great day,positive,");
  EXPECT_HAS(bench.output(job), "text,label,score,neg,neu,pos,compound");
}

}  // namespace
}  // namespace brim::serve
