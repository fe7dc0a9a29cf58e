// SPDX-License-Identifier: Apache-2.0
#include "text/spm/spm_model.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/utf8.h"

namespace brim::text {
namespace {

// Iterates over the fields of a protobuf message. Positions in error messages are bytes of the whole file.
class Fields {
 public:
  Fields(std::string_view bytes, size_t file_offset, const char* message, const std::filesystem::path& file)
      : bytes_(bytes), base_(file_offset), message_(message), file_(&file) {}

  // Advances to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    start_ = at_;
    const uint64_t key = varint("a field's key");
    field_ = key >> 3;
    wire_ = static_cast<int>(key & 7);
    if (field_ == 0 || field_ > kLargestField) bad("field number {}", field_);
    return true;
  }

  uint64_t field() const { return field_; }
  size_t file_offset() const { return base_ + start_; }

  uint64_t read_varint(const char* what) {
    expect(0, what);
    return varint(what);
  }
  int32_t read_int(const char* what) { return static_cast<int32_t>(read_varint(what)); }
  bool read_bool(const char* what) { return read_varint(what) != 0; }
  float read_float(const char* what) {
    expect(5, what);
    const std::string_view raw = take(4, what);
    uint32_t bits = 0;
    for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<unsigned char>(raw[i]);
    return std::bit_cast<float>(bits);
  }
  std::string_view read_bytes(const char* what) {
    expect(2, what);
    const uint64_t size = varint(what);
    return take(size, what);
  }
  std::string read_text(const char* what) {
    const std::string_view text = read_bytes(what);
    if (!is_valid_utf8(text)) bad("{} is not UTF-8", what);
    return std::string(text);
  }
  Fields read_message(const char* name) {
    const std::string_view inner = read_bytes(name);
    return Fields(inner, base_ + at_ - inner.size(), name, *file_);
  }
  void skip() {
    switch (wire_) {
      case 0:
        varint("a field");
        break;
      case 1:
        take(8, "a field");
        break;
      case 2:
        read_bytes("a field");
        break;
      case 5:
        take(4, "a field");
        break;
      default:
        bad("field {} has wire type {}", field_, wire_);
    }
  }

  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::bad_model,
         "{}: byte {}, {}: {}; the file is damaged or not a SentencePiece model; download it again", file_->string(),
         base_ + start_, message_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  static constexpr uint64_t kLargestField = (1u << 29) - 1;

  void expect(int wire, const char* what) const {
    if (wire_ != wire) bad("{} has wire type {}, expected {}", what, wire_, wire);
  }
  uint64_t varint(const char* what) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == bytes_.size()) bad("{} is truncated", what);
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    bad("{} is longer than ten bytes", what);
  }
  std::string_view take(uint64_t size, const char* what) {
    if (size > bytes_.size() - at_) bad("{} requires {} bytes, but {} are left", what, size, bytes_.size() - at_);
    const std::string_view out = bytes_.substr(at_, size);
    at_ += size;
    return out;
  }

  std::string_view bytes_;
  size_t base_;
  const char* message_;
  const std::filesystem::path* file_;
  size_t at_ = 0, start_ = 0;
  uint64_t field_ = 0;
  int wire_ = 0;
};

// A tiktoken vocabulary has lines of a token in base64 and its rank, such as "IQ== 0".
bool is_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.substr(0, 1024).find('\n'), bytes.size()));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space % 4 != 0 || space + 1 == line.size()) return false;
  const auto is_base64 = [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '+' || c == '/' || c == '=');
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(space), is_base64) &&
         std::all_of(line.begin() + static_cast<std::ptrdiff_t>(space) + 1, line.end(), is_digit);
}

