// SPDX-License-Identifier: Apache-2.0
// A pattern is parsed into a tree, the tree written as a program for a backtracking machine with its own stack (a long
// text must not overflow the thread's). Repeats of a single class are one instruction, so `\p{L}+` costs one frame.
#include "text/regex.h"

#include <algorithm>
#include <bitset>
#include <limits>
#include <string>

#include "base/utf8.h"
#include "text/unicode.h"

namespace brim {
namespace {

constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kAllCategories = (1u << 30) - 1;
constexpr size_t kLargestProgram = 20000;
constexpr int kDeepestNesting = 100;
// A match that needs more than this is a pattern that tries every way to cut a text.
constexpr uint64_t kMostSteps = 5'000'000, kMostStepsPerByte = 200;

char32_t fold(char32_t c) {
  if (c == 0x17F) return 's';  // ſ
  char32_t lower[2];
  return unicode::to_lower(c, lower) == 1 ? lower[0] : c;
}

struct CharSet {
  bool negated = false, fold_case = false;
  uint32_t categories = 0;
  uint16_t flags = 0;             // any of these
  std::vector<uint16_t> without;  // or lacking one of these
  std::vector<std::pair<char32_t, char32_t>> ranges;
  std::vector<CharSet> nested;
  std::bitset<128> ascii;  // the answer for ASCII, filled by finish()

  bool plain_contains(char32_t c) const {
    const uint16_t p = unicode::properties(c);
    bool found = (categories >> (p & 31) & 1) != 0 || (p & flags) != 0;
    for (const uint16_t w : without) found = found || (p & w) == 0;
    for (const auto& [low, high] : ranges) found = found || (c >= low && c <= high);
    for (const CharSet& n : nested) found = found || n.contains(c);
    return found;
  }
  bool evaluate(char32_t c) const {
    bool found = plain_contains(c);
    if (!found && fold_case) {
      const char32_t f = fold(c);
      found = plain_contains(f) || (f >= 'a' && f <= 'z' && plain_contains(f - 32));
    }
    return found != negated;
  }
  void finish() {
    if (fold_case) {
      for (size_t i = 0, n = ranges.size(); i < n; ++i) {
        if (ranges[i].first == ranges[i].second) ranges.emplace_back(fold(ranges[i].first), fold(ranges[i].first));
      }
    }
    for (char32_t c = 0; c < 128; ++c) ascii[c] = evaluate(c);
  }
  bool contains(char32_t c) const { return c < 128 ? ascii[c] : evaluate(c); }
};

enum class Mode : uint8_t { greedy, lazy, possessive };
enum class Look : uint8_t { ahead, not_ahead, behind, not_behind };
enum class Anchor : uint8_t { text_begin, text_end, text_end_newline, line_begin, line_end, word, not_word };

struct Node {
  enum class Kind { empty, set, sequence, choice, repeat, look, atomic, anchor } kind = Kind::empty;
  uint32_t set = 0, min = 0, max = 0;
  Mode mode = Mode::greedy;
  Look look = Look::ahead;
  Anchor anchor = Anchor::text_begin;
  std::vector<Node> children;
};

struct Instruction {
  enum class Op : uint8_t { set, split, jump, loop, mark, progress, look, atomic, anchor, match } op;
  Mode mode = Mode::greedy;
  Look look = Look::ahead;
  Anchor anchor = Anchor::text_begin;
  uint32_t a = 0, b = 0;  // set: a. split: a first, b second. look, atomic: a is where to go on. mark, progress: slot a
  uint32_t min = 0, max = 0;
};

struct SyntaxError {
  std::string what;
};

}  // namespace

struct Regex::Program {
  std::vector<CharSet> sets;
  std::vector<Instruction> code;
  uint32_t slots = 0;
};

namespace {

using Op = Instruction::Op;

class Parser {
 public:
  Parser(std::string_view pattern, Regex::Program& program) : pattern_(pattern), program_(program) {}

  Node parse() {
    Node node = choice();
    if (at_ < pattern_.size()) stop("unmatched )");
    return node;
  }

