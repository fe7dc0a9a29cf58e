// SPDX-License-Identifier: Apache-2.0
// Public functions outside of Scorer. Scorer itself is in scorer.cc and rules_scorer.cc.
#include "base/log.h"
#include "base/settings.h"
#include "brim/brim.h"
#include "engine/option_types.h"
#include "hub/gliner_config.h"
#include "hub/model_dir.h"
#include "hub/model_files.h"
#include "hub/sentence_settings.h"
#include "model/weights.h"

namespace brim {

const char* version() { return BRIM_VERSION; }

std::string find_model(const std::string& model) {
  const std::string name = model.empty() ? hub::default_model() : model;
  return hub::names_vader(name) ? "" : hub::resolve_model(name, hub::model_search_path(hub::model_roots())).string();
}

ModelKind model_kind(const std::string& model, const std::string& adapter) {
  const std::string dir = find_model(model);
  if (dir.empty()) return ModelKind::rules;
  if (hub::is_gliner(dir)) return ModelKind::tagger;
  const auto [config, weights] = hub::open_model({dir, adapter.empty() ? "" : find_model(adapter)});
  switch (head_kind(config, weights->names())) {
    case hub::HeadKind::sequence:
      return ModelKind::classifier;
    case hub::HeadKind::token:
      return ModelKind::tagger;
    default:
      return ModelKind::embedder;
  }
}

Prompts find_prompts(const std::string& model) {
  const std::string dir = find_model(model);
  if (dir.empty()) return {};
  hub::SentenceSettings settings = hub::load_sentence_settings(dir, true);
  return {std::move(settings.prompts), std::move(settings.default_prompt_name)};
}

void set_log(std::function<void(bool, std::string_view)> sink) {
  (void)set_log_sink([sink = std::move(sink)](LogLevel level, std::string_view line) {
    if (sink && level != LogLevel::debug) sink(level == LogLevel::warning, line);
  });
}

bool share_encoder(const std::string& classifier, const std::string& tagger) {
  const std::string a = find_model(classifier), b = find_model(tagger);
  return !a.empty() && !b.empty() && model::same_encoder(a, b);
}

Device::Device(std::string_view written) : Device(read_setting("device", written, engine::read_device)) {}
std::string Device::text() const { return device_text(engine::device_choice(*this)); }

Precision::Precision(std::string_view written)
    : Precision(read_setting("precision", written, engine::read_precision)) {}
std::string Precision::text() const { return precision_text(engine::precision_request(*this)); }

MemoryLimit::MemoryLimit(std::string_view written)
    : MemoryLimit(read_setting("memory_limit", written, engine::read_memory_limit)) {}

LeaveFree::LeaveFree(std::string_view written) {
  if (!written.empty()) *this = read_setting("leave_free", written, engine::read_leave_free);
}

}  // namespace brim
