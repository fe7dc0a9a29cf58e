// SPDX-License-Identifier: Apache-2.0
// Writes the files of `server` in this folder with the sources of commit ff0af82; see make.sh. Not part of any build.
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <optional>

#include "base/timeline.h"
#include "jobs/doctor_trace.h"
#include "jobs/shards.h"
#include "serve/jobs_store.h"
#include "serve/queues.h"
// Definitions that would need the engine.
namespace brim {
Scorer::~Scorer() = default;
std::string Scorer::pci_bus_id() const { return ""; }
ClientWait Scorer::wait_of(uint64_t, int64_t, bool, std::optional<std::chrono::steady_clock::time_point>) const {
  return {};
}
ScorerWork Scorer::work() const { return {}; }
std::string Scorer::decode(std::span<const int32_t>, bool) const { return ""; }
Residence Scorer::residence() const { return {}; }
void Scorer::park() {}
void Scorer::load_weights() {}
void Scorer::keep_loaded(bool) {}
bool Scorer::close_device() { return false; }
}  // namespace brim

using namespace brim;
using namespace brim::serve;
namespace fs = std::filesystem;

class LengthScorer : public QueueScorer {
 public:
  std::vector<QueueScore> score(const QueueRules&, std::span<const QueueItem> items) override {
    std::vector<QueueScore> all;
    for (const QueueItem& item : items) {
      QueueScore score;
      score.model = item.source.empty() ? "small" : "large";
      score.reason = item.source.empty() ? "default" : "source";
      score.label = item.text.size() % 2 == 0 ? "positive" : "negative";
      score.score = 0.5;
      score.compound = static_cast<float>(item.text.size()) / 100;
      if (item.text.starts_with("bad")) score.error = "not a text";
      all.push_back(score);
    }
    return all;
  }
};
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
    for (size_t i = 0; i < texts.size(); ++i) {
      if (stop.stop_requested() || texts[i] == "refuse") p.errors.emplace_back(i, Error(ErrorCode::bad_data, "no"));
      const float score = static_cast<float>(i + texts[i].size()) / 1000;
      p.labels.push_back(static_cast<int32_t>(texts[i].size() % 2));
      p.label_scores.push_back(score);
      p.scores.insert(p.scores.end(), {score, 1 - score});
    }
    return p;
  }
  Predictions score_pairs(std::span<const std::string_view> texts, std::span<const std::string_view>,
                          std::stop_token stop, const std::function<void(size_t)>& p) override {
    return score(texts, stop, p);
  }
  std::function<void()> on_score;

 private:
  std::vector<std::string> labels_ = {"even", "odd"};
};

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("usage: make_server FOLDER");
  const fs::path out = argv[1];
  fs::create_directories(out);
  {  // a queue: two waiting items, a flush, an answer under a key
    QueueRules rules;
    rules.name = "news";
    rules.flush_size = 3;
    LengthScorer scorer;
    int64_t now = 1'000'000;
    Queue queue(rules, out / "news.journal", scorer, [&] { return now; });
    const auto put = [&](const std::string& text, const std::string& key, const QueueJson& item,
                         const char* source = "") {
      QueueJson request = {{"text", text}, {"item", item}};
      if (*source) request["source"] = source;
      return queue.score_or_queue(request, key);
    };
    put("aa", "", {{"z", 1}, {"id", "x"}});
    now += 500;
    put("bad one", "", QueueJson::object());
    now += 500;
    std::cout << text_of(put("ccc", "key-1", {{"n", 3}}, "sec").body) << "\n";
    now += 500;
    put("waits", "key-2", {{"id", 7}});
    put("Größe", "", {{"id", "8"}});
  }
  {  // jobs: one completed, one interrupted
    const fs::path dir = out / "state";
    StateDir state(dir);
    const auto scorer = std::make_shared<BlockScorer>();
    const auto models = [&](const Job& job) {
      const std::string& name = job.model.empty() ? job.request.model : job.model;
      const std::string chosen = name.empty() || name == "ladder" ? "small" : name;
      const ScoreTexts score = [&](Texts texts, Texts pairs, std::stop_token stop) {
        return score_texts(*scorer, texts, pairs, std::move(stop));
      };
      return JobModel{chosen, "weights of " + chosen, {}, scorer, score, "schedule", "large"};
    };
    int id = 0;
    JobsStore::Options options;
    options.new_id = [&] { return "batch_" + std::to_string(++id); };
    options.block_rows = 10;
    options.checkpoint_seconds = 0;
    JobsStore store(
        state, models, [] { return int64_t{1000}; }, options);
    const auto put = [&](const std::string& content, const JobRequest& request) {
      const auto upload = store.begin(request);
      upload->write(content);
      return upload->finish();
    };
    put("id,text\n1,abc\n2,refuse\n3\n4,ab\n", {.model = "ladder", .text_column = "text"});
    store.run_next({});
    std::string rows = "id,text\n";
    for (int i = 0; i < 60; ++i)
      rows += i % 23 == 5 ? std::to_string(i) + "\n"
                          : std::to_string(i) + "," + std::string(static_cast<size_t>(1 + i * 7 % 30), 'x') + "\n";
    const Job job = put(rows, {.text_column = "text", .all_scores = true});
    std::stop_source stop;
    const fs::path input = dir / "jobs" / job.id / "input.csv";
    const timespec times[2] = {{1'763'424'000, 0}, {1'763'424'000, 0}};
    ::utimensat(AT_FDCWD, input.c_str(), times, 0);
    int calls = 0;
    scorer->on_score = [&] {
      if (++calls == 4) stop.request_stop();
    };
    store.run_next(stop.get_token());
  }
  {  // a job of two shards, the first one is finished
    const fs::path input = out / "shards/rows.csv";
    fs::create_directories(input.parent_path());
    std::ofstream(input) << "id,text\n1,abc\n2,\"d\ne\"\n3,f\n4,ghi\n5,j\n";
    rows::RowReaderOptions reading;
    reading.text_column = "text";
    const jobs::ShardFacts facts{{{input.string(), jobs::input_signature(input.string())}},
                                 "weights",
                                 {{"output-format", "csv"}, {"text-column", "text"}},
                                 2};
    const jobs::ShardJob job = jobs::plan_job(out / "shards/job", "vader", facts, reading, "csv");
    jobs::ShardPart part(job, 0);
    std::ofstream(part.draft()) << "id,text,label\n1,abc,odd\n2,\"d\ne\",odd\n";
    part.publish(2, 0);
  }
  {  // the trace of a run
    jobs::TracedRun r;
    r.verb = "score";
    r.model = "m";
    r.device = "NVIDIA";
    r.precision = "bf16";
    r.on_card = true;
    r.inputs = {"in.csv"};
    r.output = "out.csv";
    r.cores = 8;
    r.machine_cores = 8;
    r.token_budget = 4096;
    r.max_length = 512;
    r.staging_depth = 3;
    r.free_token_budget = 4096;
    r.plan_tokens_per_second = r.free_tokens_per_second = 1e6;
    r.limit_bytes = r.free_limit_bytes = int64_t{1} << 30;
    r.planned_bytes = 900 << 20;
    r.load_seconds = 0.25;
    r.stats.tokenizers = 2;
    r.stats.batches = 10;
    r.stats.tokens = 40960;
    r.stats.rows = 1000;
    r.card.sm_clock_mhz = 1500;
    r.card.max_sm_clock_mhz = 1980;
    r.card.power_w = 300;
    r.card.throttle = {"sw_power_cap"};
    r.others = "other processes used 1.3 of 2 cores (cc1plus 0.9)";
    Timeline::clear();
    Timeline::enable(true);
    Timeline::name_thread("compute");
    auto* const device = Timeline::add_lane("device");
    for (int i = 0; i < 10; ++i) {
      Timeline::record(Zone::pack, i * 100'000'000LL, i * 100'000'000LL + 60'000'000, 4096);
      Timeline::record(device, Zone::device_busy, i * 100'000'000LL + 60'000'000, i * 100'000'000LL + 100'000'000,
                       4096);
    }
    Timeline::enable(false);
    std::ofstream(out / "run.json") << Timeline::chrome_trace(to_json(r));
  }
} catch (const std::exception& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
