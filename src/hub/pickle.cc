// SPDX-License-Identifier: Apache-2.0
#include "hub/pickle.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMaxValues = size_t{1} << 20;  // a state dict of 10,000 tensors needs a quarter of it
constexpr size_t kMaxStack = size_t{1} << 20;
constexpr std::string_view kOrderedDict = "collections OrderedDict";

enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, std::span<const std::string_view> allowed, const std::string& where)
      : bytes_(bytes), allowed_(allowed), where_(where) {}

  Pickle run() {
    for (;;) {
      op_at_ = at_;
      const auto op = static_cast<uint8_t>(number(1));
      if (op == kStop) break;
      step(op);
    }
    if (stack_.size() != 1 || !marks_.empty())
      refuse("ends with {} values and {} marks left over", stack_.size(), marks_.size());
    out_.root = stack_[0];
    out_.bytes_read = at_;
    return std::move(out_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::bad_model, "{}: pickle, byte {}: {}: not a file of tensors or damaged", where_, op_at_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  // ---- input ----

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) refuse("needs {} bytes but {} are left", count, bytes_.size() - at_);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, count);
    at_ += count;
    return text;
  }

  uint64_t number(int width) {  // little-endian
    const std::string_view text = take(static_cast<uint64_t>(width));
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(text[static_cast<size_t>(i)]);
    return value;
  }

  std::string_view line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_, bytes_.size() - at_);
    const size_t end = rest.substr(0, 1000).find('\n');
    if (end == std::string_view::npos) refuse("unterminated name");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  // ---- stack ----

  void push(int32_t id) {
    if (stack_.size() >= kMaxStack) refuse("more than {} values on the stack", kMaxStack);
    stack_.push_back(id);
  }

  PickleValue& make(Kind kind) {
    if (out_.values.size() >= kMaxValues) refuse("more than {} values", kMaxValues);
    push(static_cast<int32_t>(out_.values.size()));
    PickleValue& value = out_.values.emplace_back();
    value.kind = kind;
    return value;
  }

  // Only values above the last mark (or all) may be popped.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  int32_t pop() {
    if (stack_.size() <= floor()) refuse("pops an empty stack");
    const int32_t id = stack_.back();
    stack_.pop_back();
    return id;
  }

  PickleValue& top(Kind kind, const char* what) {
    if (stack_.size() <= floor()) refuse("{}: the stack is empty", what);
    PickleValue& value = out_.values[static_cast<size_t>(stack_.back())];
    if (value.kind != kind) refuse("{}: found {}, not {}", what, pickle_kind_name(value.kind), pickle_kind_name(kind));
    return value;
  }

  std::vector<int32_t> pop_to_mark() {
    if (marks_.empty()) refuse("pops to a missing mark");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<int32_t> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }

  // ---- opcodes ----

  void make_tuple(int count) {
    std::vector<int32_t> items(static_cast<size_t>(count));
    for (size_t i = items.size(); i-- > 0;) items[i] = pop();
    make(Kind::tuple).items = std::move(items);
  }

  void make_text(Kind kind, uint64_t length) {
    const std::string_view text = take(length);
    make(kind).text = text;
  }

  void make_long(uint64_t length) {
    const std::string_view text = take(length);
    if (length > 8) {
      make(Kind::big_integer).text = text;
      return;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < length; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(text[i])) << (8 * i);
    if (length > 0 && length < 8 && (text.back() & 0x80) != 0) value |= ~uint64_t{0} << (8 * length);  // negative
    make(Kind::integer).integer = static_cast<int64_t>(value);
  }

  void make_global(std::string_view module, std::string_view name) {
    const std::string full = fmt::format("{} {}", module, name);
    const auto known = std::find(allowed_.begin(), allowed_.end(), full);
    if (known == allowed_.end())
      fail(ErrorCode::bad_model,
           "{}: pickle, byte {}: {} is not allowed: only tensors are read; convert the model to safetensors or save "
           "its state_dict()",
           where_, op_at_, io::quote_text(fmt::format("{}.{}", module, name)));
    make(Kind::global).text = *known;
  }

  void stack_global() {
    const std::string_view name = top(Kind::text, "STACK_GLOBAL").text;
    pop();
    const std::string_view module = top(Kind::text, "STACK_GLOBAL").text;
    pop();
    make_global(module, name);
  }

  void reduce() {
    top(Kind::tuple, "REDUCE");
    const int32_t arguments = pop();
    const std::string_view callee = top(Kind::global, "REDUCE").text;
    const int32_t function = pop();
    if (callee == kOrderedDict) {
      // OrderedDict() is filled by SETITEMS; old pickles pass a list of pairs instead.
      make(Kind::dict);
      const auto& given = out_.values[static_cast<size_t>(arguments)].items;
      if (given.size() > 1) refuse("OrderedDict called with {} arguments", given.size());
      if (given.size() == 1) add_pairs(given[0]);
      return;
    }
    make(Kind::call).items = {function, arguments};
  }

  // Memoized values can be inserted into dicts repeatedly without creating new ones.
  void count_pairs(size_t more) {
    pairs_ += more;
    if (pairs_ > kMaxValues) refuse("dicts of more than {} pairs", kMaxValues);
  }

  void add_pairs(int32_t list) {
    const PickleValue& pairs = out_.values[static_cast<size_t>(list)];
    if (pairs.kind != Kind::list) refuse("OrderedDict called with {}", pickle_kind_name(pairs.kind));
    for (const int32_t id : pairs.items) {
      const PickleValue& pair = out_.values[static_cast<size_t>(id)];
      count_pairs(1);
      if ((pair.kind != Kind::list && pair.kind != Kind::tuple) || pair.items.size() != 2)
        refuse("OrderedDict called without a list of pairs");
      auto& items = out_.values[static_cast<size_t>(stack_.back())].items;
      items.insert(items.end(), pair.items.begin(), pair.items.end());
    }
  }

  void set_items(const std::vector<int32_t>& items) {
    if (items.size() % 2 != 0) refuse("a dict with {} values, which are not pairs", items.size());
    count_pairs(items.size() / 2);
    auto& into = top(Kind::dict, "SETITEMS").items;
    into.insert(into.end(), items.begin(), items.end());
  }

  void append(const std::vector<int32_t>& items) {
    auto& into = top(Kind::list, "APPENDS").items;
    into.insert(into.end(), items.begin(), items.end());
  }

  void put(uint64_t slot) {
    if (stack_.size() <= floor()) refuse("stores a value from an empty stack");
    if (memo_.size() >= kMaxValues) refuse("stores more than {} values", kMaxValues);
    memo_[slot] = stack_.back();
  }

  void get(uint64_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) refuse("reads memo {}, which is not set", slot);
    push(found->second);
  }

  // The stream and the stack. Returns whether `op` is one of them.
  bool step_stack(uint8_t op) {
    switch (op) {
      case kProto: {
        const uint64_t protocol = number(1);
        if (protocol < 2 || protocol > 4) refuse("unsupported protocol {} (supported: 2 to 4)", protocol);
        break;
      }
      case kFrame:
        number(8);
        break;  // read-ahead hint, ignored
      case kMark:
        if (marks_.size() >= kMaxStack) refuse("more than {} marks", kMaxStack);
        marks_.push_back(stack_.size());
        break;
      case kPop:
        stack_.size() > floor() ? static_cast<void>(pop()) : static_cast<void>(pop_to_mark());
        break;
      case kPopMark:
        pop_to_mark();
        break;
      case kDup:
        if (stack_.size() <= floor()) refuse("duplicates a value of an empty stack");
        push(stack_.back());
        break;
      default:
        return false;
    }
    return true;
  }

  // Numbers, texts and bytes. Returns whether `op` is one of them.
  bool step_scalar(uint8_t op) {
    switch (op) {
      case kNone:
        make(Kind::none);
        break;
      case kNewTrue:
        make(Kind::boolean).integer = 1;
        break;
      case kNewFalse:
        make(Kind::boolean).integer = 0;
        break;
      case kBinInt: {
        const auto value = static_cast<int32_t>(number(4));
        make(Kind::integer).integer = value;
        break;
      }
      case kBinInt1:
      case kBinInt2: {
        const uint64_t value = number(op == kBinInt1 ? 1 : 2);
        make(Kind::integer).integer = static_cast<int64_t>(value);
        break;
      }
      case kLong1:
        make_long(number(1));
        break;
      case kLong4:
        make_long(number(4));
        break;
      case kBinFloat: {  // big-endian
        const double value = std::bit_cast<double>(__builtin_bswap64(number(8)));
        make(Kind::real).real = value;
        break;
      }
      case kBinUnicode:
      case kBinString:
        make_text(Kind::text, number(4));
        break;
      case kShortBinUnicode:
      case kShortBinString:
        make_text(Kind::text, number(1));
        break;
      case kBinUnicode8:
        make_text(Kind::text, number(8));
        break;
      case kBinBytes:
        make_text(Kind::bytes, number(4));
        break;
      case kShortBinBytes:
        make_text(Kind::bytes, number(1));
        break;
      case kBinBytes8:
        make_text(Kind::bytes, number(8));
        break;
      default:
        return false;
    }
    return true;
  }

  // Tuples, lists and dicts. Returns whether `op` is one of them.
  bool step_container(uint8_t op) {
    switch (op) {
      case kEmptyTuple:
        make(Kind::tuple);
        break;
      case kTuple1:
        make_tuple(1);
        break;
      case kTuple2:
        make_tuple(2);
        break;
      case kTuple3:
        make_tuple(3);
        break;
      case kTuple: {
        auto items = pop_to_mark();
        make(Kind::tuple).items = std::move(items);
        break;
      }
      case kEmptyList:
        make(Kind::list);
        break;
      case kList: {
        auto items = pop_to_mark();
        make(Kind::list).items = std::move(items);
        break;
      }
      case kAppend:
        append({pop()});
        break;
      case kAppends:
        append(pop_to_mark());
        break;
      case kEmptyDict:
        make(Kind::dict);
        break;
      case kDict: {
        const auto items = pop_to_mark();
        make(Kind::dict);
        set_items(items);
        break;
      }
      case kSetItem: {
        const int32_t value = pop(), key = pop();
        set_items({key, value});
        break;
      }
      case kSetItems:
        set_items(pop_to_mark());
        break;
      default:
        return false;
    }
    return true;
  }

  // Objects and the memo. Returns whether `op` is one of them.
  bool step_object(uint8_t op) {
    switch (op) {
      case kGlobal: {
        const std::string_view module = line(), name = line();
        make_global(module, name);
        break;
      }
      case kStackGlobal:
        stack_global();
        break;
      case kReduce:
        reduce();
        break;
      case kBuild:  // attributes of an OrderedDict (a module's _metadata): ignored
        pop();
        top(Kind::dict, "BUILD");
        break;
      case kBinPersId: {
        const int32_t id = pop();
        make(Kind::persistent).items = {id};
        break;
      }
      case kBinGet:
        get(number(1));
        break;
      case kLongBinGet:
        get(number(4));
        break;
      case kBinPut:
        put(number(1));
        break;
      case kLongBinPut:
        put(number(4));
        break;
      case kMemoize:
        put(memo_.size());
        break;
      default:
        return false;
    }
    return true;
  }

  void step(uint8_t op) {
    if (!step_stack(op) && !step_scalar(op) && !step_container(op) && !step_object(op))
      refuse("unsupported opcode 0x{:02x}", op);
  }

  std::span<const std::byte> bytes_;
  std::span<const std::string_view> allowed_;
  const std::string& where_;
  size_t at_ = 0, op_at_ = 0;
  std::vector<int32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, int32_t> memo_;
  size_t pairs_ = 0;  // over all dicts
  Pickle out_;
};

}  // namespace

const char* pickle_kind_name(Kind kind) {
  static const char* const names[] = {"None",    "a boolean",      "a number", "a long number", "a real number",
                                      "bytes",   "text",           "a tuple",  "a list",        "a dict",
                                      "a class", "a storage name", "a call"};
  return names[static_cast<int>(kind)];
}

Pickle parse_pickle(std::span<const std::byte> bytes, std::span<const std::string_view> allowed,
                    const std::string& where) {
  return Machine(bytes, allowed, where).run();
}

}  // namespace brim::hub
