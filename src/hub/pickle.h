// SPDX-License-Identifier: Apache-2.0
// Reads Python pickles (protocols 2 to 4) as data. A pickle is a program for a stack machine that can call arbitrary
// functions; this reader executes nothing. It builds a table of plain values, in which a call is only recorded
// (function name and arguments), and only for names in the caller's list. Anything else is an error. Work and memory
// are linear in the input: values are shared by index, never copied, and nothing recurses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brim::hub {

struct PickleValue {
  enum class Kind {
    none,
    boolean,
    integer,
    big_integer,
    real,
    bytes,
    text,
    tuple,
    list,
    dict,
    global,
    persistent,
    call
  };
  Kind kind = Kind::none;
  int64_t integer = 0;  // integer, boolean
  double real = 0;
  std::string_view text;       // text, bytes, big_integer (little-endian bytes), global ("module name")
  std::vector<int32_t> items;  // tuple, list: elements; dict: key, value, key, value …; persistent: its id; call: the
                               // global, the tuple of arguments
};

struct Pickle {
  std::vector<PickleValue> values;
  int32_t root = 0;
  size_t bytes_read = 0;  // up to and including STOP; legacy torch files hold several pickles in a row

  const PickleValue& operator[](int32_t id) const { return values[static_cast<size_t>(id)]; }
  const PickleValue& top() const { return (*this)[root]; }
};

// Texts point into `bytes`. `allowed` lists the permitted globals as "module name". A call of collections.OrderedDict
// becomes a dict. `where` names the file in errors, which are Error(bad_model).
Pickle parse_pickle(std::span<const std::byte> bytes, std::span<const std::string_view> allowed,
                    const std::string& where);

const char* pickle_kind_name(PickleValue::Kind kind);

}  // namespace brim::hub
