// SPDX-License-Identifier: Apache-2.0
#include "answer_queue.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

constexpr int kFunctionShift = 56;  // the function of a text is stored in its ticket

// (ticket, label, score, scores, truncated, error): `scores` belong to Scorer::score_names(), or are entities. For
// embeddings, `score` is the number of vectors and `scores` are the bytes of these float32 vectors.
nb::tuple answer_of(uint64_t ticket, const Prediction& p, bool tags) {
  if (p.error) return nb::make_tuple(ticket, nb::none(), 0.0, nb::none(), false, exception_of(*p.error));
  if (tags) return nb::make_tuple(ticket, nb::none(), 0.0, entity_dicts(p.entities), p.truncated, nb::none());
  if (p.vectors > 0)
    return nb::make_tuple(ticket, nb::none(), p.vectors,
                          nb::bytes(p.embedding.data(), p.embedding.size() * sizeof(float)), p.truncated, nb::none());
  nb::list scores;
  for (const float score : p.scores) scores.append(score);
  return nb::make_tuple(ticket, nb::str(p.label.data(), p.label.size()), p.score, scores, p.truncated, nb::none());
}

}  // namespace

nb::list entity_dicts(const std::vector<Entity>& entities) {
  nb::list out;
  for (const Entity& e : entities) {
    nb::dict entity;
    const bool token = e.token >= 0;
    entity[token ? "entity" : "entity_group"] = e.group;
    entity["score"] = e.score;
    if (token) entity["index"] = e.token;
    entity["word"] = e.word;
    entity["start"] = e.start;
    entity["end"] = e.end;
    out.append(entity);
  }
  return out;
}

AnswerQueue::AnswerQueue(std::shared_ptr<Scorer> scorer)
    : scorer_(std::move(scorer)), process_(::getpid()), descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0)
    throw Error(ErrorCode::usage, std::string("cannot open a file descriptor: ") + std::strerror(errno),
                {"close some files, or raise the limit with ulimit -n"});
}

AnswerQueue::~AnswerQueue() {
  if (process_ == ::getpid()) {
    const nb::gil_scoped_release released;
    stop_.request_stop();
    std::unique_lock lock(mutex_);
    answered_.wait(lock, [&] { return pending_ == 0; });
  }
  ::close(descriptor_);
}

void AnswerQueue::submit(const Texts& texts, const Texts* pairs, uint64_t ticket, const CallOptions& options) {
  std::vector<Request> requests;
  requests.reserve(texts.views().size());
  for (size_t i = 0; i < texts.views().size(); ++i) {
    Request& request = requests.emplace_back(options.request(texts.views()[i]));
    if (pairs != nullptr) request.pair = pairs->views()[i];
    request.ticket = (ticket + i) | static_cast<uint64_t>(options.function) << kFunctionShift;
    request.stop = stop_.get_token();
  }
  if (process_ != ::getpid())
    throw Error(ErrorCode::usage, "the model was opened before a fork()", {"open it in the child process"});
  const nb::gil_scoped_release released;
  {
    const std::lock_guard lock(mutex_);
    pending_ += requests.size();
  }
  scorer_->submit(requests, *this);
}

void AnswerQueue::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof one);  // full: readable anyway
}

void AnswerQueue::done(std::span<Answer> answers) noexcept {
  const std::lock_guard lock(mutex_);
  for (Answer& answer : answers) {
    const auto function = static_cast<ScoreFunction>(answer.ticket >> kFunctionShift);
    answer.ticket &= (uint64_t{1} << kFunctionShift) - 1;
    if (function != ScoreFunction::own && !answer.prediction.error) {
      const auto& names = scorer_->labels();
      apply_function(function, answer.prediction.scores);
      for (size_t i = 0; i < names.size(); ++i)
        if (names[i] == answer.prediction.label) answer.prediction.score = answer.prediction.scores[i];
    }
    answers_.push_back(std::move(answer));
  }
  pending_ -= answers.size();
  wake();
  answered_.notify_all();
}

nb::list AnswerQueue::take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(descriptor_, &count, sizeof count);  // empty: nothing to reset
  std::vector<Answer> answers;
  {
    const std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  nb::list out;
  const bool tags = scorer_->kind() == ModelKind::tagger;
  for (const Answer& answer : answers) out.append(answer_of(answer.ticket, answer.prediction, tags));
  return out;
}

void bind_answer_queue(nb::module_& m) {
  nb::class_<AnswerQueue>(m, "AnswerQueue")
      .def_static(
          "open", [](std::shared_ptr<Scorer> scorer) { return std::make_unique<AnswerQueue>(std::move(scorer)); },
          "scorer"_a)
      .def(
          "submit",
          [](AnswerQueue& queue, const Texts& texts, const nb::object& pairs, uint64_t ticket,
             const CallOptions& options) {
            queue.submit(texts, pairs.is_none() ? nullptr : &nb::cast<const Texts&>(pairs), ticket, options);
          },
          "texts"_a, "pairs"_a.none(), "ticket"_a, "options"_a)
      .def("fileno", &AnswerQueue::descriptor)
      .def("wake", &AnswerQueue::wake)
      .def("take", &AnswerQueue::take);
}

}  // namespace brim::python
