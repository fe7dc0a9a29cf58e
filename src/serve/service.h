// SPDX-License-Identifier: Apache-2.0
// What requests mean: a table of routes, the shapes of their bodies and answers, and the way of a text from an I/O
// thread to a scorer and back. Texts are tokenized where they come in; results come back in one wake-up per I/O thread
// and batch.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "serve/answers.h"
#include "serve/auth.h"
#include "serve/blocking_work.h"
#include "serve/dashboard.h"
#include "serve/http_names.h"
#include "serve/ladder.h"
#include "serve/metrics.h"
#include "serve/progress_watch.h"
#include "serve/row_scorer.h"
#include "serve/workers.h"

namespace brim::serve {

struct ServedModel {
  std::string name;                // what requests call it
  std::string id;                  // what the user gave: a directory, a repository's name
  std::string revision;            // of its files, in 8 digits
  std::shared_ptr<Scorer> scorer;  // closed with the service, so that nothing comes back to one that has ended
  std::optional<Pooling> pooling = {};
  double keep_alive_seconds = -1;  // idle for so long it leaves the device; negative: it stays
  // A tagger whose head its scorer has too, as it was then: name and revision; empty: none.
  std::string tagger = {}, tagger_revision = {};
  std::string fault = {};  // why it could not be opened, where there is no scorer
};
using Served = std::shared_ptr<const ServedModel>;

struct ServiceOptions {
  std::vector<ServedModel> models;  // the first answers requests that name none
  std::vector<std::shared_ptr<Ladder>>
      ladders;  // of these models; the first answers classifying requests that name none
  std::vector<QueueRules> queues;
  std::filesystem::path state_dir;  // of queues and jobs; empty: there are none
  bool state_needed = false;        // else a directory that another server has means no jobs
  std::filesystem::path jobs_root;  // files below it may be scored where they lie; empty: none may
  double keep_jobs_seconds = JobsStore::Options().keep_seconds;
  JobQuota::Limits job_limits;
  ApiKeys keys;  // none: everybody may do everything
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> cors_origins;  // whose pages may ask and read answers; "*": any
  double queue_seconds = 1;               // a request that would wait longer, by prediction, is refused
  size_t texts_per_request = 1024;
  size_t text_bytes = 1 << 20;
  size_t payload_bytes = 16 << 20;  // of a request's texts, each as often as it is read
  bool truncates = true;            // texts that are too long, where a request does not say
  bool tags_whole_texts = true;     // taggers read those in windows instead
  bool merges_windows = false;      // classifiers read them in windows too, where a request does not say
  size_t requests = 0;              // at one time; one more with texts is refused; 0: any number
  // No encoder was on the device for so long: it is closed until a text wants it. Negative: never.
  double release_device_seconds = -1;
  double load_retry_seconds = 10;       // a model that could not be loaded is tried again
  std::function<int64_t()> unix_clock;  // of ladders' schedules, for tests; none: the system's
  // A model from its files as they are now, in the queue of one that is there (or null), which may have to leave the
  // device for it unless it stays (then does_not_fit is thrown); what names those files, the
  // name of a tagger that shares its encoder as both are now (or nothing), and the keys; none: they stay as they are.
  std::function<ServedModel(const std::string& name, const Scorer* beside, bool beside_stays)> reopen;
  std::function<std::string(const std::string& name)> revision_of;
  std::function<std::string(const std::string& name)> tagger_of;
  std::function<ApiKeys()> read_keys;
  std::function<void()> read_certificate;  // of TLS, from its files; none: there is no TLS
  std::function<void(std::string_view line)> access_log;
};

// What /health warns of. Its kind stays while it lasts, whatever numbers its text has; empty: the text. One that does
// not degrade says that the card works hard, which it should.
struct Warning {
  std::string kind, text;
  bool degrades = true;
};
std::vector<std::string> sentences(const std::vector<Warning>& warnings);

// The card's readings, as /health and /metrics show them.
struct CardReadings {
  std::string health_json = "null";
  std::string metrics_text;
  bool healthy = true, computes = false;  // computes: a model of this server runs there
  bool lost = false;                      // that card, by its driver, and a model is on it
  bool gone = false;                      // and has been for some seconds
  std::vector<Warning> warnings;
};

class Service final : public Handler, public QueueScorer {
 public:
  explicit Service(ServiceOptions options);
  ~Service() override;

