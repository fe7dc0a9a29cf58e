// SPDX-License-Identifier: Apache-2.0
#include "texts.h"

#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "brim/error.h"

namespace nb = nanobind;

namespace brim::python {
namespace {

constexpr const char* kNull = "null";

// Memory layouts of Arrow string arrays.
enum class Layout : uint8_t { utf8, large_utf8, utf8_view, nulls };

std::optional<Layout> layout_of(std::string_view format) {
  if (format == "u") return Layout::utf8;
  if (format == "U") return Layout::large_utf8;
  if (format == "vu") return Layout::utf8_view;
  if (format == "n") return Layout::nulls;
  return std::nullopt;
}

bool is_valid(const ArrowArray& array, int64_t row) {
  if (array.null_count == 0 || array.buffers[0] == nullptr) return true;
  const int64_t bit = array.offset + row;
  return (static_cast<const uint8_t*>(array.buffers[0])[bit / 8] >> (bit % 8) & 1) != 0;
}

template <class Offset>
std::string_view offset_text(const ArrowArray& array, int64_t row) {
  const auto* offsets = static_cast<const Offset*>(array.buffers[1]) + array.offset + row;
  return {static_cast<const char*>(array.buffers[2]) + offsets[0], static_cast<size_t>(offsets[1] - offsets[0])};
}

// Sixteen bytes per text: its length, then up to twelve bytes inline, or a four-byte prefix, buffer index and offset.
std::string_view view_text(const ArrowArray& array, int64_t row) {
  const auto* view = static_cast<const char*>(array.buffers[1]) + (array.offset + row) * 16;
  int32_t part[4];
  std::memcpy(part, view, sizeof part);
  if (part[0] <= 12) return {view + 4, static_cast<size_t>(part[0])};
  return {static_cast<const char*>(array.buffers[2 + part[2]]) + part[3], static_cast<size_t>(part[0])};
}

std::optional<std::string_view> text_at(Layout layout, const ArrowArray& array, int64_t row) {
  if (layout == Layout::nulls || !is_valid(array, row)) return std::nullopt;
  switch (layout) {
    case Layout::utf8:
      return offset_text<int32_t>(array, row);
    case Layout::large_utf8:
      return offset_text<int64_t>(array, row);
    default:
      return view_text(array, row);
  }
}

template <class Integer>
int64_t integer_at(const ArrowArray& array, int64_t row) {
  return static_cast<int64_t>(static_cast<const Integer*>(array.buffers[1])[array.offset + row]);
}

std::optional<int64_t> index_at(char format, const ArrowArray& array, int64_t row) {
  switch (format) {
    case 'c':
      return integer_at<int8_t>(array, row);
    case 'C':
      return integer_at<uint8_t>(array, row);
    case 's':
      return integer_at<int16_t>(array, row);
    case 'S':
      return integer_at<uint16_t>(array, row);
    case 'i':
      return integer_at<int32_t>(array, row);
    case 'I':
      return integer_at<uint32_t>(array, row);
    case 'l':
    case 'L':
      return integer_at<int64_t>(array, row);
    default:
      return std::nullopt;
  }
}

// Type names as in pyarrow: "int64" for the format "l".
std::string type_name(std::string_view format) {
  static const std::pair<std::string_view, const char*> names[] = {
      {"b", "bool"},     {"c", "int8"},    {"C", "uint8"},   {"s", "int16"},
      {"S", "uint16"},   {"i", "int32"},   {"I", "uint32"},  {"l", "int64"},
      {"L", "uint64"},   {"e", "float16"}, {"f", "float32"}, {"g", "float64"},
      {"z", "binary"},   {"Z", "binary"},  {"vz", "binary"}, {"tdD", "date32"},
      {"tdm", "date64"}, {"+l", "list"},   {"+L", "list"},   {"+vl", "list"},
      {"+m", "map"},     {"+s", "struct"}, {"n", "null"},    {"+r", "run_end_encoded"},
  };
  for (const auto& [key, name] : names)
    if (key == format) return name;
  if (format.starts_with("ts")) return "timestamp";
  if (format.starts_with("tt")) return "time";
  if (format.starts_with("tD")) return "duration";
  if (format.starts_with("d:")) return "decimal";
  if (format.starts_with("w:")) return "binary";
  if (format.starts_with("+w")) return "list";
  return std::string(format);
}

[[noreturn]] void not_texts(const ArrowSchema& schema) {
  if (std::string_view(schema.format) == "+s")
    throw Error(ErrorCode::usage, "expected a column of texts, got a table", {"select it with `column=text`"});
  throw Error(ErrorCode::bad_data, "the column has no texts: its type is " + type_name(schema.format),
              {"cast it to strings, or use another column"});
}

template <class Struct>
ArrowOwned<Struct> taken_from(const nb::capsule& capsule, const char* name) {
  auto* inside = static_cast<Struct*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (inside == nullptr) throw nb::python_error();
  if (inside->release == nullptr) throw Error(ErrorCode::usage, "the Arrow capsule has already been consumed");
  return ArrowOwned<Struct>(inside);
}

std::string class_name(nb::handle object) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  return nb::cast<std::string>(nb::object(type.attr("__name__")));
}

std::string bad_name(nb::handle object) {
  if (object.is_none()) return "None";
  if (PyFloat_Check(object.ptr()) && std::isnan(PyFloat_AsDouble(object.ptr()))) return "NaN";
  return class_name(object);
}

}  // namespace