SpmPiece read_piece(Fields fields, size_t id) {
  SpmPiece piece;
  while (fields.next()) {
    switch (fields.field()) {
      case 1:
        piece.text = fields.read_text("piece");
        break;
      case 2:
        piece.score = fields.read_float("score");
        break;
      case 3: {
        const uint64_t type = fields.read_varint("type");
        if (type < 1 || type > 6) fields.bad("piece {} has type {}, must be from 1 to 6", id, type);
        piece.type = static_cast<SpmPieceType>(type);
        break;
      }
      default:
        fields.skip();
    }
  }
  if (piece.text.empty()) fields.bad("piece {} is empty", id);
  if (!std::isfinite(piece.score)) fields.bad("piece {} ({}) has score {}", id, piece.text, piece.score);
  return piece;
}

void read_trainer(Fields fields, SpmModel& model) {
  while (fields.next()) {
    switch (fields.field()) {
      case 3: {
        const uint64_t type = fields.read_varint("model_type");
        if (type < 1 || type > 4) fields.bad("model_type is {}, must be from 1 to 4", type);
        model.algorithm = static_cast<SpmAlgorithm>(type);
        break;
      }
      case 35:
        model.byte_fallback = fields.read_bool("byte_fallback");
        break;
      case 40:
        model.unk_id = fields.read_int("unk_id");
        break;
      case 41:
        model.bos_id = fields.read_int("bos_id");
        break;
      case 42:
        model.eos_id = fields.read_int("eos_id");
        break;
      case 43:
        model.pad_id = fields.read_int("pad_id");
        break;
      case 45:
        model.unk_piece = fields.read_text("unk_piece");
        break;
      case 46:
        model.bos_piece = fields.read_text("bos_piece");
        break;
      case 47:
        model.eos_piece = fields.read_text("eos_piece");
        break;
      case 48:
        model.pad_piece = fields.read_text("pad_piece");
        break;
      default:
        fields.skip();
    }
  }
}

void read_normalizer(Fields fields, SpmModel& model) {
  while (fields.next()) {
    switch (fields.field()) {
      case 2:
        model.precompiled_charsmap = std::string(fields.read_bytes("precompiled_charsmap"));
        break;
      case 3:
        model.add_dummy_prefix = fields.read_bool("add_dummy_prefix");
        break;
      case 4:
        model.remove_extra_whitespaces = fields.read_bool("remove_extra_whitespaces");
        break;
      case 5:
        model.escape_whitespaces = fields.read_bool("escape_whitespaces");
        break;
      default:
        fields.skip();
    }
  }
}

}  // namespace

SpmModel parse_spm_model(std::string_view bytes, const std::filesystem::path& file) {
  if (is_tiktoken(bytes))
    fail(ErrorCode::bad_model,
         "{}: is a tiktoken vocabulary, not a SentencePiece model; save a tokenizer.json with transformers "
         "(AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))",
         file.string());
  SpmModel model;
  Fields fields(bytes, 0, "model", file);
  while (fields.next()) {
    switch (fields.field()) {
      case 1:
        model.pieces.push_back(read_piece(fields.read_message("pieces"), model.pieces.size()));
        break;
      case 2:
        read_trainer(fields.read_message("trainer_spec"), model);
        break;
      case 3:
        read_normalizer(fields.read_message("normalizer_spec"), model);
        break;
      default:
        fields.skip();
    }
  }
  const size_t count = model.pieces.size();
  if (count == 0) fields.bad("no pieces");
  if (count > INT32_MAX) fields.bad("{} pieces", count);
  std::unordered_set<std::string_view> seen;
  seen.reserve(count);
  for (size_t id = 0; id < count; ++id) {
    if (!seen.insert(model.pieces[id].text).second) fields.bad("duplicate piece {} ({})", id, model.pieces[id].text);
  }
  if (model.unk_id < 0 || static_cast<size_t>(model.unk_id) >= count) {
    fields.bad("unk_id is {}, must be below {}", model.unk_id, count);
  }
  return model;
}

SpmModel read_spm_model(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return parse_spm_model(mapped.text(), file);
}

}  // namespace brim::text