  // Before the server starts.
  void attach(HttpServer& server);
  // From now on texts are refused; what was taken is finished.
  void drain();
  // The same, but what open connections still send is answered until refuse_texts().
  void begin_drain();
  void refuse_texts() { refusing_ = true; }
  void refuse_all();  // whose texts wait; what else is under way will be cut
  bool draining() const { return draining_; }
  bool device_lost() const;                            // of one of its models
  bool card_gone() const { return card().gone; }       // for some seconds, by its driver, with a model on it
  bool drain_wanted() const { return drain_wanted_; }  // a client said so
  void request_reload();                               // of keys, and of models whose files changed
  void set_card(CardReadings readings);                // any thread
  std::vector<Served> loaded() const;                  // models that can answer now
  MemoryPlan planned() const;                          // of all of them at this moment, what they share once
  // Figures of this moment for the dashboard, of the last seconds where they are rates. Every second, one thread.
  void sample(std::optional<int64_t> held_bytes);
  std::vector<std::string> warnings() const;  // as /health has them
  // What the ladders' rungs lose; until then none is chosen because of load. One thread; where it goes on, until it is
  // stopped: whenever a rung's model has come or is another.
  void measure_gates(const std::stop_token& stop, bool goes_on);
  // Models come to the device and leave it, by keep_alive, schedules and pins; see model_maintenance.cc. Every second,
  // one thread.
  void maintain_models();
  size_t texts_waiting() const { return outstanding_; }

  static std::vector<std::pair<std::string, std::string>> route_names();  // method and path, as Route has it

  std::optional<Response> admit(Exchange& exchange) override;
  void handle(Exchange& exchange) override;
  void gone(Exchange& exchange) noexcept override;
  void take(Exchange& exchange, std::string_view bytes) override;
  void sent(Exchange& exchange) override;
  std::optional<uint64_t> body_limit(const RequestHead& head) const override;
  Response refused(int status, const std::string& problem) override;
  void answered(Exchange& exchange, int status, size_t bytes) noexcept override;

 private:
  struct Call;
  struct HeldBody;
  class Inbox;
  class Stream;
  class JobUpload;
  class JobOutput;
  class EventStream;
  class RowStream;
  using Write = std::function<void(std::string& out, Call& call)>;

  struct Route {
    const char* method;
    const char* path;  // {a name} is any one part of it, * at its end any number
    Scope scope;
    ErrorShape shape;
    bool scores;  // texts, which a draining server refuses
    void (Service::*handle)(Call&);
    void (Service::*begin)(Call&) = nullptr;  // set: the body is of any type and comes piece by piece to call.stream
  };
  static const std::vector<Route>& routes();

  // What every scoring route takes, from its body, its head or its query.
  struct RequestOptions {
    int model = 0;
    Served served;  // that model, as it is now
    const char* reason = "default";
    bool bulk = false, keep_end = false, raw = false, null_errors = false;
    std::optional<LongText> long_text;
    double timeout_ms = 0;  // 0: none
    size_t top_k = SIZE_MAX;
    std::string instead_of;                  // the rung that a ladder's rule named, where it cannot answer
    std::optional<Aggregation> aggregation;  // of taggers
    int32_t overlap = -1;                    // of a long text's windows, in tokens
    bool entities = false;                   // of a classifier that has a tagger's head too
    bool may_wait = false;                   // for a model that is being replaced
  };
  using Kinds = std::initializer_list<ModelKind>;
  // A request that names no model gets a ladder's choice, or the first of these kinds.
  RequestOptions request_options(Call& call, const nlohmann::json& body, Kinds kinds);
  void choose_model(RequestOptions& options, const std::string& model, const std::string& source, Kinds kinds);
  int find_model(const std::string& name) const;
  int first_model(Kinds kinds, bool loaded = false) const;  // -1: none
  // Throws 503 where it is not loaded, ModelIsComing while it is being replaced: on other than I/O threads that is
  // waited for instead.
  Served model_at(int model, bool may_wait = false) const;
  void require_kind(int model, Kinds kinds, const char* what) const;

