// SPDX-License-Identifier: Apache-2.0
#include "serve/events.h"

#include <fmt/format.h>

namespace brim::serve {

void EventHub::post(std::string_view name, std::string_view data) {
  if (subscribers_ == 0) return;
  const std::string event = fmt::format("event: {}\ndata: {}\n\n", name, data);
  const bool is_snapshot = name == "snapshot";
  for (int thread = 0; thread < threads_.count; ++thread)
    threads_.post(thread, [this, thread, event, is_snapshot] { deliver(thread, event, is_snapshot); });
}

void EventHub::deliver(int thread, const std::string& event, bool is_snapshot) {
  const auto& current = by_thread_[static_cast<size_t>(thread)];
  const std::set<EventSubscriber*> all = current;  // a copy: subscribers may leave during delivery
  for (EventSubscriber* subscriber : all)
    if (current.contains(subscriber)) subscriber->deliver(event, is_snapshot);
}

}  // namespace brim::serve
