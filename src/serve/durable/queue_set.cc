// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "serve/durable/queues.h"

namespace brim::serve {

Queues::Queues(const StateDir& state, const std::vector<QueueRules>& rules, QueueScorer& scorer,
               const Queue::Clock& clock) {
  const std::filesystem::path folder = state.folder("queues");
  for (const QueueRules& rule : rules) {
    try {
      queues_[rule.name] = std::make_unique<Queue>(rule, folder / (rule.name + ".journal"), scorer, clock);
    } catch (const Error& e) {
      unopened_.push_back(fmt::format("cannot open queue {}: {}", rule.name, e.what()));
    }
  }
}

Queue* Queues::find(const std::string& name) const {
  const auto found = queues_.find(name);
  return found == queues_.end() ? nullptr : found->second.get();
}

std::vector<std::string> Queues::names() const {
  std::vector<std::string> all;
  for (const auto& [name, queue] : queues_) all.push_back(name);
  return all;
}

std::vector<std::string> Queues::faults() const {
  std::vector<std::string> all = unopened_;
  for (const auto& [name, queue] : queues_)
    if (std::string fault = queue->fault(); !fault.empty()) all.push_back(std::move(fault));
  for (const auto& [name, queue] : queues_)
    if (std::string damage = queue->damage(); !damage.empty()) all.push_back(std::move(damage));
  return all;
}

void Queues::flush_by_age() {
  for (const auto& [name, queue] : queues_) {
    try {
      queue->flush_by_age();
    } catch (const Error&) {
      // Reported by fault() and retried later; other queues must not wait.
    }
  }
}

std::optional<int64_t> Queues::due_ms() const {
  std::optional<int64_t> first;
  for (const auto& [name, queue] : queues_)
    if (const auto due = queue->due_ms(); due && (!first || *due < *first)) first = due;
  return first;
}

}  // namespace brim::serve