  struct Text {
    int model;
    std::string_view text;
    std::optional<std::string_view> pair = {};
    std::vector<int32_t> ids = {};  // in place of the text
  };
  // Answers later, with what `write` makes of the predictions.
  void score(Call& call, const RequestOptions& options, const std::vector<Text>& texts, Write write);
  void score(Call& call, const RequestOptions& options, const std::vector<std::string_view>& texts, Write write);
  void submit_on_helper(const Served& served, const std::vector<Request>& requests, Inbox& inbox);
  // Answers later, with what `work` gives on a blocking-work thread.
  struct BlockingAnswer {
    int status = 200;
    std::string body, fields = {};
  };
  void at(Workers& workers, Call& call, std::function<BlockingAnswer()> work);
  // `work` there, then on the call's own thread its refusal or `then`; neither, where its client has gone meanwhile.
  void beside(Workers& workers, Call& call, std::function<std::optional<Refusal>()> work,
              std::function<void(Call&)> then);
  Refusal refusal_of_blocking_work(const Error& error) const;
  void stream_ended(Call& call);
  void take_answers(int thread, std::vector<Answer>& answers);
  void finish(Call& call);
  void refuse(Call& call, const Refusal& refusal);
  void count_refusal(int thread, int status);
  void run_route(Call& call);
  // More of a body is read by helpers, more texts tokenized (about a millisecond each), so that other connections of
  // its I/O thread do not wait.
  static constexpr size_t kHelperBytes = 32 << 10;
  static std::shared_ptr<HeldBody> hold_body(Call& call);
  void parse_on_helper(Call& call);           // then its route runs
  static nlohmann::json body_of(Call& call);  // throws a Refusal
  void hold(Call& call, int model);           // until that model was replaced
  void go_on(int thread, uint32_t slot);
  void run_held(Call& call);
  // A held call, on its thread again; null where its client has gone meanwhile, which ends it.
  Call* take_back(int thread, uint32_t slot);
  static uint64_t client_of(const Call& call);
  void refuse_if_full(const Call& call) const;
  static Refusal overloaded(double waiting, double limit);  // in seconds
  Refusal refusal_of(const Call& call, const Prediction& prediction) const;
  void answer(Call& call, std::string body, const char* content_type = "application/json");
  void release(Call& call) noexcept;
  // Where a request's time went, in seconds.
  static std::array<double, kStages> stages_of(const Call& call, int64_t written_ns);
  std::string compute_fields(const Call& call) const;
  // Counts a request that is over, answered or not, and writes its line of the access log.
  void note_end(const Exchange& exchange, const Call* call, int status, size_t bytes) noexcept;
  // An answer that has begun and cannot be finished: its status is gone, and it ends where it is.
  void break_off(Call& call, const Refusal& refusal);

