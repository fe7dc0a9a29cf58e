// SPDX-License-Identifier: Apache-2.0
// Admin routes: load, park, unload and reload models, reload keys, pin ladders, drain. A new model is opened next to
// the one it replaces, which answers until its last request is done; if opening fails, the old model stays. If memory
// does not suffice for both, requests wait during the replacement.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

constexpr double kLongestTrace = 30;  // seconds
constexpr auto kUserPollInterval = std::chrono::milliseconds(5);
constexpr auto kLongestRetireWait = std::chrono::seconds(1);  // free_retired() handles longer uses, such as row streams
constexpr double kLongestBatch = 5;                           // seconds, including its answers

}  // namespace

void Service::report_fault(const std::string& model, const std::string& fault) {
  bool returned = false;
  for (const auto& ladder : options_.ladders)
    if (ladder->has(model)) {
      returned |= fault.empty() && !ladder->fault(model).empty();
      ladder->report_fault(model, fault);
    }
  if (returned) measure_again(model);  // the gate skips unavailable rungs
}

// Runs on the admin or maintenance thread, so that no I/O thread pays for freeing a model. Requests that hold it finish
// with it.
void Service::retire(Served old) {
  if (old == nullptr) return;
  const auto until = std::chrono::steady_clock::now() + kLongestRetireWait;
  while (old.use_count() > 1 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kUserPollInterval);
  if (old.use_count() == 1) return;
  std::lock_guard lock(retired_mutex_);
  retired_.push_back(std::move(old));
}

void Service::free_retired() {
  std::vector<Served> unused;
  std::lock_guard lock(retired_mutex_);
  std::erase_if(retired_, [&](Served& old) {
    if (old.use_count() > 1) return false;
    unused.push_back(std::move(old));
    return true;
  });
}

std::string Service::Slot::state_now() const {
  if (served == nullptr || state != "resident") return state;
  switch (served->scorer->residence()) {
    case Residence::parked:
      return "parked";
    case Residence::disk:
      return "disk";
    default:
      return state;
  }
}

// Prefers the model being replaced, then any other encoder.
const Scorer* Service::queue_owner(size_t index, Served& held) const {
  for (size_t m = 0; m <= slots_.size(); ++m) {
    const Slot& slot = *slots_[m == 0 ? index : m - 1];
    std::lock_guard lock(slot.mutex);
    if (slot.served == nullptr || slot.kind == ModelKind::rules) continue;
    held = slot.served;
    return held->scorer.get();
  }
  return nullptr;
}

Served Service::reopen_model(size_t index, const Scorer* peer, bool peer_stays) {
  const std::string& name = options_.models[index].name;
  auto opened = std::make_shared<const ServedModel>(options_.reopen(name, peer, peer_stays));
  if (slots_[index]->opened && opened->scorer->kind() != slots_[index]->kind)
    fail(ErrorCode::bad_model, "{}: the model's kind has changed", name);
  return opened;
}

