// SPDX-License-Identifier: Apache-2.0
#include "serve/serve_config.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/settings.h"
#include "base/units.h"
#include "engine/entity_task.h"
#include "engine/option_types.h"
#include "engine/zero_shot.h"
#include "hub/model_dir.h"
#include "io/yaml_file.h"
#include "jobs/compare.h"

namespace brim::serve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNewYorkZone = "America/New_York";

// A YAML mapping with a fixed set of keys.
class ConfigBlock {
 public:
  ConfigBlock(const YAML::Node& node, const fs::path& file, std::string what, const std::vector<std::string>& keys)
      : node_(node), file_(file), what_(std::move(what)) {
    if (!node.IsMap()) fail(ErrorCode::usage, "{}: {}: must be a mapping", where(node), what_);
    std::set<std::string> seen;
    for (const auto& item : node) {
      const std::string key = item.first.IsScalar() ? item.first.Scalar() : "(not a scalar)";
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse_key(key, fmt::format("{}: {}", where(item.first), what_), nearest_name(key, keys));
      if (!seen.insert(key).second) fail(ErrorCode::usage, "{}: {}: duplicate key {}", where(item.first), what_, key);
    }
  }

  std::string where(const YAML::Node& node) const { return fmt::format("{}:{}", file_.string(), node.Mark().line + 1); }
  std::string where() const { return where(node_); }
  bool has(const char* key) const { return static_cast<bool>(node_[key]); }
  YAML::Node node(const char* key) const { return node_[key]; }

  std::string text(const char* key, const std::string& fallback = "") const {
    const YAML::Node value = node_[key];
    if (!value) return fallback;
    if (!value.IsScalar() || value.Scalar().empty()) refuse(key, "must be a single value");
    return value.Scalar();
  }
  std::string required(const char* key) const {
    if (!has(key)) fail(ErrorCode::usage, "{}: {}: missing key {}", where(), what_, key);
    return text(key);
  }
  // Parses the value with `read`, which throws BadValue.
  template <class Read>
  auto value(const char* key, Read read, decltype(read("")) fallback) const {
    if (!has(key)) return fallback;
    try {
      return read(text(key));
    } catch (const BadValue& bad) {
      refuse(key, bad.what);
    }
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> all;
    const YAML::Node value = node_[key];
    if (value && value.IsScalar()) all.push_back(text(key));
    for (size_t i = 0; value && value.IsSequence() && i < value.size(); ++i) {
      if (!value[i].IsScalar()) refuse(key, "must be a list of scalars");
      all.push_back(value[i].Scalar());
    }
    return all;
  }
  std::map<std::string, std::string> string_map(const char* key) const {
    std::map<std::string, std::string> all;
    const YAML::Node value = node_[key];
    if (!value) return all;
    if (!value.IsMap()) refuse(key, "must be a mapping of strings to strings");
    for (const auto& item : value) {
      const bool strings = item.first.IsScalar() && item.second.IsScalar() && !item.second.Scalar().empty();
      if (!strings || !all.emplace(item.first.Scalar(), item.second.Scalar()).second)
        refuse(key, "each key must be unique and have a non-empty value");
    }
    return all;
  }
  // Calls `each` for every element of a list.
  template <class Each>
  void list(const char* key, Each each) const {
    const YAML::Node value = node_[key];
    if (!value) return;
    if (!value.IsSequence()) refuse(key, "must be a list");
    for (size_t i = 0; i < value.size(); ++i) each(value[i]);
  }
  [[noreturn]] void refuse(const char* key, const std::string& what) const {
    const YAML::Node value = node_[key];
    const std::string given = value.IsScalar() ? ": " + value.Scalar() : "";
    fail(ErrorCode::usage, "{}: {}: {}{}: {}", where(value), what_, key, given, what);
  }
  const fs::path& file() const { return file_; }
  const std::string& what() const { return what_; }

 private:
  YAML::Node node_;
  const fs::path& file_;
  std::string what_;
};

// Labels of an NLI model, which ladders, queues and jobs then use like any classifier.
std::optional<ZeroShot> read_zero_shot(const ConfigBlock& in) {
  if (!in.has("candidate_labels")) {
    for (const char* key : {"hypothesis_template", "multi_label"})
      if (in.has(key)) in.refuse(key, "requires candidate_labels");
    return std::nullopt;
  }
  if (in.has("builtin")) in.refuse("candidate_labels", "not supported by VADER");
  ZeroShot zero_shot;
  zero_shot.labels = in.texts("candidate_labels");
  zero_shot.text_template = in.text("hypothesis_template", zero_shot.text_template);
  const std::string several = in.text("multi_label", "false");
  if (several != "true" && several != "false") in.refuse("multi_label", "must be true or false");
  zero_shot.multi_label = several == "true";
  try {
    engine::check_zero_shot(zero_shot, {.labels = "candidate_labels", .pattern = "hypothesis_template"});
  } catch (const Error& e) {
    fail(e.code(), "{}: {}: {}", in.where(), in.what(), e.what());
  }
  return zero_shot;
}