  // The routes, by the dialect they speak. tei.cc
  void predict(Call& call);
  void embed(Call& call);
  void rerank(Call& call);
  void similarity(Call& call);
  void tokenize(Call& call);
  void by_task(Call& call);
  void info(Call& call);
  void not_here(Call& call);
  void openapi(Call& call);  // openapi.cc
  // token_routes.cc
  void decode(Call& call);
  void embed_all(Call& call);
  // openai.cc
  void embeddings(Call& call);
  void list_models(Call& call);
  void show_model(Call& call);
  nlohmann::ordered_json described_models() const;
  // brim_routes.cc
  void classify(Call& call);
  void ner(Call& call);
  void analyze(Call& call);
  void hugging_face(Call& call);
  // queue_routes.cc
  void queue_call(Call& call);
  std::vector<QueueScore> score(const QueueRules& rules, std::span<const QueueItem> items) override;
  // bulk.cc: what queues, jobs and streams of rows have in common, off the I/O threads
  RequestOptions choose_for_bulk(const std::string& model, const std::string& source);
  ScoreTexts bulk_scorer(const RequestOptions& options);
  void count_bulk(const RequestOptions& options, size_t texts, int64_t tokens);
  // job_routes.cc
  static JobRequest job_request(const Call& call);  // of the query; throws usage
  void begin_job(Call& call);
  void list_jobs(Call& call);
  void job_call(Call& call);
  JobModel job_model(const Job& job);
  // score_route.cc
  void begin_score(Call& call);
  void end_row_streams();
  // admin_routes.cc
  void admin(Call& call);
  void pin_ladder(Call& call, std::string_view path);
  void trace(Call& call);
  std::string open_model(size_t place);  // empty: it is there; else what is wrong
  Served reopened(size_t place, const Scorer* beside, bool stays);
  std::string replace_model(size_t place);  // where there is no room for both
  void close_model(size_t place);
  const Scorer* queue_owner(size_t place, Served& held) const;  // for a model that comes to that place
  void retire(Served old);
  void free_retired();
  void report_fault(const std::string& model, const std::string& fault);
  std::vector<std::string> reload();
  // operations.cc
  void ping(Call& call);
  void health(Call& call);
  void live(Call& call);
  void ready(Call& call);
  void metrics(Call& call);
  struct HealthView {
    const char* status;
    bool dead;
    std::vector<Warning> warnings;
    std::vector<LadderView> ladders;
    double wait_seconds = 0;
    int64_t texts = 0, tokens = 0;
  };
  CardReadings card() const;
  HealthView health_view(const CardReadings& card) const;
  // snapshot.cc
  void dashboard(Call& call);
  void snapshot(Call& call);
  void history(Call& call);
  void events(Call& call);
  void measure_gates_of(Ladder& ladder, const std::stop_token& stop);
  void measure_again(const std::string& model);  // ladders that have it
  void forget_gates(const std::string& model);   // once the one before can be measured no more; then they are
  void deliver(int thread, const std::string& event, bool snapshot);
  void post_events(const std::string& event, bool snapshot);
  DashboardSnapshot figures(std::optional<int64_t> held_bytes, const HealthView& health, const CardReadings& card);

  std::vector<std::string_view> texts_of(const nlohmann::json& body, const char* key) const;
  // The same with token ids among them: a text, a list of ids, or a list of either.
  std::vector<Text> texts_or_ids(const nlohmann::json& body, const char* key, int model) const;
  bool stuck() const;  // texts wait and nothing was done for long, or a batch runs for far too long
  double queue_seconds(int model) const;
  void append_labels(std::string& out, const Call& call, size_t i, size_t most) const;  // or null, after an error

