// SPDX-License-Identifier: Apache-2.0
// Regex compiler: parses a pattern into a tree and emits a program from it.
#include <algorithm>
#include <string>

#include "base/utf8.h"
#include "text/hf/regex_program.h"

namespace brim::text {
namespace {

using Anchor = Regex::Program::Anchor;
using CharSet = Regex::Program::CharSet;
using Instruction = Regex::Program::Instruction;
using Look = Regex::Program::Look;
using Mode = Regex::Program::Mode;
using Op = Instruction::Op;

constexpr uint32_t kUnbounded = Regex::Program::kUnbounded;
constexpr uint32_t kAllCategories = (1u << 30) - 1;
constexpr size_t kLargestProgram = 20000;
constexpr int kDeepestNesting = 100;

struct Node {
  enum class Kind { empty, set, sequence, choice, repeat, look, atomic, anchor } kind = Kind::empty;
  uint32_t set = 0, min = 0, max = 0;
  Mode mode = Mode::greedy;
  Look look = Look::ahead;
  Anchor anchor = Anchor::text_begin;
  std::vector<Node> children;
};

struct SyntaxError {
  std::string what;
};

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
    if (!more()) stop("unexpected end of the pattern");
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
      } else if (!braces && take("+")) {  // after braces, + is a second repeat
        outer.mode = Mode::possessive;
      }
      outer.children.push_back(std::move(node));
      node = std::move(outer);
      if (++repeats_ > 1000) stop("too many repeats");
    }
    return node;
  }

  // {n}, {n,}, {n,m} or {,m}; anything else is a literal brace.
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
    if (min > 1000 || (max != kUnbounded && (max > 1000 || max < min))) stop("repeat count out of range");
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
        stop("unsupported look-behind of more than one character");
      }
      return node;
    }
    if (take("?i:") || take("?i)")) {
      const bool scoped = pattern_[at_ - 1] == ':';
      const bool before = fold_;
      fold_ = true;
      if (!scoped) return node;  // up to the end of the enclosing group; restored by choice()
      node = closed(choice());
      fold_ = before;
      return node;
    }
    if (next_is("?")) stop("unknown kind of group");
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

  // After a backslash: adds a class to `set`, or returns a single character (for ranges).
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
      stop("unknown escape");
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
    if (digits < least || (braces && !take("}")) || value > 0x10FFFF) stop("invalid hexadecimal escape");
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
    if (found == 0) stop(fmt::format("unknown property \\p{{{}}}", name));
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
      if (next_is("&&")) stop("unsupported intersection of classes");
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
        if (!high || *high < *low) stop("invalid range");
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
      emit({.op = Op::progress, .a = slot});  // an empty iteration ends the loop
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

}  // namespace

Result<Regex> Regex::compile(std::string_view pattern) {
  auto program = std::make_shared<Program>();
  try {
    if (!is_valid_utf8(pattern)) throw SyntaxError{"not valid UTF-8"};
    const Node tree = Parser(pattern, *program).parse();
    Writer writer(*program);
    writer.write(tree);
    writer.emit({.op = Op::match});
  } catch (const SyntaxError& error) {
    return Error(ErrorCode::bad_model, error.what);
  }
  return Regex(std::move(program));
}

}  // namespace brim::text