// Labels of a GLiNER model, which requests without labels, jobs and row streams then use like a tagger's.
std::optional<EntityLabels> read_entities(const ConfigBlock& in) {
  if (!in.has("entities")) {
    for (const char* key : {"threshold", "nested"})
      if (in.has(key)) in.refuse(key, "requires entities");
    return std::nullopt;
  }
  if (in.has("builtin")) in.refuse("entities", "not supported by VADER");
  if (in.has("candidate_labels")) in.refuse("entities", "cannot be combined with candidate_labels");
  EntityLabels entities;
  entities.labels = in.texts("entities");
  if (in.has("threshold")) {
    const std::string written = in.text("threshold");
    char* end = nullptr;
    entities.threshold = std::strtof(written.c_str(), &end);
    if (end != written.c_str() + written.size()) in.refuse("threshold", "must be a number from 0 to 1");
  }
  const std::string nested = in.text("nested", "false");
  if (nested != "true" && nested != "false") in.refuse("nested", "must be true or false");
  entities.nested = nested == "true";
  try {
    engine::check_entity_labels(entities, {.labels = "entities", .threshold = "threshold"});
  } catch (const Error& e) {
    fail(e.code(), "{}: {}: {}", in.where(), in.what(), e.what());
  }
  return entities;
}

// Names appear in URL paths and metric labels.
void check_name(const ConfigBlock& in, const YAML::Node& key, const std::string& name) {
  const bool valid = !name.empty() && name.size() <= 64 && name[0] != '.' &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                     });
  if (!valid)
    fail(ErrorCode::usage, "{}: {}: {}: invalid name (use up to 64 letters, digits, -, _ and .)", in.where(key),
         in.what(), name);
}

double read_share(std::string_view text) {
  try {
    return jobs::parse_share(std::string(text));
  } catch (const Error&) {
    throw BadValue{"must be a share such as 2% or 0.02"};
  }
}

double read_ms(std::string_view text) {
  const double ms = read_number(text);
  if (!(ms > 0)) throw BadValue{"must be positive"};
  return ms;
}

int64_t read_count(std::string_view text) {
  const int64_t count = read_whole_number(text);
  if (count < 0) throw BadValue{"must not be negative"};
  return count;
}

Pooling read_pooling(std::string_view text) {
  for (const auto& [name, pooling] : {std::pair("auto", Pooling::automatic), std::pair("mean", Pooling::mean),
                                      std::pair("cls", Pooling::cls), std::pair("none", Pooling::none)})
    if (text == name) return pooling;
  throw BadValue{"must be auto, mean, cls or none"};
}

