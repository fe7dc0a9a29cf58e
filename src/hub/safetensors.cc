// SPDX-License-Identifier: Apache-2.0
#include "hub/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/json_text.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the reference implementation
constexpr size_t kMaxDims = 64;
constexpr const char* kDownloadAgain = "the file is damaged or truncated: download it again";

// Every element type of the format, in the order of the reference (its writer sorts by it), because a file may hold
// tensors of types that Brim does not support.
struct StoredType {
  std::string_view name;
  int bits;
};
constexpr StoredType kTypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16}, {"BF16", 16}, {"I32", 32},
    {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},    {"I64", 64}, {"U64", 64},
};

const StoredType* stored_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

struct HeaderEntry {
  std::string name;
  const StoredType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

// Reads the header event by event. Its structure is fixed, so anything else is rejected immediately, and a nested or
// huge document needs no more memory than its text.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::vector<HeaderEntry> entries;
  Metadata metadata;

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("a boolean"); }
  bool number_float(double, const std::string& text) override { refuse(io::quote_text(text)); }
  bool binary(binary_t&) override { refuse("binary data"); }

  bool number_integer(int64_t value) override { refuse(std::to_string(value)); }

  bool number_unsigned(uint64_t value) override {
    if (state_ == State::shape) {
      if (entries.back().shape.size() == kMaxDims || value > static_cast<uint64_t>(INT64_MAX))
        refuse(std::to_string(value));
      entries.back().shape.push_back(static_cast<int64_t>(value));
    } else if (state_ == State::offsets && entries.back().offsets.size() < 2) {
      entries.back().offsets.push_back(value);
    } else {
      refuse(std::to_string(value));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::metadata) {
      if (!metadata.emplace(key_, value).second)
        fail(ErrorCode::bad_model, "{}: __metadata__ has the duplicate key {}: {}", where_, io::quote_text(key_),
             kDownloadAgain);
    } else if (state_ == State::tensor && key_ == "dtype") {
      HeaderEntry& entry = entries.back();
      if (entry.type != nullptr) repeated();
      entry.type = stored_type(value);
      if (entry.type == nullptr)
        fail(ErrorCode::bad_model, "{}: tensor {}: unknown dtype {}: the file is newer than Brim or damaged", where_,
             io::quote_text(entry.name), io::quote_text(value));
    } else {
      refuse(io::quote_text(value));
    }
    return true;
  }

  bool start_object(size_t) override {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::top && key_ == "__metadata__") {
      if (std::exchange(saw_metadata_, true)) duplicate(key_);
      state_ = State::metadata;
    } else if (state_ == State::top) {
      entries.emplace_back().name = key_;
      state_ = State::tensor;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) check_complete(entries.back());
    state_ = state_ == State::top ? State::done : State::top;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::tensor && key_ == "shape") {
      if (std::exchange(entries.back().has_shape, true)) repeated();
      state_ = State::shape;
    } else if (state_ == State::tensor && key_ == "data_offsets") {
      if (!entries.back().offsets.empty()) repeated();
      state_ = State::offsets;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets && entries.back().offsets.size() != 2)
      fail(ErrorCode::bad_model, "{}: tensor {}: data_offsets has {} numbers, not 2: {}", where_,
           io::quote_text(entries.back().name), entries.back().offsets.size(), kDownloadAgain);
    state_ = State::tensor;
    return true;
  }

  bool key(std::string& value) override {
    key_ = value;
    if (state_ == State::tensor && value != "dtype" && value != "shape" && value != "data_offsets")
      fail(ErrorCode::bad_model, "{}: tensor {}: unknown key {}: the file is newer than Brim or damaged", where_,
           io::quote_text(entries.back().name), io::quote_text(value));
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    fail(ErrorCode::bad_model, "{}: header, byte {}: not valid JSON: {}: {}", where_, position,
         io::json_reason(error.what()), kDownloadAgain);
  }

  [[noreturn]] void duplicate(std::string_view name) const {
    fail(ErrorCode::bad_model, "{}: duplicate tensor {} in the header: {}", where_, io::quote_text(name),
         kDownloadAgain);
  }

 private:
  enum class State { start, top, metadata, tensor, shape, offsets, done };

  [[noreturn]] void refuse(const std::string& what) const {
    static const char* const expected[] = {"an object",
                                           "an object for each tensor",
                                           "a string",
                                           "a dtype string, shape and data_offsets arrays",
                                           "at most 64 non-negative dimensions",
                                           "two integers",
                                           "the end"};
    fail(ErrorCode::bad_model, "{}: header{}: found {}, expected {}: {}", where_,
         key_.empty() ? "" : fmt::format(", key {}", place()), what, expected[static_cast<int>(state_)],
         kDownloadAgain);
  }
  [[noreturn]] void repeated() const {
    fail(ErrorCode::bad_model, "{}: header: duplicate {}: {}", where_, place(), kDownloadAgain);
  }
  std::string place() const {
    const bool in_tensor = state_ == State::tensor || state_ == State::shape || state_ == State::offsets;
    return in_tensor ? fmt::format("{} of tensor {}", key_, io::quote_text(entries.back().name)) : io::quote_text(key_);
  }
  void check_complete(const HeaderEntry& entry) const {
    const char* missing = entry.type == nullptr   ? "dtype"
                          : !entry.has_shape      ? "shape"
                          : entry.offsets.empty() ? "data_offsets"
                                                  : nullptr;
    if (missing != nullptr)
      fail(ErrorCode::bad_model, "{}: tensor {}: {} is missing: {}", where_, io::quote_text(entry.name), missing,
           kDownloadAgain);
  }

  const std::string& where_;
  State state_ = State::start;
  std::string key_;
  bool saw_metadata_ = false;
};