 private:
  [[noreturn]] void stop(const std::string& what) const { throw SyntaxError{fmt::format("{} at byte {}", what, at_)}; }
  bool more() const { return at_ < pattern_.size(); }
  bool next_is(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_char() {
    if (!more()) stop("the pattern ends too early");
    const CodePoint p = decode_valid(pattern_, at_);
    at_ += static_cast<size_t>(p.bytes);
    return p.value;
  }

  Node choice() {
    if (++depth_ > kDeepestNesting) stop("nested too deeply");
    const bool outer_fold = fold_;
    Node node;
    node.kind = Node::Kind::choice;
    node.children.push_back(sequence());
    while (take("|")) node.children.push_back(sequence());
    fold_ = outer_fold;
    --depth_;
    return node.children.size() == 1 ? Node(std::move(node.children[0])) : node;
  }

  Node sequence() {
    Node node;
    node.kind = Node::Kind::sequence;
    while (more() && pattern_[at_] != '|' && pattern_[at_] != ')') node.children.push_back(repeated());
    return node;
  }

  Node repeated() {
    Node node = atom();
    while (more()) {
      uint32_t min = 0, max = kUnbounded;
      bool braces = false;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (braces_follow(min, max)) {
        braces = true;
      } else {
        break;
      }
      Node outer;
      outer.kind = Node::Kind::repeat;
      outer.min = min;
      outer.max = max;
      if (take("?")) {
        outer.mode = Mode::lazy;
      } else if (!braces && take("+")) {  // after braces + is a second repeat
        outer.mode = Mode::possessive;
      }
      outer.children.push_back(std::move(node));
      node = std::move(outer);
      if (++repeats_ > 1000) stop("too many repeats");
    }
    return node;
  }

  // {n}, {n,}, {n,m}, {,m}; anything else is a literal brace.
  bool braces_follow(uint32_t& min, uint32_t& max) {
    if (!next_is("{")) return false;
    const size_t start = at_;
    ++at_;
    const auto low = number();
    auto high = low;
    bool comma = false;
    if (take(",")) {
      comma = true;
      high = number();
    }
    if (!take("}") || (!low && !high)) {
      at_ = start;
      return false;
    }
    min = low.value_or(0);
    max = high ? *high : comma ? kUnbounded : min;
    if (min > 1000 || (max != kUnbounded && (max > 1000 || max < min))) stop("a repeat out of range");
    return true;
  }
  std::optional<uint32_t> number() {
    std::optional<uint32_t> value;
    while (more() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = std::min<uint32_t>(value.value_or(0) * 10 + static_cast<uint32_t>(pattern_[at_++] - '0'), 100000);
    }
    return value;
  }

  Node group() {
    Node node;
    if (take("?:")) return closed(choice());
    if (take("?>")) return wrapped(Node::Kind::atomic, closed(choice()));
    const std::pair<const char*, Look> looks[] = {
        {"?=", Look::ahead}, {"?!", Look::not_ahead}, {"?<=", Look::behind}, {"?<!", Look::not_behind}};
    for (const auto& [text, look] : looks) {
      if (!take(text)) continue;
      node = wrapped(Node::Kind::look, closed(choice()));
      node.look = look;
      if ((look == Look::behind || look == Look::not_behind) && !one_char(node.children[0])) {
        stop("look-behind of more than one character");
      }
      return node;
    }
    if (take("?i:") || take("?i)")) {
      const bool scoped = pattern_[at_ - 1] == ':';
      const bool before = fold_;
      fold_ = true;
      if (!scoped) return node;  // to the end of the enclosing group, where choice() restores it
      node = closed(choice());
      fold_ = before;
      return node;
    }
    if (next_is("?")) stop("an unknown kind of group");
    return closed(choice());
  }
  Node closed(Node node) {
    if (!take(")")) stop("missing )");
    return node;
  }
  static Node wrapped(Node::Kind kind, Node child) {
    Node node;
    node.kind = kind;
    node.children.push_back(std::move(child));
    return node;
  }
  static bool one_char(const Node& node) {
    if (node.kind == Node::Kind::set) return true;
    if (node.kind == Node::Kind::sequence) return node.children.size() == 1 && one_char(node.children[0]);
    if (node.kind != Node::Kind::choice) return false;
    return std::all_of(node.children.begin(), node.children.end(), [](const Node& n) { return one_char(n); });
  }

  Node set_node(CharSet set) {
    set.fold_case = fold_;
    set.finish();
    Node node;
    node.kind = Node::Kind::set;
    node.set = static_cast<uint32_t>(program_.sets.size());
    program_.sets.push_back(std::move(set));
    return node;
  }
  static Node anchor_node(Anchor anchor) {
    Node node;
    node.kind = Node::Kind::anchor;
    node.anchor = anchor;
    return node;
  }

  Node atom() {
    if (take("(")) return group();
    if (take("[")) return set_node(bracket());
    if (take("^")) return anchor_node(Anchor::line_begin);
    if (take("$")) return anchor_node(Anchor::line_end);
    CharSet set;
    if (take(".")) {
      set.negated = true;
      set.ranges.push_back({'\n', '\n'});
      return set_node(std::move(set));
    }
    if (next_is("*") || next_is("+") || next_is("?")) stop("nothing to repeat");
    if (take("\\")) {
      if (take("A")) return anchor_node(Anchor::text_begin);
      if (take("z")) return anchor_node(Anchor::text_end);
      if (take("Z")) return anchor_node(Anchor::text_end_newline);
      if (take("b")) return anchor_node(Anchor::word);
      if (take("B")) return anchor_node(Anchor::not_word);
      escape(set);
      return set_node(std::move(set));
    }
    const char32_t c = take_char();
    set.ranges.push_back({c, c});
    return set_node(std::move(set));
  }

  // After a backslash: adds a class to `set`, or a single character (returned, for ranges).
  std::optional<char32_t> escape(CharSet& set) {
    const char32_t c = take_char();
    switch (c) {
      case 's':
        set.flags |= unicode::kWhiteSpace;
        return std::nullopt;
      case 'S':
        set.without.push_back(unicode::kWhiteSpace);
        return std::nullopt;
      case 'w':
        set.flags |= unicode::kWord;
        return std::nullopt;
      case 'W':
        set.without.push_back(unicode::kWord);
        return std::nullopt;
      case 'd':
        set.categories |= mask("Nd");
        return std::nullopt;
      case 'D':
        set.categories |= kAllCategories & ~mask("Nd");
        return std::nullopt;
      case 'p':
      case 'P':
        set.categories |= property(c == 'P');
        return std::nullopt;
      default:
        break;
    }
    char32_t value = c;
    if (c == 'n')
      value = '\n';
    else if (c == 'r')
      value = '\r';
    else if (c == 't')
      value = '\t';
    else if (c == 'f')
      value = '\f';
    else if (c == 'v')
      value = '\v';
    else if (c == 'a')
      value = '\a';
    else if (c == 'e')
      value = 0x1B;
    else if (c == '0')
      value = 0;
    else if (c == 'x')
      value = take("{") ? hex(1, 8, true) : hex(1, 2, false);
    else if (c == 'u')
      value = hex(4, 4, false);
    else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
      stop("an unknown escape");
    set.ranges.push_back({value, value});
    return value;
  }
  char32_t hex(int least, int most, bool braces) {
    char32_t value = 0;
    int digits = 0;
    for (; digits < most && more(); ++digits) {
      const char c = pattern_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    if (digits < least || (braces && !take("}")) || value > 0x10FFFF) stop("a bad hexadecimal escape");
    return value;
  }

  static uint32_t mask(std::string_view name) {
    static constexpr const char* kNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                             "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                             "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"};
    uint32_t found = 0;
    for (size_t i = 0; i < std::size(kNames); ++i) {
      if (name == kNames[i] || (name.size() == 1 && name[0] == kNames[i][0])) found |= 1u << i;
    }
    return found;
  }
  uint32_t property(bool negated) {
    std::string_view name;
    if (take("{")) {
      if (take("^")) negated = !negated;
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) stop("missing }");
      name = pattern_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      const size_t start = at_;
      take_char();
      name = pattern_.substr(start, at_ - start);
    }
    static constexpr std::pair<const char*, const char*> kLong[] = {
        {"Letter", "L"}, {"Number", "N"}, {"Punctuation", "P"}, {"Punct", "P"},
        {"Symbol", "S"}, {"Mark", "M"},   {"Separator", "Z"},   {"Other", "C"}};
    for (const auto& [from, to] : kLong) {
      if (name == from) name = to;
    }
    const uint32_t found = mask(name);
    if (found == 0) stop(fmt::format("the unknown property \\p{{{}}}", name));
    return negated ? kAllCategories & ~found : found;
  }

  CharSet bracket() {
    if (++depth_ > kDeepestNesting) stop("nested too deeply");
    CharSet set;
    set.negated = take("^");
    bool first = true;
    while (first || !next_is("]")) {
      if (!more()) stop("missing ]");
      if (next_is("[:")) stop("a POSIX class");
      if (next_is("&&")) stop("an intersection of classes");
      first = false;
      std::optional<char32_t> low;
      if (take("[")) {
        set.nested.push_back(bracket());
        set.nested.back().fold_case = fold_;
        set.nested.back().finish();
        continue;
      }
      if (take("\\")) {
        low = escape(set);
      } else {
        low = take_char();
        set.ranges.push_back({*low, *low});
      }
      if (low && next_is("-") && !next_is("-]")) {
        ++at_;
        CharSet unused;
        const auto high = take("\\") ? escape(unused) : std::optional<char32_t>(take_char());
        if (!high || *high < *low) stop("a bad range");
        set.ranges.push_back({*low, *high});
      }
    }
    ++at_;
    --depth_;
    return set;
  }

  std::string_view pattern_;
  Regex::Program& program_;
  size_t at_ = 0;
  bool fold_ = false;
  int depth_ = 0, repeats_ = 0;
};

class Writer {
 public:
  explicit Writer(Regex::Program& program) : program_(program) {}