void Texts::add(std::string_view text) {
  bytes_ += text.size() + 1;
  views_.push_back(text);
}

void Texts::add_bad(std::string what) {
  bad_.push_back({views_.size(), std::move(what)});
  views_.emplace_back();
}

Texts Texts::from_sequence(nb::handle list_or_tuple) {
  Texts texts;
  // Copied to a tuple: another thread may change the list while its strings are read.
  texts.held_ = nb::steal(PySequence_Tuple(list_or_tuple.ptr()));
  if (!texts.held_.is_valid()) throw nb::python_error();
  const auto rows = static_cast<size_t>(PyTuple_Size(texts.held_.ptr()));
  texts.views_.reserve(rows);
  for (size_t row = 0; row < rows; ++row) {
    PyObject* object = PyTuple_GetItem(texts.held_.ptr(), static_cast<Py_ssize_t>(row));
    if (!PyUnicode_Check(object)) {
      texts.add_bad(bad_name(object));
      continue;
    }
    Py_ssize_t size = 0;
    if (const char* bytes = PyUnicode_AsUTF8AndSize(object, &size)) {
      texts.add({bytes, static_cast<size_t>(size)});
    } else {
      if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw nb::python_error();
      PyErr_Clear();
      texts.add_bad("a lone surrogate");
    }
  }
  return texts;
}

void Texts::add_chunk(const ArrowSchema& schema, ArrowOwned<ArrowArray>&& chunk) {
  if (chunk->length == 0) return;  // regardless of type: an empty frame may not have a string column
  views_.reserve(views_.size() + static_cast<size_t>(chunk->length));
  const auto put = [this](std::optional<std::string_view> text) {
    if (text)
      add(*text);
    else
      add_bad(kNull);
  };
  if (schema.dictionary != nullptr) {
    const auto layout = layout_of(schema.dictionary->format);
    if (!layout || !index_at(schema.format[0], *chunk, 0)) not_texts(*schema.dictionary);
    for (int64_t row = 0; row < chunk->length; ++row)
      put(is_valid(*chunk, row) ? text_at(*layout, *chunk->dictionary, *index_at(schema.format[0], *chunk, row))
                                : std::nullopt);
  } else {
    const auto layout = layout_of(schema.format);
    if (!layout) not_texts(schema);
    for (int64_t row = 0; row < chunk->length; ++row) put(text_at(*layout, *chunk, row));
  }
  chunks_.push_back(std::move(chunk));
}

Texts Texts::from_stream(const nb::capsule& capsule) {
  auto stream = taken_from<ArrowArrayStream>(capsule, "arrow_array_stream");
  const auto check = [&](int code) {
    if (code == 0) return;
    const char* error = stream->get_last_error(&*stream);
    throw Error(ErrorCode::bad_data,
                "the Arrow stream failed: " + std::string(error != nullptr ? error : strerror(code)));
  };
  ArrowOwned<ArrowSchema> schema;
  check(stream->get_schema(&*stream, &*schema));
  Texts texts;
  while (true) {
    ArrowOwned<ArrowArray> chunk;
    check(stream->get_next(&*stream, &*chunk));
    if (chunk->release == nullptr) return texts;
    texts.add_chunk(*schema, std::move(chunk));
  }
}

Texts Texts::from_array(const nb::capsule& schema_capsule, const nb::capsule& array_capsule) {
  auto schema = taken_from<ArrowSchema>(schema_capsule, "arrow_schema");
  Texts texts;
  texts.add_chunk(*schema, taken_from<ArrowArray>(array_capsule, "arrow_array"));
  return texts;
}

}  // namespace brim::python
