// SPDX-License-Identifier: Apache-2.0
// brim._brim: native module around the library's Scorer: texts without copies, results as arrays over the library's
// buffers, GIL released during computation, Ctrl-C handling. The public Python API is in python/brim.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "answer_queue.h"
#include "brim/brim.h"
#include "download.h"
#include "requests.h"
#include "runs.h"
#include "texts.h"
#include "training.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

// Smaller inputs are scored on the caller's thread: they finish before a Ctrl-C matters, and a thread costs 50 us.
constexpr size_t kDirectBytes = 2 << 10;
constexpr std::chrono::milliseconds kSlice{50};
constexpr std::chrono::milliseconds kPatience{200};  // for an interrupted call to end

const char* code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::internal:
      return "internal";
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::bad_data:
      return "bad_data";
    case ErrorCode::bad_model:
      return "bad_model";
    case ErrorCode::does_not_fit:
      return "does_not_fit";
    case ErrorCode::device_lost:
      return "device_lost";
    case ErrorCode::cannot_write:
      return "cannot_write";
    case ErrorCode::diverged:
      return "diverged";
    case ErrorCode::interrupted:
      return "interrupted";
    case ErrorCode::timed_out:
      return "timed_out";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::busy:
      return "busy";
  }
  return "internal";
}

const char* kind_name(ModelKind kind) {
  switch (kind) {
    case ModelKind::classifier:
      return "classifier";
    case ModelKind::tagger:
      return "tagger";
    case ModelKind::embedder:
      return "embedder";
    case ModelKind::rules:
      return "rules";
  }
  return "";
}

}  // namespace

nb::object exception_of(const Error& error) {
  return nb::module_::import_("brim.errors")
      .attr("from_library")(code_name(error.code()), error.problem(), error.remedy());
}

namespace {

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const nb::object exception = exception_of(error);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  }
}

// Buffers the library's log lines until a call that holds the GIL takes them: a sink that waited for the GIL could
// deadlock with a thread that waits for the sink.
class LogLines {
 public:
  void add(bool is_warning, std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kMost) lines_.emplace_back(is_warning, line);
  }
  std::vector<std::pair<bool, std::string>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  static constexpr size_t kMost = 1000;
  std::mutex mutex_;
  std::vector<std::pair<bool, std::string>> lines_;
};

LogLines& log_lines() {
  static auto* lines = new LogLines;  // never destroyed: threads may log during exit
  return *lines;
}

std::optional<Pooling> pooling_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "auto") return Pooling::automatic;
  if (*name == "mean") return Pooling::mean;
  if (*name == "cls") return Pooling::cls;
  if (*name == "none") return Pooling::none;
  throw Error(ErrorCode::usage, "`pooling=" + *name + "` is unknown", {"use auto, mean or cls"});
}

std::shared_ptr<Scorer> open(const std::string& model, const std::string& device, const std::string& precision,
                             const std::string& memory_limit, const std::string& leave_free, int threads,
                             int64_t max_length, const std::string& long_text,
                             const std::optional<std::string>& pooling, const std::string& aggregation,
                             const std::string& adapter) {
  ScorerOptions options;
  options.model = model;
  options.adapter = adapter;
  options.device = device;
  options.precision = precision;
  options.memory_limit = memory_limit;
  options.leave_free = leave_free;
  options.threads = threads;
  options.max_length = max_length;
  options.long_text = long_text_of(long_text);
  options.pooling = pooling_of(pooling);
  options.aggregation = aggregation_of(aggregation);
  options.raw_scores = !pooling;  // calls may set function_to_apply
  options.queue_seconds = 1e9;    // requests.cc limits its submissions
  options.queue_bytes = std::numeric_limits<int64_t>::max();
  const nb::gil_scoped_release released;
  return Scorer::open(options);
}

// Fills rows without a result with NaN instead of zeros.
void mark_failed(Predictions& p, size_t row) {
  constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();
  if (row < p.labels.size()) p.labels[row] = -1;
  if (row < p.label_scores.size()) p.label_scores[row] = kNothing;
  if (row < p.entities.size()) p.entities[row].clear();
  std::fill_n(p.scores.begin() + static_cast<std::ptrdiff_t>(row * p.width), p.width, kNothing);
}

// Zero-shot labels of a scorer, which outlives them.
struct PreparedLabels {
  std::shared_ptr<const ZeroShotLabels> labels;
};

