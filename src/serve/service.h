// SPDX-License-Identifier: Apache-2.0
// HTTP routes: request parsing, dispatch to scorers, response formatting. I/O threads parse and tokenize; results
// return with one wake-up per I/O thread and batch.
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
  std::string name;                // name used in requests
  std::string id;                  // as given by the user: a directory or repository name
  std::string revision;            // fingerprint of its files, 8 digits
  std::shared_ptr<Scorer> scorer;  // closed before the service is destroyed, so that no result arrives later
  std::optional<Pooling> pooling = {};
  double keep_alive_seconds = -1;  // idle time before it leaves the device; negative: never
  // Name and revision of the tagger whose head is part of `scorer`; empty: none.
  std::string tagger = {}, tagger_revision = {};
  std::string fault = {};  // load error if `scorer` is null
};
using Served = std::shared_ptr<const ServedModel>;

struct ServiceOptions {
  std::vector<ServedModel> models;               // the first one is the default
  std::vector<std::shared_ptr<Ladder>> ladders;  // use these models; the first one is the default for classification
  std::vector<QueueRules> queues;
  std::filesystem::path state_dir;  // directory for queues and jobs; empty: both disabled
  bool state_needed = false;        // false: run without jobs if another server uses the directory
  std::filesystem::path jobs_root;  // clients may submit files below it by path; empty: none
  double keep_jobs_seconds = JobsStore::Options().keep_seconds;
  JobQuota::Limits job_limits;
  ApiKeys keys;  // empty: no authentication
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> cors_origins;  // origins whose pages may send requests and read responses; "*": any
  double queue_seconds = 1;               // reject requests with a longer predicted wait
  size_t texts_per_request = 1024;
  size_t text_bytes = 1 << 20;
  size_t payload_bytes = 16 << 20;  // limit on a request's texts, counting a text once per use
  bool truncates = true;            // default for texts that are too long
  bool tags_whole_texts = true;     // taggers split texts that are too long into windows instead
  bool merges_windows = false;      // default for classifiers: split into windows and merge the scores
  size_t requests = 0;              // maximum number of concurrent scoring requests; 0: unlimited
  // Close the device after this time without an encoder on it; it reopens on demand. Negative: never.
  double release_device_seconds = -1;
  double load_retry_seconds = 10;       // retry interval for models that failed to load
  std::function<int64_t()> unix_clock;  // clock of the ladders' schedules, for tests; empty: the system clock
  // Callbacks for reloading; empty: not supported. `reopen` loads a model from its current files, sharing the device
  // queue of `peer` (may be null). `peer` may have to leave the device for it unless `peer_stays`; then does_not_fit is
  // thrown. `revision_of` is the current fingerprint of a model's files, `tagger_of` the tagger that now shares its
  // encoder (or "").
  std::function<ServedModel(const std::string& name, const Scorer* peer, bool peer_stays)> reopen;
  std::function<std::string(const std::string& name)> revision_of;
  std::function<std::string(const std::string& name)> tagger_of;
  std::function<ApiKeys()> read_keys;
  std::function<void()> read_certificate;  // reloads the TLS certificate; empty: no TLS
  std::function<void(std::string_view line)> access_log;
};

// A warning of /health. `kind` identifies it while its text changes; empty: the text itself. Warnings about high GPU
// utilisation do not degrade the health status.
struct Warning {
  std::string kind, text;
  bool degrades = true;
};
std::vector<std::string> sentences(const std::vector<Warning>& warnings);

// GPU readings as shown by /health and /metrics.
struct GpuReadings {
  std::string health_json = "null";
  std::string metrics_text;
  bool healthy = true, computes = false;  // computes: a model of this server runs on it
  bool lost = false;                      // the driver lost a GPU that holds a model
  bool gone = false;                      // `lost` for some seconds
  std::vector<Warning> warnings;
};

