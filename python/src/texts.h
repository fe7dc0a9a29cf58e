// SPDX-License-Identifier: Apache-2.0
// Texts of a Python caller as views: of the strs of a list, or of the buffers an Arrow producer hands over through its
// C data interface (pyarrow, pandas, polars, datasets). Nothing is copied; what the views point into is held.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::python {

// The published layout of the Arrow C data interface.
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

// One of those structs, owned: what a capsule holds is moved out of it.
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

// A row that holds no text: None or NaN, another type, or a str that has no UTF-8.
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
  nanobind::object held_;  // a tuple of the strs
  std::vector<ArrowOwned<ArrowArray>> chunks_;
};

}  // namespace brim::python