std::string_view read_header(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < 8)
    fail(ErrorCode::bad_model, "{}: {} bytes are too few for a safetensors file: {}", where, file.size(),
         kDownloadAgain);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(file[static_cast<size_t>(i)]);
  const std::string hint = foreign_file_hint(file);
  if (length > kMaxHeaderBytes || !hint.empty())
    fail(ErrorCode::bad_model, "{}: not a safetensors file: header of {} bytes exceeds {}{}", where, length,
         kMaxHeaderBytes, hint);
  if (length > file.size() - 8)
    fail(ErrorCode::bad_model, "{}: the header length of {} bytes exceeds the file of {}: {}", where, length,
         file.size(), kDownloadAgain);
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (!header.starts_with('{'))
    fail(ErrorCode::bad_model, "{}: not a safetensors file: the header starts with {}, not '{{'", where,
         io::quote_text(header.substr(0, 1)));
  return header;
}

// Each tensor must start at the end of the previous one, and the last must end at the end of the file.
void check_layout(std::vector<HeaderEntry>& entries, uint64_t data_bytes, const HeaderReader& reader,
                  const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < entries.size(); ++i)
    if (entries[i].name == entries[i - 1].name) reader.duplicate(entries[i].name);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.offsets < b.offsets; });
  uint64_t end = 0;
  std::string before = "the header";
  for (const HeaderEntry& entry : entries) {
    const auto [from, to] = std::pair(entry.offsets[0], entry.offsets[1]);
    const std::string tensor = fmt::format("{}: tensor {}", where, io::quote_text(entry.name));
    if (from > to)
      fail(ErrorCode::bad_model, "{}: data_offsets [{}, {}] are not ascending: {}", tensor, from, to, kDownloadAgain);
    if (to > data_bytes)
      fail(ErrorCode::bad_model, "{}: data_offsets [{}, {}] are outside the {} bytes of data: {}", tensor, from, to,
           data_bytes, kDownloadAgain);
    if (from < end)
      fail(ErrorCode::bad_model, "{}: data_offsets [{}, {}] overlap {}, which ends at {}: {}", tensor, from, to, before,
           end, kDownloadAgain);
    if (from > end)
      fail(ErrorCode::bad_model, "{}: data_offsets [{}, {}] leave a gap of {} bytes after {}: {}", tensor, from, to,
           from - end, before, kDownloadAgain);
    int64_t bits = 0;
    const auto elements = count_elements(entry.shape);
    if (!elements || __builtin_mul_overflow(*elements, int64_t{entry.type->bits}, &bits))
      fail(ErrorCode::bad_model, "{}: shape {} is too large: {}", tensor, shape_text(entry.shape), kDownloadAgain);
    if (bits % 8 != 0 || static_cast<uint64_t>(bits / 8) != to - from)
      fail(ErrorCode::bad_model, "{}: {}{} requires {} bytes, but data_offsets [{}, {}] cover {}: {}", tensor,
           entry.type->name, shape_text(entry.shape), bits / 8, from, to, to - from, kDownloadAgain);
    end = to;
    before = "tensor " + io::quote_text(entry.name);
  }
  if (end != data_bytes)
    fail(ErrorCode::bad_model, "{}: {} bytes after the last tensor ({} of {} are described): {}", where,
         data_bytes - end, end, data_bytes, kDownloadAgain);
}

}  // namespace

