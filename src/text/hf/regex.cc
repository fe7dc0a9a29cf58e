// SPDX-License-Identifier: Apache-2.0
// Backtracking regex matcher with an explicit stack, so that long texts cannot overflow the thread's stack.
#include "text/hf/regex.h"

#include "base/utf8.h"
#include "text/hf/regex_program.h"

namespace brim::text {
namespace {

using Anchor = Regex::Program::Anchor;
using Instruction = Regex::Program::Instruction;
using Look = Regex::Program::Look;
using Mode = Regex::Program::Mode;
using Op = Instruction::Op;

// Step limits against catastrophic backtracking.
constexpr uint64_t kMostSteps = 5'000'000, kMostStepsPerByte = 200;

class Machine {
 public:
  Machine(const Regex::Program& program, std::string_view text)
      : program_(program), text_(text), slots_(program.slots) {}

  // End of the match that starts at `from`, if any.
  std::optional<size_t> match(size_t from) { return run(0, from); }

 private:
  struct Frame {
    enum class Kind : uint8_t { resume, restore, greedy, lazy } kind;
    uint32_t pc;  // restore: the slot
    size_t at,
        bound;  // greedy: current position and lower bound for giving back; lazy: bound is the remaining maximum
  };

  bool set_at(uint32_t set, size_t at, size_t& next) const {
    if (at >= text_.size()) return false;
    const CodePoint p = decode_valid(text_, at);
    if (!program_.sets[set].contains(p.value)) return false;
    next = at + static_cast<size_t>(p.bytes);
    return true;
  }
  size_t before(size_t at) const {
    do --at;
    while ((static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80);
    return at;
  }
  bool word_at(size_t at) const {
    return at < text_.size() && unicode::has(decode_valid(text_, at).value, unicode::kWord);
  }
  bool holds(Anchor anchor, size_t at) const {
    const size_t size = text_.size();
    switch (anchor) {
      case Anchor::text_begin:
        return at == 0;
      case Anchor::text_end:
        return at == size;
      case Anchor::text_end_newline:
        return at == size || (at + 1 == size && text_[at] == '\n');
      case Anchor::line_begin:
        return at == 0 || (text_[at - 1] == '\n' && at < size);
      case Anchor::line_end:
        return at == size || text_[at] == '\n';
      case Anchor::word:
      case Anchor::not_word: {
        const bool boundary = word_at(at) != (at > 0 && word_at(before(at)));
        return boundary == (anchor == Anchor::word);
      }
    }
    return false;
  }

  std::optional<size_t> run(uint32_t pc, size_t at) {
    const size_t base = frames_.size();
    for (;;) {
      if (++steps_ > kMostSteps + kMostStepsPerByte * text_.size()) {
        fail(ErrorCode::bad_model,
             "tokenizer.json: a pattern of a normalizer or pre-tokenizer exceeded {} steps on a text of {} bytes; "
             "simplify it",
             steps_, text_.size());
      }
      const Instruction& in = program_.code[pc];
      bool ok = true;
      switch (in.op) {
        case Op::match:
          frames_.resize(base);
          return at;
        case Op::set:
          ok = set_at(in.a, at, at);
          break;
        case Op::anchor:
          ok = holds(in.anchor, at);
          break;
        case Op::jump:
          pc = in.a;
          continue;
        case Op::split:
          frames_.push_back({Frame::Kind::resume, in.b, at, 0});
          pc = in.a;
          continue;
        case Op::mark:
          frames_.push_back({Frame::Kind::restore, in.a, slots_[in.a], 0});
          slots_[in.a] = at;
          break;
        case Op::progress:
          ok = slots_[in.a] != at;
          break;
        case Op::loop:
          ok = loop(pc, in, at);
          break;
        case Op::look:
          ok = look(pc, in, at);
          break;
        case Op::atomic: {
          const auto end = run(pc + 1, at);
          ok = end.has_value();
          if (ok) {
            at = *end;
            pc = in.a - 1;
          }
          break;
        }
      }
      if (ok) {
        ++pc;
      } else if (!backtrack(base, pc, at)) {
        return std::nullopt;
      }
    }
  }

  bool loop(uint32_t pc, const Instruction& in, size_t& at) {
    size_t count = 0, least = at;
    const uint32_t wanted = in.mode == Mode::lazy ? in.min : in.max;
    while (count < wanted && set_at(in.a, at, at)) {
      if (++count == in.min) least = at;
    }
    steps_ += count;
    if (count < in.min) return false;
    if (in.mode == Mode::greedy && at > least) {
      frames_.push_back({Frame::Kind::greedy, pc + 1, at, least});
    } else if (in.mode == Mode::lazy && in.max > in.min) {
      frames_.push_back({Frame::Kind::lazy, pc, at, in.max == Regex::Program::kUnbounded ? SIZE_MAX : in.max - in.min});
    }
    return true;
  }

  bool look(uint32_t& pc, const Instruction& in, size_t at) {
    bool found;
    if (in.look == Look::ahead || in.look == Look::not_ahead) {
      found = run(pc + 1, at).has_value();
    } else {
      found = at > 0 && run(pc + 1, before(at)).has_value();
    }
    if (found != (in.look == Look::ahead || in.look == Look::behind)) return false;
    pc = in.a - 1;
    return true;
  }

  bool backtrack(size_t base, uint32_t& pc, size_t& at) {
    while (frames_.size() > base) {
      Frame& f = frames_.back();
      ++steps_;
      switch (f.kind) {
        case Frame::Kind::restore:
          slots_[f.pc] = f.at;
          break;
        case Frame::Kind::resume:
          pc = f.pc;
          at = f.at;
          frames_.pop_back();
          return true;
        case Frame::Kind::greedy:
          f.at = before(f.at);
          pc = f.pc;
          at = f.at;
          if (f.at <= f.bound) frames_.pop_back();
          return true;
        case Frame::Kind::lazy:
          if (f.bound > 0 && set_at(program_.code[f.pc].a, f.at, f.at)) {
            if (f.bound != SIZE_MAX) --f.bound;
            pc = f.pc + 1;
            at = f.at;
            return true;
          }
          break;
      }
      frames_.pop_back();
    }
    return false;
  }

  const Regex::Program& program_;
  std::string_view text_;
  std::vector<size_t> slots_;
  std::vector<Frame> frames_;
  uint64_t steps_ = 0;
};

}  // namespace

std::optional<RegexMatch> Regex::search(std::string_view text, size_t from) const {
  Machine machine(*program_, text);
  for (size_t at = from; at <= text.size();) {
    if (const auto end = machine.match(at)) return RegexMatch{at, *end};
    if (at == text.size()) break;
    at += static_cast<size_t>(decode_valid(text, at).bytes);
  }
  return std::nullopt;
}

}  // namespace brim::text