PreparedLabels prepare_labels(const Scorer& scorer, const std::vector<std::string>& labels, const std::string& pattern,
                              bool multi_label) {
  const nb::gil_scoped_release released;
  return {scorer.prepare_labels({labels, pattern, multi_label})};
}

PreparedLabels prepare_entities(const Scorer& scorer, const std::vector<std::string>& labels, float threshold,
                                bool nested) {
  const nb::gil_scoped_release released;
  return {scorer.prepare_entities({labels, threshold, nested})};
}

// A call on its own thread. Keeps its inputs alive until it ends, even if its caller was interrupted and has returned.
struct Call {
  nb::object scorer, texts, pairs;
  std::stop_source stop;
  std::atomic<size_t> done{0};
  std::promise<Predictions> promise;
  std::future<Predictions> result = promise.get_future();
  const pid_t process = ::getpid();
  std::jthread worker;
};

// Calls of interrupted callers that are still running; protected by the GIL.
std::vector<std::unique_ptr<Call>>& abandoned() {
  static auto* calls = new std::vector<std::unique_ptr<Call>>;
  return *calls;
}

// Frees calls that have ended; `wait` waits for all, because no thread may compute during exit.
void collect_abandoned(bool wait) {
  auto calls = std::exchange(abandoned(), {});  // others may be added during the wait
  for (auto& call : calls) {
    if (call->process != ::getpid()) {  // a child of fork() does not have this thread
      (void)call.release();
      continue;
    }
    if (wait) {
      const nb::gil_scoped_release released;
      call->result.wait();
    }
    if (call->result.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      abandoned().push_back(std::move(call));
  }
}

// Options of one call. `prompt`: for embedding models; none selects the default prompt.
struct ScoreOptions {
  CallOptions call;
  std::optional<std::string> prompt;
  std::shared_ptr<const ZeroShotLabels> labels;  // zero-shot labels, or null
};

// `pairs`: the second texts, or null.
Predictions score_with(Scorer& model, const ScoreOptions& options, const Texts& texts, const Texts* pairs,
                       std::stop_token stop = {}, const std::function<void(size_t)>& progress = {}) {
  if (options.labels) return model.classify(texts.views(), *options.labels, std::move(stop), progress);
  if (options.prompt && pairs != nullptr)
    return model.embed_pairs(texts.views(), pairs->views(), *options.prompt, std::move(stop), progress);
  if (options.prompt) return model.embed(texts.views(), *options.prompt, std::move(stop), progress);
  if (options.call.any()) return score_requests(model, options.call, texts, pairs, stop, progress);
  if (pairs == nullptr) return model.score(texts.views(), std::move(stop), progress);
  return model.score_pairs(texts.views(), pairs->views(), std::move(stop), progress);
}

// Scores on the caller's thread. Single texts of several threads are batched together.
Predictions score_now(Scorer& model, const ScoreOptions& options, const Texts& texts, const Texts* pairs) {
  static std::atomic<int> running{0};
  struct Running {
    const bool alone = running.fetch_add(1) == 0;
    ~Running() { --running; }
  } const mine;
  const bool single = texts.views().size() == 1 && !options.prompt && !options.labels && !options.call.any();
  if (mine.alone || !single || model.kind() == ModelKind::embedder) return score_with(model, options, texts, pairs);
  return score_requests(model, options.call, texts, pairs, {}, {});
}

const Texts* texts_or_null(const nb::object& texts) {
  return texts.is_none() ? nullptr : &nb::cast<const Texts&>(texts);
}

// Scores on another thread and polls, so that Ctrl-C ends the call and `progress` is called meanwhile.
Predictions score_aside(nb::handle scorer, nb::handle texts, const nb::object& progress, const nb::object& pairs,
                        const ScoreOptions& options) {
  auto call = std::make_unique<Call>();
  call->scorer = nb::borrow(scorer);
  call->texts = nb::borrow(texts);
  call->pairs = pairs;
  call->worker = std::jthread([call = call.get(), options, &model = nb::cast<Scorer&>(scorer),
                               &firsts = nb::cast<const Texts&>(texts), seconds = texts_or_null(pairs)] {
    try {
      call->promise.set_value(score_with(model, options, firsts, seconds, call->stop.get_token(),
                                         [call](size_t rows) { call->done = rows; }));
    } catch (...) {
      call->promise.set_exception(std::current_exception());
    }
  });
  const auto ended_within = [&](std::chrono::milliseconds time) {
    const nb::gil_scoped_release released;
    return call->result.wait_for(time) == std::future_status::ready;
  };
  try {
    for (size_t reported = 0; !ended_within(kSlice);) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (const size_t now = call->done; !progress.is_none() && now != reported) {
        reported = now;
        progress(now);
      }
    }
  } catch (...) {
    call->stop.request_stop();  // running batches are finished, which may take seconds
    if (!ended_within(kPatience)) abandoned().push_back(std::move(call));
    throw;
  }
  return call->result.get();
}

