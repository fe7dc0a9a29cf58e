// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_text.h"
#include "plan/plan.h"
#include "plan/profile_json.h"

namespace brim::plan {

using memory::LedgerEntry;
using memory::Tag;

namespace {

constexpr const char* kOutputs[] = {"sequence_logits", "sequence_scores", "token_logits", "token_scores",
                                    "cls_hidden",      "mean_hidden",     "hidden",       "token_scores_and_logits",
                                    "word_scores"};

template <class T>
T known(std::optional<T> value, const char* key, const std::string& text) {
  if (!value) fail(ErrorCode::bad_data, "not a plan: unknown {} \"{}\"", key, text);
  return *value;
}

template <class Enum, size_t N>
std::optional<Enum> by_name(const char* const (&names)[N], const std::string& text) {
  for (size_t i = 0; i < N; ++i)
    if (text == names[i]) return static_cast<Enum>(i);
  return std::nullopt;
}

// Parts of a stored plan; plans written before the ledger existed only have bytes by tag.
std::vector<LedgerEntry> parts_of_json(const nlohmann::ordered_json& j, const Plan& p) {
  std::vector<LedgerEntry> parts;
  const LedgerEntry context = context_entry(p.device);
  if (!j.contains("ledger")) {
    for (int t = 0; t < memory::kTagCount; ++t) {
      const auto tag = static_cast<Tag>(t);
      const int64_t bytes = p.bytes[tag] - (tag == Tag::context ? context.bytes : 0);
      if (bytes > 0) parts.push_back({tag, tag_name(tag), bytes});
    }
    return parts;
  }
  for (const auto& e : j.at("ledger")) {
    const auto name = e.at("tag").get<std::string>();
    int t = 0;
    while (t < memory::kTagCount && name != tag_name(static_cast<Tag>(t))) ++t;
    if (t == memory::kTagCount) fail(ErrorCode::bad_data, "not a plan: unknown tag \"{}\"", name);
    parts.push_back({static_cast<Tag>(t), e.at("owner").get<std::string>(), e.at("bytes").get<int64_t>()});
  }
  if (const auto own = std::find(parts.begin(), parts.end(), context); own != parts.end()) parts.erase(own);
  if (total_bytes(parts) != p.own_bytes())
    fail(ErrorCode::bad_data, "not a plan: its ledger sums to {} bytes, peak_bytes is {}",
         total_bytes(parts) + context.bytes, p.peak_bytes);
  return parts;
}

}  // namespace

nlohmann::ordered_json ledger_json(const std::vector<LedgerEntry>& entries) {
  auto list = nlohmann::ordered_json::array();
  for (const LedgerEntry& e : entries)
    list.push_back({{"tag", tag_name(e.tag)}, {"owner", e.owner}, {"bytes", e.bytes}});
  return list;
}

const char* task_name(Task task) { return task == Task::score ? "score" : "train"; }

std::string to_json(const Plan& p) {
  nlohmann::ordered_json j = {
      {"task", task_name(p.task)}, {"limit_bytes", p.limit_bytes}, {"peak_bytes", p.peak_bytes}};
  auto& bytes = j["bytes"] = nlohmann::ordered_json::object();
  for (int t = 0; t < memory::kTagCount; ++t) {
    const auto tag = static_cast<Tag>(t);
    if (tag == Tag::token_set && p.bytes[tag] == 0) continue;  // only known in training
    bytes[tag_name(tag)] = p.bytes[tag];
  }
  j["ledger"] = ledger_json(p.ledger());
  j["token_budget"] = p.token_budget;
  j["max_sequences"] = p.max_sequences;
  j["max_length"] = p.max_length;
  j["precision"] = precision_name(p.precision);
  j["output"] = kOutputs[static_cast<int>(p.output)];
  j["optimizer"] =
      p.task == Task::train ? nlohmann::ordered_json(optimizer_name(p.optimizer)) : nlohmann::ordered_json(nullptr);
  if (p.moments_on_host) j["moments_on_host"] = true;
  j["recompute"] = recompute_name(p.recompute);
  j["accumulation_steps"] = p.accumulation_steps;
  j["staging_depth"] = p.staging_depth;
  j["tokens_per_second"] = p.tokens_per_second;
  j["step_seconds"] = p.step_seconds;
  j["device"] = profile_to_json(p.device);
  if (!p.gemm_choices.empty()) {
    auto& choices = j["gemm_choices"] = nlohmann::ordered_json::object();
    for (const ops::GemmChoice& c : p.gemm_choices) choices[c.key] = c.algorithm;
  }
  j["notes"] = p.notes;
  j["why"] = p.why;
  return j.dump(2);
}

Plan plan_from_json(std::string_view text) {
  try {
    const auto j = nlohmann::ordered_json::parse(text);
    Plan p;
    constexpr const char* tasks[] = {"score", "train"};
    const auto name = [&](const char* key) { return j.at(key).get<std::string>(); };
    p.task = known(by_name<Task>(tasks, name("task")), "task", name("task"));
    p.limit_bytes = j.at("limit_bytes").get<int64_t>();
    p.peak_bytes = j.at("peak_bytes").get<int64_t>();
    for (int t = 0; t < memory::kTagCount; ++t) {
      const auto tag = static_cast<Tag>(t);
      if (tag == Tag::token_set && !j.at("bytes").contains(tag_name(tag))) continue;
      p.bytes[tag] = j.at("bytes").at(tag_name(tag)).get<int64_t>();
    }
    if (p.bytes.total() != p.peak_bytes)
      fail(ErrorCode::bad_data, "not a plan: bytes sum to {}, peak_bytes is {}", p.bytes.total(), p.peak_bytes);
    p.token_budget = j.at("token_budget").get<int64_t>();
    p.max_sequences = j.at("max_sequences").get<int64_t>();
    p.max_length = j.at("max_length").get<int64_t>();
    p.precision = known(ops::precision_from_name(name("precision")), "precision", name("precision"));
    p.output = known(by_name<model::Output>(kOutputs, name("output")), "output", name("output"));
    if (!j.at("optimizer").is_null()) {
      constexpr const char* optimizers[] = {"adamw", "adamw_8bit"};
      p.optimizer = known(by_name<model::Optimizer>(optimizers, name("optimizer")), "optimizer", name("optimizer"));
    }
    p.moments_on_host = j.value("moments_on_host", false);
    p.recompute = known(model::recompute_from_name(name("recompute")), "recompute", name("recompute"));
    p.accumulation_steps = j.at("accumulation_steps").get<int64_t>();
    p.staging_depth = j.at("staging_depth").get<int>();
    p.tokens_per_second = j.at("tokens_per_second").get<double>();
    p.step_seconds = j.at("step_seconds").get<double>();
    p.device = profile_of_json(j.at("device"));
    p.parts = parts_of_json(j, p);
    if (j.contains("gemm_choices"))
      for (const auto& [key, algorithm] : j.at("gemm_choices").items())
        p.gemm_choices.push_back({.key = key, .algorithm = algorithm.get<std::string>()});
    p.notes = j.at("notes").get<std::vector<std::string>>();
    p.why = j.at("why").get<std::vector<std::string>>();
    return p;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::bad_data, "not a plan: {}", io::json_reason(e.what()));
  }
}

bool Plan::operator==(const Plan& other) const { return to_json(*this) == to_json(other); }

}  // namespace brim::plan