class Service final : public Handler, public QueueScorer {
 public:
  explicit Service(ServiceOptions options);
  ~Service() override;

  // Call before the server starts.
  void attach(HttpServer& server);
  // Rejects new texts; accepted ones are finished.
  void drain();
  // As drain(), but requests on open connections are answered until refuse_texts().
  void begin_drain();
  void refuse_texts() { refusing_ = true; }
  void refuse_all();  // ends waiting requests with 503; other connections will be cut
  bool draining() const { return draining_; }
  bool device_lost() const;
  bool gpu_gone() const { return gpu_readings().gone; }  // see GpuReadings::gone
  bool drain_wanted() const { return drain_wanted_; }    // requested by a client
  void request_reload();                                 // keys, and models with changed files
  void set_gpu(GpuReadings readings);                    // thread-safe
  std::vector<Served> loaded() const;                    // models that can answer now
  MemoryPlan planned() const;                            // all loaded models together, shared memory counted once
  // Updates the dashboard's figures; call every second, from one thread.
  void sample(std::optional<int64_t> held_bytes);
  std::vector<std::string> warnings() const;  // as reported by /health
  // Measures what the ladders' rungs lose in accuracy; load does not select a rung before that. One thread. With
  // `repeat`, repeats for every loaded or replaced model until stopped.
  void measure_gates(const std::stop_token& stop, bool repeat);
  // Loads and parks models according to keep_alive, schedules and pins; call every second, from one thread.
  void maintain_models();
  size_t texts_waiting() const { return outstanding_; }