std::string Service::open_model(size_t index) {
  const std::string& name = options_.models[index].name;
  Slot& slot = *slots_[index];
  bool was_loaded;
  {
    std::lock_guard lock(slot.mutex);
    was_loaded = slot.served != nullptr;
    if (!was_loaded) slot.state = "loading";
  }
  Served opened;
  std::string problem;
  bool does_not_fit = false;
  try {
    Served held;
    const Scorer* peer = queue_owner(index, held);
    opened = reopen_model(index, peer, was_loaded);
  } catch (const Error& error) {
    problem = error.what();
    does_not_fit = error.code() == ErrorCode::does_not_fit;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (was_loaded && does_not_fit) return replace_model(index);
  if (opened == nullptr) {
    {
      std::lock_guard lock(slot.mutex);
      slot.fault = problem;
      if (slot.served == nullptr) slot.state = "failed";
    }
    if (!was_loaded) report_fault(name, problem);
    log_warning("cannot load {}: {}", name, problem);
    return problem;
  }
  Served old;
  {
    std::lock_guard lock(slot.mutex);
    slot.kind = opened->scorer->kind();
    slot.opened = true;
    old = std::exchange(slot.served, std::move(opened));
    slot.state = "resident";
    slot.failed_ns = 0;
    slot.fault.clear();
  }
  forget_gates(name);
  report_fault(name, "");
  log_info("{} is loaded", name);
  retire(std::move(old));
  return "";
}

// Moves the old model off the device while requests wait, then opens its successor. If that fails, restores the old
// model from its files if they have not changed.
std::string Service::replace_model(size_t index) {
  const std::string& name = options_.models[index].name;
  Slot& slot = *slots_[index];
  Served old, next;
  {
    std::lock_guard lock(slot.mutex);
    old = std::exchange(slot.served, nullptr);
    slot.replacing = true;
    slot.state = "loading";
  }
  forget_gates(name);  // gates are measured again for whichever model results
  log_info("replacing {}: not enough memory for both versions, requests wait", name);
  std::string problem;
  try {
    const int64_t since = now_ns();
    while (old.use_count() > 1 || old->scorer.use_count() > 1) {  // drains its requests first
      if (seconds_since(since) > options_.queue_seconds + kLongestBatch)
        fail(ErrorCode::busy, "{}: not enough memory for both versions, and a job or stream still uses the old one",
             name);
      std::this_thread::sleep_for(kUserPollInterval);
    }
    old->scorer->park();
    try {
      next = reopen_model(index, old->scorer.get(), false);
    } catch (const Error& error) {
      // The new model's batches may not fit into a queue sized for the old one. If the old model cannot be restored
      // anyway, because its files changed, and it is the only model in the queue, free the queue too.
      Served other;
      if (error.code() != ErrorCode::does_not_fit || old->scorer->residence() != Residence::disk ||
          !options_.revision_of || options_.revision_of(name) == old->revision || queue_owner(index, other) != nullptr)
        throw;
      old.reset();
      next = reopen_model(index, nullptr, false);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (next == nullptr && old != nullptr) {
    try {
      old->scorer->load_weights();
      next = std::move(old);
    } catch (const std::exception& error) {
      problem += fmt::format("; the previous version cannot be restored: {}", error.what());
    }
  }
  std::vector<std::pair<int, uint32_t>> held;
  {
    std::lock_guard lock(slot.mutex);
    slot.served = next;
    slot.state = next != nullptr ? "resident" : "failed";
    slot.fault = problem;
    slot.failed_ns = 0;
    slot.replacing = false;
    held.swap(slot.held);
  }
  slot.replaced.notify_all();
  report_fault(name, next != nullptr ? "" : problem);
  for (const auto& [thread, waiting] : held) resume(thread, waiting);
  if (problem.empty())
    log_info("{} is loaded", name);
  else
    log_warning("cannot replace {}: {}", name, problem);
  next.reset();
  retire(std::move(old));
  return problem;
}

void Service::close_model(size_t index) {
  Slot& slot = *slots_[index];
  Served old;
  {
    std::lock_guard lock(slot.mutex);
    old = std::exchange(slot.served, nullptr);
    slot.state = "disk";
    slot.failed_ns = 0;
    slot.fault.clear();
  }
  report_fault(options_.models[index].name, "unloaded");
  log_info("{} is unloaded", options_.models[index].name);
  retire(std::move(old));
}

// Reloads keys and the certificate, and models that failed or whose files changed. On an error the old state stays.
std::vector<std::string> Service::reload() {
  std::vector<std::string> problems;
  int opened = 0;
  if (options_.read_keys) {
    try {
      auto keys = std::make_shared<const ApiKeys>(options_.read_keys());
      std::lock_guard lock(keys_mutex_);
      keys_ = std::move(keys);
    } catch (const std::exception& error) {
      problems.push_back(error.what());
    }
  }
  if (options_.read_certificate) {
    try {
      options_.read_certificate();
    } catch (const std::exception& error) {
      problems.push_back(error.what());
    }
  }
  const auto is_changed = [this](const ServedModel& model) {
    const std::string tagger = options_.tagger_of ? options_.tagger_of(model.name) : model.tagger;
    return tagger != model.tagger || (!tagger.empty() && options_.revision_of(tagger) != model.tagger_revision) ||
           options_.revision_of(model.name) != model.revision;
  };
  for (size_t m = 0; options_.reopen && m < slots_.size(); ++m) {
    Served served;
    bool failed;
    {
      std::lock_guard lock(slots_[m]->mutex);
      served = slots_[m]->served;
      failed = slots_[m]->state == "failed";
    }
    try {
      if (served != nullptr ? !is_changed(*served) : !failed) continue;
    } catch (const std::exception& error) {
      problems.push_back(error.what());
      continue;
    }
    served.reset();
    if (const std::string problem = open_model(m); !problem.empty())
      problems.push_back(problem);
    else
      ++opened;
  }
  for (const std::string& problem : problems) log_warning("reload: {}", problem);
  if (problems.empty()) log_info("reloaded keys and {} of {} models", opened, slots_.size());
  return problems;
}

void Service::request_reload() {
  admin_.call([this] {
    try {
      reload();
    } catch (const std::exception& error) {
      log_warning("reload: {}", error.what());
    }
  });
}

// Records the activity of all threads as a trace for ui.perfetto.dev. Has its own thread, so other admin calls proceed.
void Service::trace(Call& call) {
  const std::string value = query_value(call.exchange->query(), "seconds");
  double seconds = 1;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  const bool valid = value.empty() || (problem == std::errc() && end == value.data() + value.size());
  if (!valid || !(seconds > 0) || seconds > kLongestTrace)
    throw invalid(fmt::format("`seconds` must be above 0 and at most {}", kLongestTrace));
  if (tracing_.exchange(true)) throw Refusal{409, "Validation", "another trace is running", retry_after(seconds)};
  run_on(tracer_, call, [this, seconds] {
    Timeline::clear();
    Timeline::enable(true);
    const int64_t since = now_ns();
    while (seconds_since(since) < seconds && !draining_) std::this_thread::sleep_for(kUserPollInterval);
    Timeline::enable(false);
    tracing_ = false;
    return BlockingAnswer{200, Timeline::chrome_trace()};
  });
}

// NAME/pin?rung=MODEL fixes the rung until NAME/unpin.
void Service::pin_ladder(Call& call, std::string_view path) {
  const size_t slash = std::min(path.rfind('/'), path.size());
  const std::string name = percent_decoded(path.substr(0, slash));
  const std::string_view verb = path.substr(std::min(slash + 1, path.size()));
  const auto ladder = std::find_if(options_.ladders.begin(), options_.ladders.end(),
                                   [&](const auto& l) { return l->rules().name == name; });
  if (ladder == options_.ladders.end() || (verb != "pin" && verb != "unpin"))
    throw Refusal{404, "NotFound", "unknown ladder or action (use NAME/pin?rung=MODEL or NAME/unpin)"};
  if (verb == "unpin") {
    (*ladder)->unpin();
  } else {
    try {
      (*ladder)->pin(query_value(call.exchange->query(), "rung"));
    } catch (const Error& error) {
      throw invalid(error.what());
    }
  }
  note_rung(static_cast<size_t>(ladder - options_.ladders.begin()));  // a pin may end before the next sample
  const LadderView view = (*ladder)->view(unix_now());
  answer(call,
         nlohmann::json{{"ladder", view.name}, {"active", view.active}, {"reason", reason_name(view.reason)}}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Service::admin(Call& call) {
  std::string_view path = call.exchange->path().substr(std::string_view("/admin/").size());
  log_info("{} by {} from {}", call.exchange->path(),
           call.key_name.empty() ? "a client without an API key" : call.key_name, call.exchange->client());
  if (path == "drain") {
    drain_wanted_ = true;
    return answer(call, R"({"state":"draining"})");
  }
  if (path == "reload")
    return run_on(admin_, call, [this] {
      const std::vector<std::string> problems = reload();
      return BlockingAnswer{
          problems.empty() ? 200 : 424,
          nlohmann::json{{"problems", problems}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
    });
  if (path.starts_with("ladders/")) return pin_ladder(call, path.substr(std::string_view("ladders/").size()));
  const Refusal unknown{404, "NotFound",
                        "unknown admin route (use /admin/models/NAME/load, park, unload or reload, "
                        "/admin/ladders/NAME/pin?rung=MODEL or unpin, /admin/reload, /admin/drain)"};
  constexpr std::string_view kModels = "models/";
  const size_t slash = path.rfind('/');
  if (!path.starts_with(kModels) || slash < kModels.size()) throw unknown;
  const std::string name = percent_decoded(path.substr(kModels.size(), slash - kModels.size())),
                    verb(path.substr(slash + 1));
  if (verb != "load" && verb != "park" && verb != "unload" && verb != "reload") throw unknown;
  const auto index = static_cast<size_t>(find_model(name));
  if ((verb == "load" || verb == "reload") && !options_.reopen)
    throw Refusal{424, "Backend", "this server cannot load models"};
  const auto state = [this, index, name] {
    std::lock_guard lock(slots_[index]->mutex);
    return nlohmann::json{{"model", name}, {"state", slots_[index]->state_now()}}.dump();
  };
  const auto work = [this, index, verb, state] {
    Served served;
    {
      std::lock_guard lock(slots_[index]->mutex);
      served = slots_[index]->served;
    }
    std::string problem;
    try {
      if (verb == "park" && served != nullptr) served->scorer->park();
      if (verb == "load" && served != nullptr) served->scorer->load_weights();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const bool was_loaded = served != nullptr;
    served.reset();
    if (verb == "unload" && was_loaded) close_model(index);
    if (verb == "reload" || (verb == "load" && !was_loaded)) problem = open_model(index);
    if (!problem.empty()) throw Refusal{409, "Backend", problem};
    return BlockingAnswer{200, state()};
  };
  if (query_value(call.exchange->query(), "wait") != "false") return run_on(admin_, call, work);
  admin_.call([work] {
    try {
      work();
    } catch (const Refusal&) {  // reported by /health
    } catch (const std::exception& error) {
      log_warning("admin request failed: {}", error.what());
    }
  });
  call.done = true;
  call.exchange->answer({.status = 202, .body = state(), .fields = fmt::format("X-Request-Id: {}\r\n", call.id)});
}

}  // namespace brim::serve