  void write(const Node& node) {
    switch (node.kind) {
      case Node::Kind::empty:
        return;
      case Node::Kind::set:
        emit({.op = Op::set, .a = node.set});
        return;
      case Node::Kind::anchor:
        emit({.op = Op::anchor, .anchor = node.anchor});
        return;
      case Node::Kind::sequence:
        for (const Node& child : node.children) write(child);
        return;
      case Node::Kind::choice:
        choice(node);
        return;
      case Node::Kind::repeat:
        repeat(node);
        return;
      case Node::Kind::look:
      case Node::Kind::atomic: {
        const auto op = node.kind == Node::Kind::look ? Op::look : Op::atomic;
        const uint32_t start = emit({.op = op, .look = node.look});
        write(node.children[0]);
        emit({.op = Op::match});
        program_.code[start].a = here();
        return;
      }
    }
  }
  uint32_t emit(const Instruction& instruction) {
    if (program_.code.size() >= kLargestProgram) throw SyntaxError{"the pattern is too large"};
    program_.code.push_back(instruction);
    return static_cast<uint32_t>(program_.code.size() - 1);
  }

 private:
  uint32_t here() const { return static_cast<uint32_t>(program_.code.size()); }

  void choice(const Node& node) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i < node.children.size(); ++i) {
      const bool last = i + 1 == node.children.size();
      const uint32_t split = last ? 0 : emit({.op = Op::split, .a = here() + 1});
      write(node.children[i]);
      if (last) break;
      jumps.push_back(emit({.op = Op::jump}));
      program_.code[split].b = here();
    }
    for (const uint32_t jump : jumps) program_.code[jump].a = here();
  }

