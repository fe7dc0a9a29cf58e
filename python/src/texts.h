// SPDX-License-Identifier: Apache-2.0
// Views of a Python caller's texts: strings of a list, or buffers from an Arrow producer via the C data interface
// (pyarrow, pandas, polars, datasets). Does not copy; keeps the owners of the data alive.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::python {

// Struct layout defined by the Arrow C data interface.
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};

// Owns one of those structs, moved out of its capsule.
template <class Struct>
class ArrowOwned {
 public:
  ArrowOwned() = default;
  explicit ArrowOwned(Struct* from) : value_(*from) { from->release = nullptr; }
  ArrowOwned(ArrowOwned&& other) noexcept : value_(std::exchange(other.value_, Struct{})) {}
  ArrowOwned& operator=(ArrowOwned&&) = delete;
  ~ArrowOwned() {
    if (value_.release != nullptr) value_.release(&value_);
  }
  Struct* operator->() { return &value_; }
  Struct& operator*() { return value_; }

 private:
  Struct value_{};
};

// A row without a valid text: None or NaN, another type, or a str that cannot be encoded as UTF-8.
struct BadText {
  size_t row;
  std::string what;  // "None", "bytes", "a lone surrogate"
};

class Texts {
 public:
  Texts() = default;
  Texts(Texts&&) = default;
  Texts(const Texts&) = delete;
  static Texts from_sequence(nanobind::handle list_or_tuple);
  static Texts from_stream(const nanobind::capsule& stream);
  static Texts from_array(const nanobind::capsule& schema, const nanobind::capsule& array);

  std::span<const std::string_view> views() const { return views_; }
  const std::vector<BadText>& bad() const { return bad_; }
  size_t bytes() const { return bytes_; }

 private:
  void add(std::string_view text);
  void add_bad(std::string what);
  void add_chunk(const ArrowSchema& schema, ArrowOwned<ArrowArray>&& chunk);

  std::vector<std::string_view> views_;
  std::vector<BadText> bad_;
  size_t bytes_ = 0;
  nanobind::object held_;  // tuple of the strings
  std::vector<ArrowOwned<ArrowArray>> chunks_;
};

}  // namespace brim::python
