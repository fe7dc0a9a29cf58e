// SPDX-License-Identifier: Apache-2.0
#include "cli/serve_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "hub/model_dir.h"
#include "serve/zero_shot.h"

namespace brim::cli {
namespace {

// Duration of a bulk batch (jobs, /score) that a submitted text may have to wait for. On an H200 with bulk load, 2,000
// texts per second have a p99 of 5.0 ms, and 5.7 ms with a value of 3 ms; bulk throughput drops to 0.90 and 0.91.
constexpr double kBulkSeconds = 0.0025;

// Adds the head of a tagger with the same encoder to a classifier, based on their current files.
void add_tagger(OpenModels& open, serve::ServedModel& model, ScorerOptions& options) {
  const std::optional<size_t> tagger = open.encoders.tagger_of(options, open.options);
  options.tagger = tagger ? open.options[*tagger].model : "";
  model.tagger = tagger ? open.models[*tagger].name : "";
  model.tagger_revision = tagger ? serve::model_revision(options.tagger) : "";
}

std::string revision_of(const ScorerOptions& o) {
  return serve::model_revision(o.model, o.zero_shot, o.entities, o.adapter);
}

bool is_rung(const serve::ServeConfig& config, const std::string& name) {
  return std::any_of(config.ladders.begin(), config.ladders.end(), [&](const serve::LadderRules& ladder) {
    return std::any_of(ladder.rungs.begin(), ladder.rungs.end(), [&](const auto& rung) { return rung.model == name; });
  });
}

void add_model(OpenModels& open, const ServeFlags& f, const serve::ModelEntry& entry, std::optional<Pooling> pooling) {
  for (const serve::ServedModel& other : open.models)
    if (other.name == entry.name)
      fail(ErrorCode::usage, "--model {}: duplicate name {}; set another one with --model NAME={}", entry.path,
           entry.name, entry.path);
  const bool adapts = !entry.adapter.empty();
  open.models.push_back({entry.name, adapts ? entry.adapter : entry.path, "", nullptr, pooling,
                         entry.keep_alive_seconds.value_or(f.keep_alive)});
  if (adapts) open.models.back().base = entry.path;
  if (entry.zero_shot) open.models.back().label_cost = serve::label_cost(*entry.zero_shot);
  if (entry.entities) open.models.back().label_cost = serve::label_cost(*entry.entities, entry.path);
  open.settings.push_back([&f, entry, pooling] {
    EngineFlags flags = f.engine;
    flags.model = entry.path;
    flags.adapter = entry.adapter;
    flags.share_base = entry.share_base;
    ScorerOptions o = flags.scorer_options();
    if (entry.precision != Precision()) o.precision = entry.precision;
    o.pooling = pooling;
    o.labels = entry.labels;
    o.zero_shot = entry.zero_shot;
    o.entities = entry.entities;
    o.raw_scores = true;
    o.bulk_seconds = kBulkSeconds;
    o.queue_seconds = f.max_queue_ms * 1e-3;
    o.in_turn = true;
    o.parked_bytes = f.parked_limit;
    o.cache_bytes = f.cache_bytes;
    o.batch_tokens = f.max_batch_tokens;
    return o;
  });
}

std::string all_faults(const std::vector<serve::ServedModel>& models) {
  std::vector<std::string> faults;
  for (const serve::ServedModel& model : models)
    if (!model.fault.empty()) faults.push_back(model.name + ": " + model.fault);
  return fmt::to_string(fmt::join(faults, "\n"));
}

// For --check: throws if a model failed that is not a rung, which a ladder would replace. Names all failed models.
void refuse_faults(const OpenModels& open, const serve::ServeConfig& config,
                   const std::vector<std::optional<Error>>& errors) {
  const auto failed = std::count_if(errors.begin(), errors.end(), [](const auto& error) { return error.has_value(); });
  for (size_t m = 0; m < errors.size(); ++m) {
    if (!errors[m] || is_rung(config, open.models[m].name)) continue;
    if (failed == 1) throw *errors[m];
    fail(errors[m]->code(), "{} could not be loaded: {}", format_count(failed, "model"), all_faults(open.models));
  }
}

}  // namespace

std::optional<size_t> SharedEncoders::tagger_of(const ScorerOptions& classifier,
                                                const std::vector<ScorerOptions>& options) {
  if (classifier.pooling || !classifier.adapter.empty() || classifier.share_base) return std::nullopt;
  for (size_t t = 0; t < options.size(); ++t)
    if (!options[t].model.empty() && options[t].model != classifier.model && !options[t].pooling &&
        options[t].adapter.empty() && !options[t].share_base && options[t].precision == classifier.precision &&
        are_of_one(classifier.model, options[t].model))
      return t;
  return std::nullopt;
}

bool SharedEncoders::are_of_one(const std::string& classifier, const std::string& tagger) {
  try {
    const std::string files = serve::model_revision(classifier) + serve::model_revision(tagger);
    const auto [found, is_new] = known_.try_emplace({classifier, tagger});
    if (is_new || found->second.files != files) found->second = {files, share_encoder(classifier, tagger)};
    return found->second.share;
  } catch (const Error&) {  // opening the model reports the error
    return false;
  }
}

serve::ServedModel named_model(const std::string& given, const char* flag) {
  const size_t equals = given.find('=');
  const bool named = equals != std::string::npos && equals > 0 && equals < given.find('/') &&
                     !std::filesystem::exists(given);  // unless a directory has this name
  serve::ServedModel model;
  model.name = named ? given.substr(0, equals) : "";
  model.id = named ? given.substr(equals + 1) : given;
  if (model.name.empty() && hub::names_vader(model.id)) model.name = "vader";
  if (model.name.empty()) {
    std::filesystem::path path = std::filesystem::absolute(model.id).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    model.name = path.filename().string();
  }
  const bool plain = std::all_of(model.name.begin(), model.name.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!plain) fail(ErrorCode::usage, "{} {}: names must not contain spaces or control characters", flag, given);
  return model;
}

OpenModels open_models(const ServeFlags& f, const serve::ServeConfig& config) {
  OpenModels open;
  for (const serve::ModelEntry& entry : config.models) add_model(open, f, entry, entry.pooling);
  for (const std::string& given : f.embedding_models) {
    const serve::ServedModel model = named_model(given);
    add_model(open, f, {.name = model.name, .path = model.id}, f.pooling);
  }
  open.options.resize(open.models.size());
  std::vector<std::optional<Error>> errors(open.models.size());
  // Tries each model that has not failed. Usage errors and missing devices are configuration errors and abort startup,
  // except for members of a ladder. --check collects all errors.
  const auto try_each = [&](bool opens, const std::function<void(size_t)>& call) {
    for (size_t m = 0; m < open.models.size(); ++m) {
      if (!open.models[m].fault.empty()) continue;
      try {
        call(m);
      } catch (const Error& error) {
        const bool asked_wrongly = error.code() == ErrorCode::usage || error.code() == ErrorCode::device_lost;
        const bool mistaken = opens && asked_wrongly && !f.check;
        if (open.models.size() == 1 || (mistaken && !is_rung(config, open.models[m].name))) throw;
        errors[m] = error;
        open.models[m].fault = error.what();
        open.options[m] = {};
      }
    }
  };
  const auto open_all = [&] {
    std::vector<size_t> places;
    std::vector<ScorerOptions> options;
    for (size_t m = 0; m < open.models.size(); ++m) {
      if (!open.models[m].fault.empty()) continue;
      places.push_back(m);
      add_tagger(open, open.models[m], options.emplace_back(open.options[m]));
    }
    if (places.empty()) fail(errors.front()->code(), "no model could be loaded: {}", all_faults(open.models));
    const auto scorers = open_together(options);
    for (size_t i = 0; i < places.size(); ++i) open.models[places[i]].scorer = scorers[i];
  };
  try_each(false, [&](size_t m) {
    open.options[m] = open.settings[m]();
    open.models[m].revision = revision_of(open.options[m]);
  });
  try {
    open_all();
  } catch (const Error&) {  // find out which one
    if (open.models.size() == 1) throw;
    try_each(true, [&](size_t m) { Scorer::open(open.options[m]); });
    if (f.check) refuse_faults(open, config, errors);
    open_all();
  }
  if (f.check) refuse_faults(open, config, errors);
  return open;
}

void warn_of_faults(const OpenModels& open, const serve::ServeConfig& config) {
  for (const serve::ServedModel& m : open.models)
    if (m.scorer == nullptr)
      log_warning("{} is not available{}: {}", m.name,
                  &m == &open.models[0] && config.ladders.empty() ? ", requests without a model get 503" : "", m.fault);
}

std::vector<std::string> describe_models(const OpenModels& open) {
  std::vector<std::string> lines;
  for (const serve::ServedModel& m : open.models)
    if (m.scorer != nullptr)
      lines.push_back(fmt::format("{}: {} on {}, {}{}", m.name, m.id, m.scorer->device(),
                                  m.scorer->kind() == ModelKind::rules ? "rules" : m.scorer->precision(),
                                  !m.base.empty()    ? fmt::format("; adapter of {}", m.base)
                                  : m.tagger.empty() ? ""
                                                     : fmt::format("; shares its encoder with {}", m.tagger)));
  return lines;
}

std::shared_ptr<OpenModels> add_reopening(serve::ServerOptions& options, OpenModels open) {
  // Holds the models' settings without their scorers.
  const auto asked = std::make_shared<OpenModels>(std::move(open));
  for (serve::ServedModel& model : asked->models) model.scorer.reset();
  const auto place_of = [asked](const std::string& name) {
    return static_cast<size_t>(std::find_if(asked->models.begin(), asked->models.end(),
                                            [&](const serve::ServedModel& m) { return m.name == name; }) -
                               asked->models.begin());
  };
  options.reopen = [asked, place_of](const std::string& name, const Scorer* beside, bool beside_stays) {
    const size_t place = place_of(name);
    serve::ServedModel model = asked->models.at(place);
    const bool failed = asked->options.at(place).model.empty();
    const ScorerOptions own = failed ? asked->settings[place]() : asked->options[place];
    ScorerOptions scorer = own;
    model.revision = revision_of(scorer);
    add_tagger(*asked, model, scorer);
    model.scorer = beside != nullptr ? open_beside(*beside, scorer, beside_stays) : Scorer::open(scorer);
    model.fault.clear();
    asked->options[place] = own;  // others may share its encoder from now on
    return model;
  };
  options.revision_of = [asked, place_of](const std::string& name) {
    return cli::revision_of(asked->options.at(place_of(name)));
  };
  options.tagger_of = [asked, place_of](const std::string& name) {
    const auto tagger = asked->encoders.tagger_of(asked->options.at(place_of(name)), asked->options);
    return tagger ? asked->models[*tagger].name : std::string();
  };
  return asked;
}

void add_adapter_loading(serve::ServerOptions& options, std::shared_ptr<OpenModels> asked, const ServeFlags& f,
                         const serve::ModelEntry& base) {
  serve::ModelEntry adapter{.name = "", .path = base.path, .precision = base.precision};
  adapter.keep_alive_seconds = base.keep_alive_seconds;
  adapter.share_base = true;
  options.add_adapter = [asked = std::move(asked), &f, adapter](const std::string& name, const std::string& dir) {
    serve::ModelEntry entry = adapter;
    entry.name = name;
    entry.adapter = dir;
    const auto known = std::ranges::find(asked->models, name, &serve::ServedModel::name);
    if (known != asked->models.end()) {  // unloaded; the name gets another directory
      const auto place = known - asked->models.begin();
      asked->models.erase(known);
      asked->settings.erase(asked->settings.begin() + place);
      asked->options.erase(asked->options.begin() + place);
    }
    add_model(*asked, f, entry, std::nullopt);
    asked->options.emplace_back();  // not opened yet
    return asked->models.back();
  };
}

}  // namespace brim::cli
