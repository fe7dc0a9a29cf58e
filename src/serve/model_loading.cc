// SPDX-License-Identifier: Apache-2.0
// Opening, replacing and unloading models. A new model is opened next to the one it replaces, which answers until its
// last request is done; if opening fails, the old model stays. If memory does not suffice for both, requests wait
// during the replacement.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "hub/adapter.h"
#include "hub/model_dir.h"
#include "serve/answers.h"
#include "serve/models.h"

namespace brim::serve {
namespace {

constexpr auto kUserPollInterval = std::chrono::milliseconds(5);
constexpr auto kLongestRetireWait = std::chrono::seconds(1);  // free_retired() handles longer uses, such as row streams
constexpr double kLongestBatch = 5;                           // seconds, including its answers

}  // namespace

// Runs on the loading or maintenance thread, so that no I/O thread pays for freeing a model. Requests that hold it
// finish with it.
void ModelRegistry::retire(Served old) {
  if (old == nullptr) return;
  const auto until = std::chrono::steady_clock::now() + kLongestRetireWait;
  while (old.use_count() > 1 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kUserPollInterval);
  if (old.use_count() == 1) return;
  std::lock_guard lock(retired_mutex_);
  retired_.push_back(std::move(old));
}

void ModelRegistry::free_retired() {
  std::vector<Served> unused;
  std::lock_guard lock(retired_mutex_);
  std::erase_if(retired_, [&](Served& old) {
    if (old.use_count() > 1) return false;
    unused.push_back(std::move(old));
    return true;
  });
}

// Prefers the model being replaced, then any other encoder.
const Scorer* ModelRegistry::queue_owner(size_t index, Served& held) const {
  for (size_t m = 0; m <= size(); ++m) {
    const Slot& slot = *slots_[m == 0 ? index : m - 1];
    std::lock_guard lock(slot.mutex);
    if (slot.served == nullptr || slot.kind == ModelKind::rules) continue;
    held = slot.served;
    return held->scorer.get();
  }
  return nullptr;
}

Served ModelRegistry::reopen(size_t index, const Scorer* peer, bool peer_stays) {
  auto opened = std::make_shared<const ServedModel>(options_.reopen(name(index), peer, peer_stays));
  if (slots_[index]->opened && opened->scorer->kind() != slots_[index]->kind)
    fail(ErrorCode::bad_model, "{}: the files contain a different kind of model now; restart the server", name(index));
  return opened;
}

std::string ModelRegistry::open(size_t index) {
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
    opened = reopen(index, peer, was_loaded);
  } catch (const Error& error) {
    problem = error.what();
    does_not_fit = error.code() == ErrorCode::does_not_fit;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (was_loaded && does_not_fit) return replace(index);
  if (opened == nullptr) {
    {
      std::lock_guard lock(slot.mutex);
      slot.fault = problem;
      if (slot.served == nullptr) slot.state = "failed";
    }
    if (!was_loaded) report_fault(name(index), problem);
    log_warning("cannot load {}: {}", name(index), problem);
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
  gates_.forget(name(index));
  report_fault(name(index), "");
  log_info("{} is loaded", name(index));
  retire(std::move(old));
  return "";
}

// Waits for the requests of the old model, then moves it off the device.
void ModelRegistry::drain_and_park(size_t index, const Served& old) const {
  const int64_t since = now_ns();
  while (old.use_count() > 1 || old->scorer.use_count() > 1) {
    if (seconds_since(since) > options_.queue_seconds() + kLongestBatch)
      fail(ErrorCode::busy, "{}: not enough memory for both versions, and a job or stream still uses the old one",
           name(index));
    std::this_thread::sleep_for(kUserPollInterval);
  }
  old->scorer->park();
}

// The new model's batches may not fit into a queue sized for the old one. If the old model cannot be restored anyway,
// because its files changed, and it is the only model in the queue, frees the queue too.
Served ModelRegistry::open_successor(size_t index, Served& old) {
  try {
    return reopen(index, old->scorer.get(), false);
  } catch (const Error& error) {
    Served other;
    if (error.code() != ErrorCode::does_not_fit || old->scorer->residence() != Residence::disk ||
        !options_.revision_of || options_.revision_of(name(index)) == old->revision ||
        queue_owner(index, other) != nullptr)
      throw;
  }
  old.reset();
  return reopen(index, nullptr, false);
}

// Moves the old model off the device while requests wait, then opens its successor. If that fails, restores the old
// model from its files if they have not changed.
std::string ModelRegistry::replace(size_t index) {
  Slot& slot = *slots_[index];
  Served old, next;
  {
    std::lock_guard lock(slot.mutex);
    old = std::exchange(slot.served, nullptr);
    slot.replacing = true;
    slot.state = "loading";
  }
  gates_.forget(name(index));  // gates are measured again for whichever model results
  log_info("replacing {}: not enough memory for both versions, requests wait", name(index));
  std::string problem;
  try {
    drain_and_park(index, old);
    next = open_successor(index, old);
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
  std::vector<std::function<void()>> held;
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
  report_fault(name(index), next != nullptr ? "" : problem);
  for (const auto& resume : held) resume();
  if (problem.empty())
    log_info("{} is loaded", name(index));
  else
    log_warning("cannot replace {}: {}", name(index), problem);
  next.reset();
  retire(std::move(old));
  return problem;
}

namespace {

// The directory of an adapter below `root`, after resolving links; so are its files.
std::string adapter_below(const std::string& root, const std::string& path) {
  namespace fs = std::filesystem;
  const Refusal not_found{404, "NotFound", "adapter not found below the adapters' root directory"};
  std::error_code error;
  const fs::path base = fs::canonical(root, error);
  if (error || path.empty()) throw not_found;
  const std::string prefix = (base / "").string();  // "/" is its own prefix
  const fs::path dir = fs::canonical(base / fs::path(path).relative_path(), error);
  if (error || !(dir / "").string().starts_with(prefix) || !hub::is_adapter(dir)) throw not_found;
  for (const std::string& file : hub::model_files(dir))
    if (const fs::path target = fs::canonical(file, error); error || !target.string().starts_with(prefix))
      throw not_found;
  return dir.string();
}

}  // namespace

size_t ModelRegistry::add_adapter(const std::string& name, const std::string& path) {
  if (!options_.add_adapter)
    throw Refusal{403, "Unauthorized", "this server loads no adapters at run time (`adapters_root` is not set)"};
  const int known = index_of(name);
  if (known >= 0 && slots_[static_cast<size_t>(known)]->configured.base.empty())
    throw Refusal{409, "Backend", fmt::format("{} is a model, not an adapter; choose another name", name)};
  if (known >= 0 && path.empty()) return static_cast<size_t>(known);
  const std::string dir = adapter_below(options_.adapters_root, path);
  if (known >= 0) {
    move_adapter(*slots_[static_cast<size_t>(known)], dir);
    return static_cast<size_t>(known);
  }
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7F && c != '/'; });
  if (name.empty() || name.size() > 200 || !plain)
    throw invalid("the name of an adapter must have 1 to 200 printable ASCII characters, without spaces and slashes");
  if (std::ranges::any_of(ladders(), [&](const auto& ladder) { return ladder->rules().name == name; }))
    throw Refusal{409, "Backend", fmt::format("{} is a ladder; choose another name", name)};
  // Requests with this id already have an answer.
  for (size_t m = 0; m < size(); ++m)
    if (id_of(m) == name)
      throw Refusal{409, "Backend", fmt::format("{} is the id of {}; choose another name", name, this->name(m))};
  if (size() == capacity())
    throw Refusal{507, "Backend", fmt::format("{} models and adapters are known; restart the server", size())};
  add_slot(options_.add_adapter(name, dir), "disk").added = true;
  return size() - 1;
}

// Runs on the loading thread, so that the slot does not start to serve meanwhile.
void ModelRegistry::move_adapter(Slot& slot, const std::string& dir) {
  std::lock_guard lock(slot.mutex);
  std::error_code ignored;
  if (std::filesystem::equivalent(slot.id, dir, ignored)) return;
  const bool in_use = slot.served != nullptr || slot.replacing;
  if (in_use || !slot.added)
    throw Refusal{409, "Backend",
                  fmt::format("{} is the adapter in {}; {}choose another name", slot.configured.name, slot.id,
                              slot.added ? "unload it first, or " : "")};
  slot.id = options_.add_adapter(slot.configured.name, dir).id;
  slot.opened = false;  // its head may be of another kind
  slot.state = "disk";
  slot.failed_ns = 0;
  slot.fault.clear();
}

void ModelRegistry::close(size_t index) {
  Slot& slot = *slots_[index];
  Served old;
  {
    std::lock_guard lock(slot.mutex);
    old = std::exchange(slot.served, nullptr);
    slot.state = "disk";
    slot.failed_ns = 0;
    slot.fault.clear();
  }
  report_fault(name(index), "unloaded");
  log_info("{} is unloaded", name(index));
  retire(std::move(old));
}

int ModelRegistry::reopen_changed(std::vector<std::string>& problems) {
  const auto is_changed = [this](const ServedModel& model) {
    const std::string tagger = options_.tagger_of ? options_.tagger_of(model.name) : model.tagger;
    return tagger != model.tagger || (!tagger.empty() && options_.revision_of(tagger) != model.tagger_revision) ||
           options_.revision_of(model.name) != model.revision;
  };
  int opened = 0;
  for (size_t m = 0; can_open() && m < size(); ++m) {
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
    if (const std::string problem = open(m); !problem.empty())
      problems.push_back(problem);
    else
      ++opened;
  }
  return opened;
}

}  // namespace brim::serve
