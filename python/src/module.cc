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

#include "brim/brim.h"
#include "raw_scores.h"
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

nb::object exception_of(const Error& error) {
  return nb::module_::import_("brim.errors")
      .attr("from_library")(code_name(error.code()), error.problem(), error.remedy());
}

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

LongText long_text_of(const std::string& name) {
  if (name == "truncate") return LongText::truncate;
  if (name == "window-mean") return LongText::window_mean;
  if (name == "window-max") return LongText::window_max;
  if (name == "error") return LongText::error;
  throw Error(ErrorCode::usage, "`long_text=" + name + "` is unknown",
              {"use truncate, window-mean, window-max or error"});
}

std::optional<Pooling> pooling_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "auto") return Pooling::automatic;
  if (*name == "mean") return Pooling::mean;
  if (*name == "cls") return Pooling::cls;
  throw Error(ErrorCode::usage, "`pooling=" + *name + "` is unknown", {"use auto, mean or cls"});
}

Aggregation aggregation_of(const std::string& name) {
  if (name == "first") return Aggregation::first;
  if (name == "simple") return Aggregation::simple;
  if (name == "average") return Aggregation::average;
  if (name == "max") return Aggregation::max;
  throw Error(ErrorCode::usage, "`aggregation_strategy=" + name + "` is unknown",
              {"use first, simple, average or max"});
}

std::shared_ptr<Scorer> open(const std::string& model, const std::string& device, const std::string& precision,
                             const std::string& memory_limit, const std::string& leave_free, int threads,
                             int64_t max_length, const std::string& long_text,
                             const std::optional<std::string>& pooling, const std::string& aggregation) {
  ScorerOptions options;
  options.model = model;
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
  options.queue_seconds = 1e9;    // score_raw() limits its own submissions
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

// Options of one call. `function`: applied to the model's outputs. `prompt`: for embedding models; none selects the
// default prompt.
struct ScoreOptions {
  ScoreFunction function = ScoreFunction::own;
  std::optional<std::string> prompt;
};

// `pairs`: the second texts, or null.
Predictions score_with(Scorer& model, const ScoreOptions& options, const Texts& texts, const Texts* pairs,
                       std::stop_token stop = {}, const std::function<void(size_t)>& progress = {}) {
  if (options.prompt) return model.embed(texts.views(), *options.prompt, std::move(stop), progress);
  if (options.function != ScoreFunction::own) return score_raw(model, options.function, texts, pairs, stop, progress);
  if (pairs == nullptr) return model.score(texts.views(), std::move(stop), progress);
  return model.score_pairs(texts.views(), pairs->views(), std::move(stop), progress);
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
                  const nb::object& given_pairs, const std::string& function_name,
                  const std::optional<std::string>& prompt) {
  collect_abandoned(false);
  const ScoreOptions options{score_function_of(function_name), prompt};
  const auto& texts = nb::cast<const Texts&>(given);
  const Texts* pairs = texts_or_null(given_pairs);
  const size_t bytes = texts.bytes() + (pairs == nullptr ? 0 : pairs->bytes());
  Predictions p;
  if (bytes <= kDirectBytes && texts.views().size() <= kDirectBytes / 64) {
    auto& model = nb::cast<Scorer&>(scorer);
    const nb::gil_scoped_release released;
    p = score_with(model, options, texts, pairs);
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
  nb::list out;
  if (row >= p.entities.size()) return out;
  for (const Entity& e : p.entities[row]) {
    nb::dict entity;
    entity["entity_group"] = e.group;
    entity["score"] = e.score;
    entity["word"] = e.word;
    entity["start"] = e.start;
    entity["end"] = e.end;
    out.append(entity);
  }
  return out;
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
  set_log([](bool is_warning, std::string_view line) { log_lines().add(is_warning, line); });

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

  nb::class_<Scorer>(m, "Scorer")
      .def_static("open", &open, "model"_a, "device"_a, "precision"_a, "memory_limit"_a, "leave_free"_a, "threads"_a,
                  "max_length"_a, "long_text"_a, "pooling"_a.none(), "aggregation"_a)
      .def_prop_ro("kind", [](const Scorer& s) { return kind_name(s.kind()); })
      .def_prop_ro("labels", &Scorer::labels)
      .def_prop_ro("score_names", &Scorer::score_names)
      .def_prop_ro("device", &Scorer::device)
      .def_prop_ro("precision", &Scorer::precision)
      .def("plan", &plan_of)
      .def("score", &score, "texts"_a, "progress"_a.none() = nb::none(), "pairs"_a.none() = nb::none(),
           "function"_a = "", "prompt"_a.none() = nb::none())
      .def("close", &Scorer::close, nb::call_guard<nb::gil_scoped_release>());
}