  const ServiceOptions options_;  // its models have names, but no scorers: those are in slots_
  struct Slot {
    mutable std::mutex mutex;
    Served served;  // null: not loaded
    // Of one that was never opened what it was given as, until it is.
    std::atomic<ModelKind> kind{ModelKind::classifier};
    bool opened = false;
    std::string state = "resident", fault;
    // What it had computed when it was last seen at work, for keep_alive; it is on its way to the device or off it.
    int64_t batches = 0, used_ns = 0;
    bool moving = false;
    int64_t failed_ns = 0;  // above 0: it could not be loaded then, and is tried again
    // It left the device for its successor, which is not there yet; requests that wait for it, by thread and slot.
    bool replacing = false;
    mutable std::condition_variable replaced;
    std::vector<std::pair<int, uint32_t>> held;
    std::string state_now() const;
  };
  std::vector<std::unique_ptr<Slot>> slots_;
  // model_maintenance.cc
  int64_t unix_now() const;
  void bring(Slot& slot, size_t place);
  void park_if_idle(Slot& slot, size_t place);
  void close_idle_device();
  void give_back_heap();
  void note_loaded(size_t place);
  void note_not_loaded(size_t place, const std::string& why);
  // Where the error is not a text's: its model was not on the device and could not come.
  bool note_if_not_loaded(const ServedModel& model, const Error& error);
  // Used by the maintenance thread only. No encoder is on the device since then; negative: it was closed for that.
  int64_t unused_since_ns_ = 0;
  bool idle_ = false;                                         // at its last look
  int64_t least_held_ = std::numeric_limits<int64_t>::max();  // resident since the heap was last given back
  const int64_t started_ns_, started_unix_;
  HttpServer* server_ = nullptr;
  std::vector<std::unique_ptr<Inbox>> inboxes_;  // by thread
  std::unique_ptr<Metrics> metrics_;
  std::atomic<bool> draining_{false}, refusing_{false}, cutting_{false};
  std::atomic<size_t> outstanding_{0}, at_work_{0};  // texts; requests with texts
  mutable ProgressWatch progress_;
  std::atomic<uint64_t> next_id_{0};
  std::string id_prefix_;
  std::unique_ptr<BlockingWork> blocking_work_;  // where there is a state directory
  std::mutex rows_mutex_;
  std::condition_variable rows_ended_;
  int row_streams_ = 0;  // threads of /score
  mutable std::mutex keys_mutex_;
  std::shared_ptr<const ApiKeys> keys_;
  std::atomic<bool> drain_wanted_{false};
  mutable std::mutex card_mutex_;  // this and the next two
  CardReadings card_;
  std::map<std::string, std::vector<std::string>> gate_faults_;  // by ladder
  std::mutex gates_mutex_;                                       // this and the next three
  std::condition_variable_any gates_changed_;
  std::vector<Ladder*> unmeasured_;
  std::stop_source measuring_{std::nostopstate};
  // The dashboard: what was counted a while ago, and what it shows now.
  struct Sample {
    int64_t ns = 0;
    uint64_t requests = 0;
    Counts counts;
    ScorerWork work;                 // of all models
    std::vector<uint64_t> texts;     // by model
    Histogram requests_by_duration;  // of those with texts
  };
  std::deque<Sample> recent_, minutes_;  // the sampling thread's, as are these
  std::vector<std::string> active_rungs_;
  std::set<std::string> warned_;  // kinds
  std::deque<DashboardSnapshot::Switch> switches_;
  DashboardHistory history_;
  mutable std::mutex snapshot_mutex_;
  std::string snapshot_ = "null";
  std::optional<double> busy_, mfu_;
  std::optional<int64_t> held_bytes_;
  std::vector<std::array<uint64_t, kReasonCount>> ladder_switches_;  // by the reason that came
  std::atomic<int> subscribers_{0};
  std::vector<std::set<EventStream*>> events_;  // by thread, and that thread's alone
  std::atomic<bool> tracing_{false};
  std::mutex retired_mutex_;
  std::vector<Served> retired_;  // replaced or unloaded, and requests still use them
  // Last: what they work on is still there when they end. Helpers tokenize what would keep an I/O thread.
  Workers admin_{1}, tracer_{1}, helpers_;
};

// A request whose body or answer comes in pieces. Its thread's alone; what other threads do for it holds it, and what
// comes back to its thread finds it by a weak pointer, or not at all.
class Service::Stream {
 public:
  explicit Stream(Call& call) : call_(&call) {}
  virtual ~Stream() = default;
  virtual void take(std::string_view) {}  // of the body
  virtual void ended() {}                 // the body
  virtual void sent() {}                  // the client has read what there was
  void leave() { call_ = nullptr; }

 protected:
  Call* call_;  // null: the exchange is over
};

// A body on its way to another thread. Whoever takes it first has it: that thread, or the client's leaving, so that
// bodies nobody waits for are not held until their turn comes.
struct Service::HeldBody {
  std::string text;
  std::atomic<bool> taken{false};
  bool take() { return !taken.exchange(true); }
};

// One request on its way through the service. Its thread's alone.
struct Service::Call {
  Exchange* exchange = nullptr;
  int thread = 0;
  const Route* route = nullptr;
  std::string key_name;  // empty: none was needed
  std::string id;
  int model = -1;
  Served served, other;  // its models, which stay while it does; `other`: a second one's texts
  const char* reason = nullptr;
  std::string instead_of;  // as RequestOptions has it
  bool ended = false;      // the exchange is over
  bool done = false;       // its answer was given to the exchange
  bool counted = false;    // among those at work
  int broken = 0;          // its answer was broken off: the status that it would have had
  // of texts
  uint32_t slot = 0;
  size_t left = 0;  // answers to come
  std::vector<Prediction> predictions;
  std::stop_source stop{std::nostopstate};
  bool bulk = false, null_errors = false;
  double timeout_ms = 0;
  size_t characters = 0, tokens = 0;
  size_t rows = 0;  // of a stream that were scored
  int passes = 0;   // over each text, where an answer needs two models' results
  int64_t parsed_ns = 0, finished_ns = 0;
  int64_t submitted_ns = 0;  // 0: by a helper
  Write write;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<HeldBody> held_body;     // while another thread is to read it
  std::shared_ptr<nlohmann::json> parsed;  // its body, where a helper read it
};

}  // namespace brim::serve
