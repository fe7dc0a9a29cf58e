// SPDX-License-Identifier: Apache-2.0
// /admin: models come and go while the server runs, keys are read anew, the server is told to end. A model is opened
// beside the one it replaces, which answers until then and goes when its last request is done; one that cannot be
// opened leaves the other where it is. Where there is no room for both, requests wait while one goes and the other
// comes.
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
constexpr auto kLookForUsers = std::chrono::milliseconds(5);
constexpr auto kLongestUse = std::chrono::seconds(1);  // a stream of rows may hold it longer, and then lets it go
constexpr double kLongestBatch = 5;                    // seconds, with its answers

}  // namespace

void Service::report_fault(const std::string& model, const std::string& fault) {
  for (const auto& ladder : options_.ladders)
    if (ladder->has(model)) ladder->report_fault(model, fault);
}

// On the administration's thread, or the one that tends models, so that no I/O thread frees it. Requests that have it
// finish with it.
void Service::retire(Served old) {
  if (old == nullptr) return;
  const auto until = std::chrono::steady_clock::now() + kLongestUse;
  while (old.use_count() > 1 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kLookForUsers);
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

// The one it replaces, else another that computes.
const Scorer* Service::queue_owner(size_t place, Served& held) const {
  for (size_t m = 0; m <= slots_.size(); ++m) {
    const Slot& slot = *slots_[m == 0 ? place : m - 1];
    std::lock_guard lock(slot.mutex);
    if (slot.served == nullptr || slot.kind == ModelKind::rules) continue;
    held = slot.served;
    return held->scorer.get();
  }
  return nullptr;
}

Served Service::reopened(size_t place, const Scorer* beside, bool stays) {
  const std::string& name = options_.models[place].name;
  auto opened = std::make_shared<const ServedModel>(options_.reopen(name, beside, stays));
  if (slots_[place]->opened && opened->scorer->kind() != slots_[place]->kind)
    fail(ErrorCode::bad_model, "{}: is of another kind now", name);
  return opened;
}

std::string Service::open_model(size_t place) {
  const std::string& name = options_.models[place].name;
  Slot& slot = *slots_[place];
  bool there;
  {
    std::lock_guard lock(slot.mutex);
    there = slot.served != nullptr;
    if (!there) slot.state = "loading";
  }
  Served opened;
  std::string problem;
  bool no_room = false;
  try {
    Served held;
    const Scorer* beside = queue_owner(place, held);
    opened = reopened(place, beside, there);
  } catch (const Error& error) {
    problem = error.what();
    no_room = error.code() == ErrorCode::does_not_fit;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (there && no_room) return replace_model(place);
  if (opened == nullptr) {
    {
      std::lock_guard lock(slot.mutex);
      slot.fault = problem;
      if (slot.served == nullptr) slot.state = "failed";
    }
    if (!there) report_fault(name, problem);
    log_warning("{} is not loaded: {}", name, problem);
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

// The one that is there leaves the device, and requests wait, until its successor came. Where that does not, the old
// one comes back from its files, if they still are the ones it had.
std::string Service::replace_model(size_t place) {
  const std::string& name = options_.models[place].name;
  Slot& slot = *slots_[place];
  Served old, next;
  {
    std::lock_guard lock(slot.mutex);
    old = std::exchange(slot.served, nullptr);
    slot.replacing = true;
    slot.state = "loading";
  }
  forget_gates(name);  // whichever comes is measured
  log_info("{}: requests wait while it is replaced, there is no room for both", name);
  std::string problem;
  try {
    const int64_t since = now_ns();
    while (old.use_count() > 1 || old->scorer.use_count() > 1) {  // what it was given is finished first
      if (seconds_since(since) > options_.queue_seconds + kLongestBatch)
        fail(ErrorCode::busy, "{}: there is no room beside the one it replaces, and a job or stream still uses that",
             name);
      std::this_thread::sleep_for(kLookForUsers);
    }
    old->scorer->park();
    try {
      next = reopened(place, old->scorer.get(), false);
    } catch (const Error& error) {
      // Its batches may leave no room in a queue that was made for the old one's. Where that is lost anyway, as its
      // files are others now, and is alone there, the queue goes with it.
      Served other;
      if (error.code() != ErrorCode::does_not_fit || old->scorer->residence() != Residence::disk ||
          !options_.revision_of || options_.revision_of(name) == old->revision || queue_owner(place, other) != nullptr)
        throw;
      old.reset();
      next = reopened(place, nullptr, false);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (next == nullptr && old != nullptr) {
    try {
      old->scorer->load_weights();
      next = std::move(old);
    } catch (const std::exception& error) {
      problem += fmt::format("; the one before cannot come back: {}", error.what());
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
  for (const auto& [thread, waiting] : held) go_on(thread, waiting);
  if (problem.empty())
    log_info("{} is loaded", name);
  else
    log_warning("{} is not replaced: {}", name, problem);
  next.reset();
  retire(std::move(old));
  return problem;
}

void Service::close_model(size_t place) {
  Slot& slot = *slots_[place];
  Served old;
  {
    std::lock_guard lock(slot.mutex);
    old = std::exchange(slot.served, nullptr);
    slot.state = "disk";
    slot.failed_ns = 0;
    slot.fault.clear();
  }
  report_fault(options_.models[place].name, "it was unloaded");
  log_info("{} is unloaded", options_.models[place].name);
  retire(std::move(old));
}

// Keys and certificate from their files, and models that failed or whose files changed. What is wrong leaves things as
// they are.
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
  if (problems.empty())
    log_info("reloaded: keys are read anew, {} of {} models were opened anew", opened, slots_.size());
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

// What all threads do for a while, as a trace for ui.perfetto.dev, other administration too.
void Service::trace(Call& call) {
  const std::string asked = query_value(call.exchange->query(), "seconds");
  double seconds = 1;
  const auto [end, problem] = std::from_chars(asked.data(), asked.data() + asked.size(), seconds);
  const bool read = asked.empty() || (problem == std::errc() && end == asked.data() + asked.size());
  if (!read || !(seconds > 0) || seconds > kLongestTrace)
    throw invalid(fmt::format("`seconds` must be a number above 0, at most {}", kLongestTrace));
  if (tracing_.exchange(true)) throw Refusal{409, "Validation", "another trace is being taken", retry_after(seconds)};
  run_on(tracer_, call, [this, seconds] {
    Timeline::clear();
    Timeline::enable(true);
    const int64_t since = now_ns();
    while (seconds_since(since) < seconds && !draining_) std::this_thread::sleep_for(kLookForUsers);
    Timeline::enable(false);
    tracing_ = false;
    return BlockingAnswer{200, Timeline::chrome_trace()};
  });
}

// NAME/pin?rung=MODEL: that rung answers until NAME/unpin.
void Service::pin_ladder(Call& call, std::string_view path) {
  const size_t slash = std::min(path.rfind('/'), path.size());
  const std::string name = percent_decoded(path.substr(0, slash));
  const std::string_view verb = path.substr(std::min(slash + 1, path.size()));
  const auto ladder = std::find_if(options_.ladders.begin(), options_.ladders.end(),
                                   [&](const auto& l) { return l->rules().name == name; });
  if (ladder == options_.ladders.end() || (verb != "pin" && verb != "unpin"))
    throw Refusal{404, "NotFound",
                  "a ladder of this server is pinned by NAME/pin?rung=MODEL and unpinned by NAME/unpin"};
  if (verb == "unpin") {
    (*ladder)->unpin();
  } else {
    try {
      (*ladder)->pin(query_value(call.exchange->query(), "rung"));
    } catch (const Error& error) {
      throw invalid(error.what());
    }
  }
  const LadderView view = (*ladder)->view(unix_now());
  answer(call,
         nlohmann::json{{"ladder", view.name}, {"active", view.active}, {"reason", reason_name(view.reason)}}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Service::admin(Call& call) {
  std::string_view path = call.exchange->path().substr(std::string_view("/admin/").size());
  log_info("{} by {} from {}", call.exchange->path(), call.key_name.empty() ? "a client without a key" : call.key_name,
           call.exchange->client());
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
  const Refusal none{
      404, "NotFound",
      "there are /admin/models/NAME/load, park, unload and reload, /admin/ladders/NAME/pin?rung=MODEL and "
      "unpin, /admin/reload, /admin/drain"};
  constexpr std::string_view kModels = "models/";
  const size_t slash = path.rfind('/');
  if (!path.starts_with(kModels) || slash < kModels.size()) throw none;
  const std::string name = percent_decoded(path.substr(kModels.size(), slash - kModels.size())),
                    verb(path.substr(slash + 1));
  if (verb != "load" && verb != "park" && verb != "unload" && verb != "reload") throw none;
  const auto place = static_cast<size_t>(find_model(name));
  if ((verb == "load" || verb == "reload") && !options_.reopen)
    throw Refusal{424, "Backend", "this server's models cannot be opened again"};
  const auto state = [this, place, name] {
    std::lock_guard lock(slots_[place]->mutex);
    return nlohmann::json{{"model", name}, {"state", slots_[place]->state_now()}}.dump();
  };
  const auto work = [this, place, verb, state] {
    Served served;
    {
      std::lock_guard lock(slots_[place]->mutex);
      served = slots_[place]->served;
    }
    std::string problem;
    try {
      if (verb == "park" && served != nullptr) served->scorer->park();
      if (verb == "load" && served != nullptr) served->scorer->load_weights();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const bool there = served != nullptr;
    served.reset();
    if (verb == "unload" && there) close_model(place);
    if (verb == "reload" || (verb == "load" && !there)) problem = open_model(place);
    if (!problem.empty()) throw Refusal{409, "Backend", problem};
    return BlockingAnswer{200, state()};
  };
  if (query_value(call.exchange->query(), "wait") != "false") return run_on(admin_, call, work);
  admin_.call([work] {
    try {
      work();
    } catch (const Refusal&) {  // health says it
    } catch (const std::exception& error) {
      log_warning("a model's administration: {}", error.what());
    }
  });
  call.done = true;
  call.exchange->answer({.status = 202, .body = state(), .fields = fmt::format("X-Request-Id: {}\r\n", call.id)});
}

}  // namespace brim::serve