SafetensorsContents parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  const std::string_view header = read_header(file, where);
  HeaderReader reader(where);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  const auto data = file.subspan(8 + header.size());
  check_layout(reader.entries, data.size(), reader, where);
  SafetensorsContents contents;
  for (HeaderEntry& entry : reader.entries) {
    StoredTensor tensor;
    tensor.dtype = tensor::dtype_from_safetensors(entry.type->name);
    tensor.dtype_text = entry.type->name;
    tensor.elements = *count_elements(entry.shape);
    tensor.shape = std::move(entry.shape);
    tensor.data = data.data() + entry.offsets[0];
    contents.tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  contents.metadata = std::move(reader.metadata);
  return contents;
}

// ---- writing ----

namespace {

size_t spec_bytes(const SafetensorsSpec& spec) {
  const auto elements = count_elements(spec.shape);
  BRIM_CHECK(elements.has_value(), "tensor {} has shape {}", spec.name, shape_text(spec.shape));
  return static_cast<size_t>(*elements) * static_cast<size_t>(dtype_bytes(spec.dtype));
}

// Order of the reference: types from wide to narrow, which keeps every tensor aligned, then names.
std::vector<SafetensorsSpec> in_file_order(std::vector<SafetensorsSpec> specs) {
  std::sort(specs.begin(), specs.end(), [](const SafetensorsSpec& a, const SafetensorsSpec& b) {
    const auto* type_a = stored_type(dtype_to_safetensors(a.dtype));
    const auto* type_b = stored_type(dtype_to_safetensors(b.dtype));
    return type_a != type_b ? type_a > type_b : a.name < b.name;
  });
  std::set<std::string_view> names = {"__metadata__"};
  for (const SafetensorsSpec& spec : specs)
    BRIM_CHECK(names.insert(spec.name).second, "tensor {} is declared twice or is a reserved name", spec.name);
  return specs;
}

std::string header_text(const std::vector<SafetensorsSpec>& specs, const Metadata& metadata) {
  auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += quoted(key) + ":" + quoted(value) + ",";
    text.back() = '}';
    text += ',';
  }
  size_t offset = 0;
  for (const SafetensorsSpec& spec : specs) {
    const size_t end = offset + spec_bytes(spec);
    text += fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}},)", quoted(spec.name),
                        dtype_to_safetensors(spec.dtype), shape_text(spec.shape), offset, end);
    offset = end;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                                     const Metadata& metadata)
    : file_(path), specs_(in_file_order(std::move(specs))) {
  const std::string header = header_text(specs_, metadata);
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  file_.write(length, sizeof length);
  file_.write(header);
  skip_complete();
}

void SafetensorsWriter::skip_complete() {
  while (current_ < specs_.size() && written_ == spec_bytes(specs_[current_])) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::append(std::string_view name, const void* data, size_t bytes) {
  if (bytes == 0) return;
  BRIM_CHECK(current_ < specs_.size(), "tensor {} appended after the last one", name);
  const SafetensorsSpec& spec = specs_[current_];
  BRIM_CHECK(spec.name == name, "tensor {} appended while {} is due", name, spec.name);
  BRIM_CHECK(bytes <= spec_bytes(spec) - written_, "tensor {}: {} bytes appended, {} are due", name, bytes,
             spec_bytes(spec) - written_);
  file_.write(data, bytes);
  written_ += bytes;
  skip_complete();
}

void SafetensorsWriter::commit() {
  BRIM_CHECK(current_ == specs_.size(), "tensor {} has {} bytes less than declared", specs_[current_].name,
             spec_bytes(specs_[current_]) - written_);
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, tensor::TensorView>& tensors,
                       const Metadata& metadata) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, view] : tensors) {
    BRIM_CHECK(view.contiguous(), "tensor {} {} is not contiguous", name, view.shape_text());
    specs.push_back({name, view.dtype, {view.dim.begin(), view.dim.begin() + view.rank}});
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const SafetensorsSpec& spec : writer.order()) {
    const tensor::TensorView& view = tensors.at(spec.name);
    // A scalar (rank 0) holds one element, although its view has zero elements.
    writer.append(spec.name, view.data, spec_bytes(spec));
  }
  writer.commit();
}

}  // namespace brim::hub