  void repeat(const Node& node) {
    const Node& body = node.children[0];
    if (body.kind == Node::Kind::set) {
      emit({.op = Op::loop, .mode = node.mode, .a = body.set, .min = node.min, .max = node.max});
      return;
    }
    const uint32_t start = here();
    if (node.mode == Mode::possessive) emit({.op = Op::atomic});
    for (uint32_t i = 0; i < node.min; ++i) write(body);
    auto fork = [&] { return emit({.op = Op::split}); };
    auto aim = [&](uint32_t split, uint32_t into, uint32_t past) {
      program_.code[split].a = node.mode == Mode::lazy ? past : into;
      program_.code[split].b = node.mode == Mode::lazy ? into : past;
    };
    if (node.max == kUnbounded) {
      const uint32_t slot = program_.slots++;
      const uint32_t split = fork();
      emit({.op = Op::mark, .a = slot});
      write(body);
      emit({.op = Op::progress, .a = slot});  // a body that matched nothing ends the loop
      emit({.op = Op::jump, .a = split});
      aim(split, split + 1, here());
    } else {
      std::vector<uint32_t> splits;
      for (uint32_t i = node.min; i < node.max; ++i) {
        splits.push_back(fork());
        write(body);
      }
      for (const uint32_t split : splits) aim(split, split + 1, here());
    }
    if (node.mode == Mode::possessive) {
      emit({.op = Op::match});
      program_.code[start].a = here();
    }
  }

  Regex::Program& program_;
};

class Machine {
 public:
  Machine(const Regex::Program& program, std::string_view text)
      : program_(program), text_(text), slots_(program.slots) {}

  // End of the match that starts at `from`, if there is one.
  std::optional<size_t> match(size_t from) { return run(0, from); }

 private:
  struct Frame {
    enum class Kind : uint8_t { resume, restore, greedy, lazy } kind;
    uint32_t pc;  // restore: the slot
    size_t at,
        bound;  // greedy: where it stands and the least it may give back to. lazy: bound is what it may still take
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
             "tokenizer.json: a pattern of a normalizer or pre-tokenizer took {} steps on a text of {} bytes; simplify "
             "it",
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
      frames_.push_back({Frame::Kind::lazy, pc, at, in.max == kUnbounded ? SIZE_MAX : in.max - in.min});
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

Result<Regex> Regex::compile(std::string_view pattern) {
  auto program = std::make_shared<Program>();
  try {
    if (!is_valid_utf8(pattern)) throw SyntaxError{"it is not valid UTF-8"};
    const Node tree = Parser(pattern, *program).parse();
    Writer writer(*program);
    writer.write(tree);
    writer.emit({.op = Op::match});
  } catch (const SyntaxError& error) {
    return Error(ErrorCode::bad_model, error.what);
  }
  return Regex(std::move(program));
}

std::optional<RegexMatch> Regex::search(std::string_view text, size_t from) const {
  Machine machine(*program_, text);
  for (size_t at = from; at <= text.size();) {
    if (const auto end = machine.match(at)) return RegexMatch{at, *end};
    if (at == text.size()) break;
    at += static_cast<size_t>(decode_valid(text, at).bytes);
  }
  return std::nullopt;
}

}  // namespace brim
