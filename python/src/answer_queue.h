// SPDX-License-Identifier: Apache-2.0
// Answers to submitted texts for an event loop or a thread, which waits for a file descriptor instead of the GIL.
#pragma once
#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "brim/brim.h"
#include "requests.h"
#include "texts.h"

namespace brim::python {

// The exception for an error of the library; in module.cc.
nanobind::object exception_of(const Error& error);

// A list of dicts as in transformers: `entity_group`, or `entity` and `index` for single tokens.
nanobind::list entity_dicts(const std::vector<Entity>& entities);

// Thread-safe. Keeps its scorer alive.
class AnswerQueue final : public Completion {
 public:
  explicit AnswerQueue(std::shared_ptr<Scorer> scorer);
  ~AnswerQueue() override;  // cancels texts that are not started and waits for the rest
  AnswerQueue(const AnswerQueue&) = delete;

  // Texts are answered with tickets from `ticket` on, in any order. `pairs`: second texts, or null. Tickets must be
  // below 2^56.
  void submit(const Texts& texts, const Texts* pairs, uint64_t ticket, const CallOptions& options);
  // Readable when answers have arrived, or wake() was called.
  int descriptor() const { return descriptor_; }
  void wake();
  // Answers so far. Requires the GIL.
  nanobind::list take();

  void done(std::span<Answer> answers) noexcept override;

 private:
  std::shared_ptr<Scorer> scorer_;
  const pid_t process_;
  int descriptor_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable answered_;
  size_t pending_ = 0;
  std::vector<Answer> answers_;
};

void bind_answer_queue(nanobind::module_& m);

}  // namespace brim::python