Predictions score(nb::handle_t<Scorer> scorer, nb::handle_t<Texts> given, const nb::object& progress,
                  const nb::object& given_pairs, const std::optional<std::string>& prompt,
                  const std::optional<PreparedLabels>& labels, const CallOptions* call) {
  collect_abandoned(false);
  const ScoreOptions options{call == nullptr ? CallOptions() : *call, prompt, labels ? labels->labels : nullptr};
  const auto& texts = nb::cast<const Texts&>(given);
  const Texts* pairs = texts_or_null(given_pairs);
  const size_t bytes = texts.bytes() + (pairs == nullptr ? 0 : pairs->bytes());
  Predictions p;
  if (bytes <= kDirectBytes && texts.views().size() <= kDirectBytes / 64) {
    auto& model = nb::cast<Scorer&>(scorer);
    const nb::gil_scoped_release released;
    p = score_now(model, options, texts, pairs);
  } else {
    p = score_aside(scorer, given, progress, given_pairs, options);
  }
  for (const auto& failed : p.errors) mark_failed(p, failed.first);
  for (const BadText& bad : texts.bad()) mark_failed(p, bad.row);
  if (pairs != nullptr)
    for (const BadText& bad : pairs->bad()) mark_failed(p, bad.row);
  return p;
}

template <class T>
using Array = nb::ndarray<nb::numpy, T>;

// An array over a buffer of `owner`.
template <class T>
Array<T> array_of(nb::handle owner, T* data, std::initializer_list<size_t> shape) {
  return Array<T>(data, shape, owner);
}

nb::list entities_of(const Predictions& p, size_t row) {
  return row < p.entities.size() ? entity_dicts(p.entities[row]) : nb::list();
}

nb::dict plan_of(const Scorer& scorer) {
  const MemoryPlan plan = scorer.plan();
  nb::dict bytes;
  for (const auto& [purpose, count] : plan.bytes) bytes[purpose.c_str()] = count;
  nb::dict out;
  out["limit_bytes"] = plan.limit_bytes;
  out["peak_bytes"] = plan.peak_bytes;
  out["bytes"] = bytes;
  out["tokens_per_batch"] = plan.tokens_per_batch;
  out["tokens_per_second"] = plan.tokens_per_second;
  return out;
}

nb::list tokens_of(const Scorer& scorer, const std::string& text) {
  nb::list out;
  for (const TextToken& t : scorer.tokenize(text)) out.append(nb::make_tuple(t.id, t.text, t.start, t.end, t.special));
  return out;
}

std::string decode(const Scorer& scorer, const std::vector<int32_t>& ids, bool skip_special) {
  return scorer.decode(ids, skip_special);
}

CallOptions call_options(const std::string& function, int64_t max_length, const std::string& long_text,
                         const std::string& aggregation, int32_t overlap, bool outside,
                         const std::optional<std::string>& prompt) {
  CallOptions options{.function = score_function_of(function), .max_length = max_length};
  if (!long_text.empty()) options.long_text = long_text_of(long_text);
  if (!aggregation.empty()) options.aggregation = aggregation_of(aggregation);
  options.overlap = overlap;
  options.outside = outside;
  options.prompt = prompt;
  return options;
}

void bind_texts(nb::module_& m) {
  nb::class_<Texts>(m, "Texts")
      .def_static("from_sequence", &Texts::from_sequence, "texts"_a)
      .def_static("from_stream", &Texts::from_stream, "stream"_a)
      .def_static("from_array", &Texts::from_array, "schema"_a, "array"_a)
      .def("__len__", [](const Texts& t) { return t.views().size(); })
      .def_prop_ro("bad", [](const Texts& t) {
        nb::list out;
        for (const BadText& bad : t.bad()) out.append(nb::make_tuple(bad.row, bad.what));
        return out;
      });
}