int64_t read_size(std::string_view text) {
  int64_t count = 0;
  try {
    count = read_whole_number(text);
  } catch (const BadValue&) {  // the same bounds as for a number that is too small
  }
  if (count < 1 || count > 100'000) throw BadValue{"must be a whole number from 1 to 100,000"};
  return count;
}

std::string read_calendar_file(const fs::path& path, const std::string& where) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::usage, "{}: cannot read {}", where, path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

// Paths in the YAML file are relative to its directory.
std::string relative_to(const fs::path& file, const std::string& named) {
  return named.empty() ? named : (file.parent_path() / named).lexically_normal().string();
}

GateLimits limits_of(const ConfigBlock& block, const GateLimits& fallback) {
  return {block.value("max_loss", read_share, fallback.max_loss),
          block.value("min_agreement", read_share, fallback.min_agreement)};
}

double read_lead(std::string_view text) {
  const double seconds = read_seconds(text);
  if (seconds < 0 || seconds > 86'400) throw BadValue{"must be a time such as 30s or 5m, at most one day"};
  return seconds;
}

Schedule schedule_of(const ConfigBlock& ladder, LadderRules& rules) {
  const ConfigBlock in(ladder.node("schedule"), ladder.file(), ladder.what() + ": schedule",
                       {"zone", "calendar", "calendar_file", "open", "extended", "closed", "times", "lead"});
  rules.lead_seconds = in.value("lead", read_lead, rules.lead_seconds);
  TimeZone zone = TimeZone::load(in.text("zone", kNewYorkZone));
  if (!in.has("times")) {
    if (const std::string name = in.required("calendar"); name != "nyse")
      in.refuse("calendar", "must be nyse (or use `times`)");
    MarketRungs rungs{MarketCalendar::nyse(), in.required("open"), in.text("extended", in.text("open")),
                      in.text("closed")};
    if (in.has("calendar_file")) {
      const std::string path = relative_to(in.file(), in.text("calendar_file"));
      rungs.calendar.read_exceptions(read_calendar_file(path, in.where(in.node("calendar_file"))), path);
    }
    return {std::move(zone), std::move(rungs)};
  }
  for (const char* key : {"calendar", "calendar_file", "open", "extended", "closed"})
    if (in.has(key)) in.refuse(key, "cannot be combined with `times`");
  std::vector<TimedRung> times;
  in.list("times", [&](const YAML::Node& node) {
    const ConfigBlock span(node, in.file(), in.what() + ": times", {"days", "from", "to", "rung"});
    const auto days = [](std::string_view text) {
      const auto all = weekdays_of(text);
      return all ? *all : throw BadValue{"must be days such as mon-fri or sat,sun"};
    };
    const auto minute = [](std::string_view text) {
      const auto minutes = minute_of_day(text);
      return minutes ? *minutes : throw BadValue{"must be a time such as \"07:00\""};
    };
    times.push_back({span.value("days", days, uint8_t{0x7F}), span.value("from", minute, 0),
                     span.value("to", minute, 24 * 60), span.required("rung")});
  });
  return {std::move(zone), std::move(times)};
}

LadderRules ladder_of(const ConfigBlock& in, const std::string& name) {
  LadderRules rules;
  rules.name = name;
  rules.location = in.where();
  rules.default_rung = in.text("default");
  if (in.has("gate")) {
    const ConfigBlock gate(in.node("gate"), in.file(), in.what() + ": gate",
                           {"data", "text", "label", "max_loss", "min_agreement", "against"});
    rules.gate = {relative_to(in.file(), gate.text("data")), gate.text("text"), gate.text("label"),
                  gate.text("against"), limits_of(gate, {})};
  }
  in.list("rungs", [&](const YAML::Node& node) {
    if (node.IsScalar()) {
      rules.rungs.push_back({node.Scalar(), std::nullopt});
      return;
    }
    const ConfigBlock rung(node, in.file(), in.what() + ": rungs", {"model", "max_loss", "min_agreement"});
    rules.rungs.push_back({rung.required("model"), limits_of(rung, rules.gate.limits)});
  });
  in.list("sources", [&](const YAML::Node& node) {
    const ConfigBlock source(node, in.file(), in.what() + ": sources", {"match", "rung", "wake"});
    rules.sources.push_back({source.texts("match"), source.required("rung"), source.value("wake", read_truth, false)});
    if (rules.sources.back().match.empty()) fail(ErrorCode::usage, "{}: sources: missing key match", source.where());
  });
  if (in.has("schedule")) rules.schedule = schedule_of(in, rules);
  if (in.has("load")) {
    const ConfigBlock load(in.node("load"), in.file(), in.what() + ": load",
                           {"spill_over_ms", "back_under_ms", "floor"});
    LoadRules limits;
    limits.spill_over_ms = load.value("spill_over_ms", read_ms, limits.spill_over_ms);
    limits.back_under_ms = load.value("back_under_ms", read_ms, std::min(limits.back_under_ms, limits.spill_over_ms));
    limits.floor = load.text("floor");
    rules.load = limits;
  }
  return rules;
}

QueueRules queue_of(const ConfigBlock& in, const std::string& name) {
  QueueRules rules;
  rules.name = name;
  rules.location = in.where();
  if (in.has("model") && in.has("ladder")) in.refuse("ladder", "cannot be combined with `model`");
  rules.model = in.text(in.has("ladder") ? "ladder" : "model");
  rules.flush_size = in.value("flush_size", read_size, rules.flush_size);
  rules.flush_tokens = in.value("flush_tokens", read_count, rules.flush_tokens);
  rules.flush_age_ms = in.value("flush_age_ms", read_count, rules.flush_age_ms);
  rules.immediate = in.value("immediate", read_truth, rules.immediate);
  if (in.has("apply")) {
    const ConfigBlock apply(in.node("apply"), in.file(), in.what() + ": apply",
                            {"compound", "label", "score", "entities", "error", "reason", "instead_of"});
    // Only the given fields are added; errors are always reported.
    rules.apply = {apply.text("compound"),
                   apply.text("label"),
                   apply.text("score"),
                   apply.text("entities"),
                   apply.text("error", rules.apply.error),
                   apply.text("reason"),
                   apply.text("instead_of")};
  }
  return rules;
}

template <class Rules>
std::string described(const char* kind, const Rules& rules) {
  return fmt::format("{}{}{} {}", rules.location, rules.location.empty() ? "" : ": ", kind, rules.name);
}

[[noreturn]] void refuse_model(const std::string& subject, const std::string& name,
                               const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  fail(ErrorCode::usage, "{}: unknown model {}{}", subject, name,
       !near.empty()   ? fmt::format("; did you mean {}?", near)
       : names.empty() ? "; add it under models"
                       : fmt::format("; use one of {}, or add it under models", some_names(names)));
}

void check_rungs(const LadderRules& ladder, const ServeConfig& config) {
  std::vector<std::string> names;
  for (const ModelEntry& model : config.models) names.push_back(model.name);
  for (const RungRules& rung : ladder.rungs)
    if (std::ranges::find(names, rung.model) == names.end())
      refuse_model(described("ladder", ladder) + ": rungs", rung.model, names);
}

// Calls `each` for every entry of a mapping from names to blocks.
template <class Each>
void each_named(const YAML::Node& root, const char* section, const fs::path& file, const std::vector<std::string>& keys,
                Each each) {
  const YAML::Node all = root[section];
  if (!all) return;
  if (!all.IsMap())
    fail(ErrorCode::usage, "{}:{}: {}: must be a mapping of names to settings", file.string(), all.Mark().line + 1,
         section);
  std::set<std::string> seen;
  for (const auto& item : all) {
    const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
    const ConfigBlock block(item.second, file, fmt::format("{}: {}", section, name), keys);
    check_name(block, item.first, name);
    if (!seen.insert(name).second)
      fail(ErrorCode::usage, "{}: {}: duplicate name {}", block.where(item.first), section, name);
    each(block, name);
  }
}

}  // namespace

double read_seconds(std::string_view text) {
  static constexpr std::pair<const char*, double> kUnits[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  if (text == "-1" || text == "never") return -1;
  double unit = 1;
  for (const auto& [name, seconds] : kUnits)
    if (text.ends_with(name)) {
      unit = seconds;
      text.remove_suffix(std::string_view(name).size());
      break;
    }
  const double number = [&] {
    try {
      return read_number(text);
    } catch (const BadValue&) {
      throw BadValue{"must be a time such as 30s, 10m or 2h, or never"};
    }
  }();
  if (!(number >= 0) || number > 1e9) throw BadValue{"must be a time such as 30s, 10m or 2h, or never"};
  return number * unit;
}

ServeConfig read_serve_config(const fs::path& path, const std::vector<std::string>& settings, const char* setting) {
  const YAML::Node root = io::load_yaml(path, setting);
  std::vector<std::string> keys = settings;
  for (const char* section : {"models", "ladders", "queues", "allowed_host"}) keys.emplace_back(section);
  const ConfigBlock top(root, path, "serve", keys);
  ServeConfig config;
  for (const std::string& key : settings)
    if (top.has(key.c_str())) config.settings.push_back({key, top.text(key.c_str()), top.where(top.node(key.c_str()))});
  config.allowed_hosts = top.texts("allowed_host");
  each_named(root, "models", path,
             {"path", "builtin", "precision", "keep_alive", "pooling", "labels", "candidate_labels",
              "hypothesis_template", "multi_label", "entities", "threshold", "nested", "adapter"},
             [&](const ConfigBlock& in, const std::string& name) {
               if (in.has("path") == in.has("builtin"))
                 fail(ErrorCode::usage, "{}: {}: exactly one of `path` and `builtin` is required", in.where(),
                      in.what());
               if (in.has("builtin") && in.text("builtin") != "vader") in.refuse("builtin", "must be vader");
               ModelEntry entry{.name = name, .path = in.has("builtin") ? "vader" : in.text("path")};
               entry.precision = in.value("precision", engine::read_precision, Precision());
               // A path starting with a dot is relative to the file; anything else is a model name.
               if (entry.path.starts_with('.')) entry.path = relative_to(path, entry.path);
               if (in.has("pooling") && in.has("builtin"))
                 in.refuse("pooling", "not supported by VADER, which has no embeddings");
               if (in.has("pooling")) entry.pooling = in.value("pooling", read_pooling, Pooling::mean);
               if (in.has("labels") && in.has("builtin")) in.refuse("labels", "not supported by VADER");
               entry.labels = in.string_map("labels");
               entry.zero_shot = read_zero_shot(in);
               entry.entities = read_entities(in);
               if (in.has("adapter") && in.has("builtin")) in.refuse("adapter", "not supported by VADER");
               if (in.has("adapter")) entry.adapter = in.text("adapter");
               if (entry.adapter.starts_with('.')) entry.adapter = relative_to(path, entry.adapter);
               if (in.has("keep_alive")) entry.keep_alive_seconds = in.value("keep_alive", read_seconds, 0.0);
               config.models.push_back(std::move(entry));
             });
  each_named(root, "ladders", path, {"rungs", "default", "gate", "sources", "schedule", "load"},
             [&](const ConfigBlock& in, const std::string& name) {
               config.ladders.push_back(ladder_of(in, name));
               check_rungs(config.ladders.back(), config);  // else a misspelt rung is suggested for its correct name
               try {
                 Ladder checked(config.ladders.back());
               } catch (const Error& e) {
                 fail(e.code(), "{}: {}", in.where(), e.what());
               }
             });
  each_named(root, "queues", path,
             {"model", "ladder", "flush_size", "flush_tokens", "flush_age_ms", "immediate", "apply"},
             [&](const ConfigBlock& in, const std::string& name) { config.queues.push_back(queue_of(in, name)); });
  check_names(config);
  return config;
}

ServeConfig config_from_env(const std::function<std::optional<std::string>(const char* name)>& get) {
  const auto read = [&](const char* key, auto reader, decltype(reader("")) fallback) {
    const auto value = get(key);
    return value ? read_setting(key, *value, reader) : fallback;
  };
  const bool adaptive = read("FEATURE_ADAPTIVE_SENTIMENT", read_truth, false);
  const auto named = get("SENTIMENT_MODEL_NAME"), batch = get("SENTIMENT_BATCH_SIZE");
  if (!adaptive && !named && !batch) return {};
  ServeConfig config;
  LadderRules ladder;
  ladder.name = "sentiment";
  // A rung is named after its model; for a directory, after its last component.
  const auto add = [&](const std::string& model) {
    const fs::path path = fs::path(model).lexically_normal();
    const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    if (std::none_of(config.models.begin(), config.models.end(), [&](const ModelEntry& m) { return m.name == name; })) {
      ladder.rungs.push_back({name, std::nullopt});
      config.models.push_back({.name = name, .path = model});
    }
    return name;
  };
  // The schedule of an adaptive ladder covers every hour, so another default only serves requests that name it.
  if (named || !adaptive) ladder.default_rung = add(named.value_or("finbert"));
  if (adaptive) {
    const std::string open = add(get("SENTIMENT_MODEL_OPEN").value_or("distilbert"));
    const std::string closed = add(get("SENTIMENT_MODEL_CLOSED").value_or("vader"));
    if (ladder.default_rung.empty()) ladder.default_rung = open;
    if (hub::names_vader(closed))  // free the GPU while VADER answers
      for (const char* key : {"keep_alive", "release_device_after"})
        config.settings.push_back({key, "10m", "FEATURE_ADAPTIVE_SENTIMENT"});
    ladder.schedule = Schedule(TimeZone::load(kNewYorkZone), MarketRungs{MarketCalendar::nyse(), open, open, closed});
    const auto market = [](std::string_view text) {
      const auto fixed = market_of(text);
      return fixed ? fixed : throw BadValue{"must be open, extended or closed"};
    };
    if (const auto fixed = read("MARKET_STATUS_OVERRIDE", market, std::optional<Market>()))
      ladder.schedule->fix_market(*fixed);
  }
  QueueRules queue;
  queue.name = ladder.name;
  queue.model = ladder.name;
  queue.flush_size = read("SENTIMENT_BATCH_SIZE", read_size, queue.flush_size);
  config.ladders.push_back(std::move(ladder));
  config.queues.push_back(std::move(queue));
  return config;
}

void check_names(const ServeConfig& config) {
  std::vector<std::string> names;
  for (const ModelEntry& model : config.models) names.push_back(model.name);
  const auto known = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const LadderRules& ladder : config.ladders) check_rungs(ladder, config);
  for (const LadderRules& ladder : config.ladders) {
    if (known(ladder.name))
      fail(ErrorCode::usage, "{}: the name is already used by a model or ladder", described("ladder", ladder));
    names.push_back(ladder.name);
  }
  for (const QueueRules& queue : config.queues)
    if (!queue.model.empty() && !known(queue.model)) refuse_model(described("queue", queue), queue.model, names);
}

void share_bases(ServeConfig& config) {
  for (const ModelEntry& adapter : config.models)
    for (ModelEntry& model : config.models)
      if (!adapter.adapter.empty() && model.path == adapter.path) model.share_base = true;
}

}  // namespace brim::serve