  static std::vector<std::pair<std::string, std::string>> route_names();  // pairs of method and path

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
    const char* path;  // {name} matches one path segment, a final * the rest
    Scope scope;
    ErrorShape shape;
    bool scores;  // takes texts, so a draining server rejects it
    void (Service::*handle)(Call&);
    void (Service::*begin)(Call&) = nullptr;  // if set, the body has any type and is streamed to call.stream
  };
  static const std::vector<Route>& routes();

  // Options common to all scoring routes, from body, headers or query.
  struct RequestOptions {
    int model = 0;
    Served served;  // the model when the request was parsed
    const char* reason = "default";
    bool bulk = false, keep_end = false, raw = false, null_errors = false;
    std::optional<LongText> long_text;
    double timeout_ms = 0;  // 0: none
    size_t top_k = SIZE_MAX;
    std::string instead_of;                  // the rung selected by the rules, if it cannot answer
    std::optional<Aggregation> aggregation;  // for taggers
    int32_t overlap = -1;                    // tokens shared by neighbouring windows
    bool entities = false;                   // classifiers with a tagger's head: also return entities
    bool may_wait = false;                   // block while the model is being replaced
  };
  using Kinds = std::initializer_list<ModelKind>;
  // Without a model name, the ladder chooses, or the first model of these kinds answers.
  RequestOptions request_options(Call& call, const nlohmann::json& body, Kinds kinds);
  void choose_model(RequestOptions& options, const std::string& model, const std::string& source, Kinds kinds);
  int find_model(const std::string& name) const;
  int index_of(std::string_view name) const;                // index of a model; -1: none
  int first_model(Kinds kinds, bool loaded = false) const;  // -1: none
  // Throws 503 if the model is not loaded and ModelBeingReplaced during a replacement. With `may_wait`, which is not
  // for I/O threads, blocks until the replacement is done.
  Served model_at(int model, bool may_wait = false) const;
  void require_kind(int model, Kinds kinds, const char* what) const;

  struct Text {
    int model;
    std::string_view text;
    std::optional<std::string_view> pair = {};
    std::vector<int32_t> ids = {};  // used instead of the text
  };
  // Responds later with the output of `write`, which receives the predictions.
  void score(Call& call, const RequestOptions& options, const std::vector<Text>& texts, Write write);
  void score(Call& call, const RequestOptions& options, const std::vector<std::string_view>& texts, Write write);
  void submit_on_helper(const Served& served, const std::vector<Request>& requests, Inbox& inbox);
  // Result of work that ran off the I/O thread.
  struct BlockingAnswer {
    int status = 200;
    std::string body = {}, fields = {};
    // For the access log.
    std::string model = {};
    size_t texts = 0;
    int64_t tokens = 0;
  };
  void run_on(Workers& workers, Call& call, std::function<BlockingAnswer()> work);
  // Runs `work` on `workers`, then continues on the call's I/O thread with the refusal or `then`. Neither runs if the
  // client has disconnected.
  void run_on(Workers& workers, Call& call, std::function<std::optional<Refusal>()> work,
              std::function<void(Call&)> then);
  Refusal refusal_of_blocking_work(const Error& error) const;
  void stream_ended(Call& call);
  void take_answers(int thread, std::vector<Answer>& answers);
  void finish(Call& call);
  void refuse(Call& call, const Refusal& refusal);
  void count_refusal(int thread, int status);
  void run_route(Call& call);
  // Longer bodies are parsed on helper threads, and larger inputs tokenized there (about a millisecond each), so that
  // other connections of the I/O thread do not wait.
  static constexpr size_t kHelperBytes = 32 << 10;
  static std::shared_ptr<HeldBody> hold_body(Call& call);
  void parse_on_helper(Call& call);           // then runs its route
  static nlohmann::json body_of(Call& call);  // throws Refusal
  void hold(Call& call, int model);           // until the model has been replaced
  void resume(int thread, uint32_t slot);
  void run_held(Call& call);
  // Returns a held call to its I/O thread; null if its client has disconnected, which ends the call.
  Call* reclaim(int thread, uint32_t slot);
  static uint64_t client_of(const Call& call);
  void refuse_if_full(const Call& call) const;
  // `wait` is the prediction that exceeds `limit`.
  static Refusal overloaded(double wait, double limit, double retry_seconds);
  Refusal refusal_of(const Call& call, const Prediction& prediction) const;
  void answer(Call& call, std::string body, const char* content_type = "application/json");
  void release(Call& call) noexcept;
  // Time spent in each stage, in seconds.
  static std::array<double, kStages> stages_of(const Call& call, int64_t written_ns);
  std::string compute_fields(const Call& call) const;
  // Counts a finished request, answered or not, and writes its access log line.
  void note_end(const Exchange& exchange, const Call* call, int status, size_t bytes) noexcept;
  // Aborts a response that has begun: its status line is already sent, so the connection closes early.
  void abort_response(Call& call, const Refusal& refusal);

  // Routes, by source file: tei.cc
  void predict(Call& call);
  void embed(Call& call);
  void rerank(Call& call);
  void similarity(Call& call);
  void tokenize(Call& call);
  void by_task(Call& call);
  void info(Call& call);
  void embed_sparse(Call& call);
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
  // bulk.cc: shared by queues, jobs and row streams; not for I/O threads
  RequestOptions choose_for_bulk(const std::string& model, const std::string& source);
  ScoreTexts bulk_scorer(const RequestOptions& options);
  void count_bulk(const RequestOptions& options, size_t texts, int64_t tokens);
  // job_routes.cc
  static JobRequest job_request(const Call& call);  // from the query; throws usage
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
  std::string open_model(size_t index);  // returns an error message; empty: success
  Served reopen_model(size_t index, const Scorer* peer, bool peer_stays);
  std::string replace_model(size_t index);  // if memory does not suffice for both versions
  void close_model(size_t index);
  // The scorer that shares its device queue with a loading model; null: none. `held` keeps it alive.
  const Scorer* queue_owner(size_t index, Served& held) const;
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
  GpuReadings gpu_readings() const;
  HealthView health_view(const GpuReadings& gpu_state) const;
  // snapshot.cc
  void dashboard(Call& call);
  void snapshot(Call& call);
  void history(Call& call);
  void events(Call& call);
  void measure_gates_of(Ladder& ladder, const std::stop_token& stop);
  void measure_again(const std::string& model);  // for ladders that contain it
  void forget_gates(const std::string& model);   // called once the previous model can no longer be measured
  void deliver(int thread, const std::string& event, bool snapshot);
  void post_events(const std::string& event, bool snapshot);
  void note_rung(size_t ladder);
  DashboardSnapshot figures(std::optional<int64_t> held_bytes, const HealthView& health, const GpuReadings& gpu_state);

  std::vector<std::string_view> texts_of(const nlohmann::json& body, const char* key) const;
  // As texts_of, but token ids are allowed: a text, a list of ids, or a list of either.
  std::vector<Text> texts_or_ids(const nlohmann::json& body, const char* key, int model) const;
  bool stuck() const;  // no progress for too long, or a batch runs far too long
  double queue_seconds(int model) const;
  void append_labels(std::string& out, const Call& call, size_t i, size_t top_k) const;  // writes null after an error

  const ServiceOptions options_;  // names only: the scorers are in slots_
  struct Slot {
    mutable std::mutex mutex;
    Served served;  // null: not loaded
    // The configured kind until the model has been opened.
    std::atomic<ModelKind> kind{ModelKind::classifier};
    bool opened = false;
    std::string state = "resident", fault;
    // Batch count and time of the last observed use, for keep_alive; `moving`: loading or leaving the device.
    int64_t batches = 0, used_ns = 0;
    std::atomic<size_t> running_texts{0};  // in bulk calls: scored, but not counted before the call ends
    bool moving = false;
    int64_t failed_ns = 0;  // above 0: time of the last failed load, for retries
    // The old model has left the device and its successor is not loaded yet; `held`: waiting requests by thread and
    // inbox slot.
    bool replacing = false;
    mutable std::condition_variable replaced;
    std::vector<std::pair<int, uint32_t>> held;
    std::string state_now() const;
  };
  std::vector<std::unique_ptr<Slot>> slots_;
  // model_maintenance.cc
  int64_t unix_now() const;
  void load_in_background(Slot& slot, size_t index);
  void park_if_idle(Slot& slot, size_t index);
  void close_idle_device();
  void trim_heap();
  void note_loaded(size_t index);
  void note_not_loaded(size_t index, const std::string& why);
  // Reports an error that was caused by loading the model, not by the text; returns whether it was.
  bool note_if_not_loaded(const ServedModel& model, const Error& error);
  // For the maintenance thread only. Time since when no encoder is on the device; negative: the device was closed.
  int64_t unused_since_ns_ = 0;
  bool idle_ = false;                                         // result of the last check
  int64_t least_held_ = std::numeric_limits<int64_t>::max();  // resident bytes since the heap was last trimmed
  const int64_t started_ns_, started_unix_;
  HttpServer* server_ = nullptr;
  std::vector<std::unique_ptr<Inbox>> inboxes_;  // by thread
  std::unique_ptr<Metrics> metrics_;
  std::atomic<bool> draining_{false}, refusing_{false}, cutting_{false};
  std::atomic<size_t> outstanding_{0}, at_work_{0};  // texts; scoring requests
  mutable ProgressWatch progress_;
  std::atomic<uint64_t> next_id_{0};
  std::string id_prefix_;
  std::unique_ptr<BlockingWork> blocking_work_;  // null without a state directory
  std::mutex rows_mutex_;
  std::condition_variable rows_ended_;
  int row_streams_ = 0;  // threads of /score
  mutable std::mutex keys_mutex_;
  std::shared_ptr<const ApiKeys> keys_;
  std::atomic<bool> drain_wanted_{false};
  mutable std::mutex gpu_mutex_;  // guards this and the next two
  GpuReadings gpu_;
  std::map<std::string, std::vector<std::string>> gate_faults_;  // by ladder
  std::mutex gates_mutex_;                                       // guards this and the next three
  std::condition_variable_any gates_changed_;
  std::vector<Ladder*> unmeasured_;
  std::stop_source measuring_{std::nostopstate};
  // Dashboard: earlier counter values, and the current snapshot.
  struct Sample {
    int64_t ns = 0;
    uint64_t requests = 0;
    Counts counts;
    ScorerWork work;                 // sum over all models
    std::vector<uint64_t> texts;     // by model
    std::vector<size_t> scored;      // by model, with the texts of running bulk calls
    Histogram requests_by_duration;  // scoring requests only
  };
  std::deque<Sample> recent_, minutes_;  // owned by the sampling thread, as is the next
  std::set<std::string> warned_;         // kinds of current warnings
  DashboardHistory history_;
  mutable std::mutex snapshot_mutex_;  // guards the following
  std::vector<std::string> active_rungs_;
  std::deque<DashboardSnapshot::Switch> switches_;
  std::string snapshot_ = "null";
  std::optional<double> busy_, mfu_;
  std::optional<int64_t> held_bytes_;
  std::vector<std::array<uint64_t, kReasonCount>> ladder_switches_;  // by ladder and reason
  std::atomic<int> subscribers_{0};
  std::vector<std::set<EventStream*>> events_;  // by thread; used by that thread only
  std::atomic<bool> tracing_{false};
  std::mutex retired_mutex_;
  std::vector<Served> retired_;  // replaced or unloaded models that requests still use
  // Declared last, so that their tasks end before the members they use. Helpers parse and tokenize large requests.
  Workers admin_{1}, tracer_{1}, helpers_;
};

