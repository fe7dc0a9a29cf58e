// SPDX-License-Identifier: Apache-2.0
// Admin routes: load, park, unload and reload models, reload keys, pin ladders, drain.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

constexpr double kLongestTrace = 30;  // seconds
constexpr auto kTracePollInterval = std::chrono::milliseconds(5);

std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Records the activity of all threads as a trace for ui.perfetto.dev. Has its own thread, so other admin calls proceed.
std::optional<Reply> trace(RequestContext& context) {
  ServerParts& server = context.server;
  const std::string value = query_value(context.call.exchange->query(), "seconds");
  double seconds = 1;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  const bool valid = value.empty() || (problem == std::errc() && end == value.data() + value.size());
  if (!valid || !(seconds > 0) || seconds > kLongestTrace)
    throw invalid(fmt::format("`seconds` must be above 0 and at most {}", kLongestTrace));
  if (server.tracing.exchange(true)) throw Refusal{409, "Validation", "another trace is running", retry_after(seconds)};
  return server.dispatcher.run_on(server.tracer, context.call, [&server, seconds] {
    Timeline::clear();
    Timeline::enable(true);
    const int64_t since = now_ns();
    while (seconds_since(since) < seconds && !server.state.draining) std::this_thread::sleep_for(kTracePollInterval);
    Timeline::enable(false);
    server.tracing = false;
    return Reply{.body = Timeline::chrome_trace()};
  });
}

// NAME/pin?rung=MODEL fixes the rung until NAME/unpin.
Reply pin_ladder(RequestContext& context, std::string_view path) {
  const size_t slash = std::min(path.rfind('/'), path.size());
  const std::string name = percent_decoded(path.substr(0, slash));
  const std::string_view verb = path.substr(std::min(slash + 1, path.size()));
  const auto& ladders = context.server.models.ladders();
  const auto ladder = std::ranges::find_if(ladders, [&](const auto& l) { return l->rules().name == name; });
  if (ladder == ladders.end() || (verb != "pin" && verb != "unpin"))
    throw Refusal{404, "NotFound", "unknown ladder or action (use NAME/pin?rung=MODEL or NAME/unpin)"};
  if (verb == "unpin") {
    (*ladder)->unpin();
  } else {
    try {
      (*ladder)->pin(query_value(context.call.exchange->query(), "rung"));
    } catch (const Error& error) {
      throw invalid(error.what());
    }
  }
  // A pin may end before the next sample.
  context.server.telemetry.note_rung(static_cast<size_t>(ladder - ladders.begin()));
  const LadderView view = (*ladder)->view(context.server.models.unix_now());
  return {.body = json_text({{"ladder", view.name}, {"active", view.active}, {"reason", reason_name(view.reason)}})};
}

std::string state_json(const ModelRegistry& models, size_t index, const std::string& name) {
  return nlohmann::json{{"model", name}, {"state", models.status(index).state}}.dump();
}

// Runs on the models' thread.
Reply change_model(ModelRegistry& models, size_t index, const std::string& name, const std::string& verb) {
  Served served = models.status(index).served;
  std::string problem;
  try {
    if (verb == "park" && served != nullptr) served->scorer->park();
    if (verb == "load" && served != nullptr) served->scorer->load_weights();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const bool was_loaded = served != nullptr;
  served.reset();
  // A model that failed to load leaves its fault and retries behind.
  if (verb == "unload" && (was_loaded || !models.status(index).fault.empty())) models.close(index);
  if (verb == "reload" || (verb == "load" && !was_loaded)) problem = models.open(index);
  if (!problem.empty()) throw Refusal{409, "Backend", problem};
  return {.body = state_json(models, index, name)};
}

std::optional<Reply> admin_model(RequestContext& context, std::string_view path, const Refusal& unknown) {
  ModelRegistry& models = context.server.models;
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) throw Refusal(unknown);
  const std::string name = percent_decoded(path.substr(0, slash)), verb(path.substr(slash + 1));
  if (verb != "load" && verb != "park" && verb != "unload" && verb != "reload") throw Refusal(unknown);
  const auto index = static_cast<size_t>(models.find(name));
  if ((verb == "load" || verb == "reload") && !models.can_open())
    throw Refusal{424, "Backend", "this server cannot load models"};
  const auto work = [&models, index, name, verb] { return change_model(models, index, name, verb); };
  if (query_value(context.call.exchange->query(), "wait") != "false")
    return context.server.dispatcher.run_on(models.thread(), context.call, work);
  models.thread().call([work] {
    try {
      work();
    } catch (const Refusal&) {  // reported by /health
    } catch (const std::exception& error) {
      log_warning("admin request failed: {}", error.what());
    }
  });
  return Reply{.status = 202, .body = state_json(models, index, name)};
}

// NAME/load?path=DIR adds an adapter if it is new and loads it; NAME/unload.
std::optional<Reply> admin_adapter(RequestContext& context, std::string_view path, const Refusal& unknown) {
  ModelRegistry& models = context.server.models;
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) throw Refusal(unknown);
  const std::string name = percent_decoded(path.substr(0, slash)), verb(path.substr(slash + 1));
  if (verb != "load" && verb != "unload") throw Refusal(unknown);
  const std::string dir = query_value(context.call.exchange->query(), "path");
  if (verb == "unload" && models.base(static_cast<size_t>(models.find(name))).empty())
    throw Refusal{409, "Backend", fmt::format("{} is a model, not an adapter", name)};
  return context.server.dispatcher.run_on(models.thread(), context.call, [&models, name, verb, dir] {
    const size_t index = verb == "load" && (models.index_of(name) < 0 || !dir.empty())
                             ? models.add_adapter(name, dir)
                             : static_cast<size_t>(models.find(name));
    return change_model(models, index, name, verb);
  });
}

std::optional<Reply> admin(RequestContext& context) {
  const Call& call = context.call;
  ServerParts& server = context.server;
  const std::string_view path = call.exchange->path().substr(std::string_view("/admin/").size());
  log_info("{} by {} from {}", call.exchange->path(),
           call.key_name.empty() ? "a client without an API key" : call.key_name, call.exchange->client());
  if (path == "drain") {
    server.state.drain_wanted = true;
    return Reply{.body = R"({"state":"draining"})"};
  }
  if (path == "reload")
    return server.dispatcher.run_on(server.models.thread(), context.call, [&server] {
      const std::vector<std::string> problems = server.reload();
      return Reply{.status = problems.empty() ? 200 : 424, .body = json_text({{"problems", problems}})};
    });
  constexpr std::string_view kLadders = "ladders/", kModels = "models/", kAdapters = "adapters/";
  if (path.starts_with(kLadders)) return pin_ladder(context, path.substr(kLadders.size()));
  const Refusal unknown{404, "NotFound",
                        "unknown admin route (use /admin/models/NAME/load, park, unload or reload, "
                        "/admin/adapters/NAME/load?path=DIR or unload, "
                        "/admin/ladders/NAME/pin?rung=MODEL or unpin, /admin/reload, /admin/drain)"};
  if (path.starts_with(kAdapters)) return admin_adapter(context, path.substr(kAdapters.size()), unknown);
  if (!path.starts_with(kModels)) throw Refusal(unknown);
  return admin_model(context, path.substr(kModels.size()), unknown);
}

constexpr Route kAdminRoutes[] = {
    {"GET", "/trace", Scope::admin, kTei, false, trace},
    {"POST", "/admin/*", Scope::admin, kTei, false, admin},
};

}  // namespace

Routes admin_routes() { return kAdminRoutes; }

}  // namespace brim::serve