void bind_predictions(nb::module_& m) {
  nb::class_<Predictions>(m, "Predictions")
      .def("__len__", [](const Predictions& p) { return p.rows; })
      .def_prop_ro("label_ids",
                   [](nb::handle self) {
                     auto& p = nb::cast<Predictions&>(self);
                     return array_of(self, p.labels.data(), {p.labels.size()});
                   })
      .def_prop_ro("scores",
                   [](nb::handle self) {
                     auto& p = nb::cast<Predictions&>(self);
                     return array_of(self, p.scores.data(), {p.rows, p.width});
                   })
      .def_prop_ro("label_scores",
                   [](nb::handle self) {
                     auto& p = nb::cast<Predictions&>(self);
                     return array_of(self, p.label_scores.data(), {p.label_scores.size()});
                   })
      .def_prop_ro("truncated",
                   [](nb::handle self) {
                     auto& p = nb::cast<Predictions&>(self);
                     return array_of(self, p.truncated.data(), {p.truncated.size()});
                   })
      .def("entities", &entities_of, "row"_a)
      .def_prop_ro("errors", [](const Predictions& p) {
        nb::list out;
        for (const auto& [row, error] : p.errors) out.append(nb::make_tuple(row, exception_of(error)));
        return out;
      });
}

}  // namespace
}  // namespace brim::python

NB_MODULE(_brim, m) {
  using namespace brim;
  using namespace brim::python;
  nb::set_leak_warnings(false);  // models that live until the interpreter exits are not leaks
  nb::register_exception_translator(translate);
  m.attr("__version__") = version();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { collect_abandoned(true); }));
  m.def("find_model", &find_model, "model"_a);
  m.def(
      "model_kind",
      [](const std::string& model, const std::string& adapter) { return kind_name(model_kind(model, adapter)); },
      "model"_a, "adapter"_a = "");
  m.def(
      "find_prompts",
      [](const std::string& model) {
        const Prompts prompts = find_prompts(model);
        nb::dict texts;
        for (const auto& [name, text] : prompts.texts) texts[nb::str(name.c_str())] = nb::str(text.data(), text.size());
        return nb::make_tuple(texts, prompts.default_name);
      },
      "model"_a);
  m.def("take_log", [] { return log_lines().take(); });
  bind_training(m);
  bind_download(m);
  bind_runs(m);
  set_log([](bool is_warning, std::string_view line) { log_lines().add(is_warning, line); });

  bind_texts(m);
  bind_predictions(m);
  nb::class_<PreparedLabels>(m, "ZeroShotLabels").def_prop_ro("labels", [](const PreparedLabels& p) {
    return p.labels->labels();
  });

  nb::class_<CallOptions>(m, "CallOptions");
  m.def("call_options", &call_options, "function"_a = "", "max_length"_a = 0, "long_text"_a = "", "aggregation"_a = "",
        "overlap"_a = -1, "outside"_a = false, "prompt"_a.none() = nb::none());
  bind_answer_queue(m);

  nb::class_<Scorer>(m, "Scorer")
      .def_static("open", &open, "model"_a, "device"_a, "precision"_a, "memory_limit"_a, "leave_free"_a, "threads"_a,
                  "max_length"_a, "long_text"_a, "pooling"_a.none(), "aggregation"_a, "adapter"_a = "")
      .def_prop_ro("kind", [](const Scorer& s) { return kind_name(s.kind()); })
      .def_prop_ro("labels", &Scorer::labels)
      .def_prop_ro("score_names", &Scorer::score_names)
      .def_prop_ro("device", &Scorer::device)
      .def_prop_ro("precision", &Scorer::precision)
      .def("plan", &plan_of)
      .def("score", &score, "texts"_a, "progress"_a.none() = nb::none(), "pairs"_a.none() = nb::none(),
           "prompt"_a.none() = nb::none(), "labels"_a.none() = nb::none(), "options"_a.none() = nb::none())
      .def("tokenize", &tokens_of, "text"_a)
      .def("decode", &decode, "ids"_a, "skip_special"_a)
      .def_prop_ro("max_length", &Scorer::max_length)
      .def("prepare_labels", &prepare_labels, "labels"_a, "template"_a, "multi_label"_a, nb::keep_alive<0, 1>())
      .def("prepare_entities", &prepare_entities, "labels"_a, "threshold"_a, "nested"_a, nb::keep_alive<0, 1>())
      .def("close", &Scorer::close, nb::call_guard<nb::gil_scoped_release>());
}