// A request whose body or response is streamed. Used by one I/O thread only; work on other threads holds a reference,
// and posts back through a weak pointer.
class Service::Stream {
 public:
  explicit Stream(Call& call) : call_(&call) {}
  virtual ~Stream() = default;
  virtual void take(std::string_view) {}  // part of the body
  virtual void ended() {}                 // end of the body
  virtual void sent() {}                  // the client has read everything so far
  void leave() { call_ = nullptr; }

 protected:
  Call* call_;  // null: the exchange is over
};

// A body handed to another thread. Either that thread or the disconnect handler takes it first, so that bodies of
// disconnected clients are freed before their turn.
struct Service::HeldBody {
  std::string text;
  std::atomic<bool> taken{false};
  bool take() { return !taken.exchange(true); }
};

// State of one request. Used by its I/O thread only.
struct Service::Call {
  Exchange* exchange = nullptr;
  int thread = 0;
  const Route* route = nullptr;
  std::string key_name;  // empty: no key was needed
  std::string id;
  int model = -1;
  Served served, other;  // keep the models alive; `other`: a second model's
  const char* reason = nullptr;
  std::string instead_of;  // see RequestOptions
  bool ended = false;      // the exchange is over
  bool done = false;       // the response was passed to the exchange
  bool counted = false;    // included in at_work_
  int broken = 0;          // status of an aborted response, for the log; 0: not aborted
  // Scoring:
  uint32_t slot = 0;
  size_t left = 0;  // results still missing
  std::vector<Prediction> predictions;
  std::stop_source stop{std::nostopstate};
  bool bulk = false, null_errors = false;
  double timeout_ms = 0;
  size_t characters = 0, tokens = 0;
  size_t rows = 0;  // scored rows of a stream, queue or job
  int passes = 0;   // passes over each text, if two models contribute to a response
  int64_t parsed_ns = 0, finished_ns = 0;
  int64_t submitted_ns = 0;  // 0: submitted by a helper
  Write write;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<HeldBody> held_body;     // while another thread is to parse it
  std::shared_ptr<nlohmann::json> parsed;  // body parsed by a helper
  std::string ignored;                     // unknown keys of the body
};

}  // namespace brim::serve
