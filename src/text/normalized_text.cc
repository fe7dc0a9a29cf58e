// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "base/utf8.h"
#include "text/pipeline.h"

namespace brim::text {

void NormalizedText::reset(std::string_view utf8, bool track, int32_t first) {
  text.assign(utf8);
  spans.clear();
  tracked = track;
  origin = first;
  limit = kMostGrowth * utf8.size() + kFreeBytes;
  if (!track) return;
  spans.resize(text.size());
  int32_t at = first;
  for (size_t i = 0; i < text.size(); ++at) {
    const auto bytes = static_cast<size_t>(decode_valid(text, i).bytes);
    for (size_t k = 0; k < bytes; ++k) spans[i + k] = {at, at + 1};
    i += bytes;
  }
}

void NormalizedText::clear() {
  text.clear();
  spans.clear();
}

void NormalizedText::swap(NormalizedText& other) noexcept {
  text.swap(other.text);
  spans.swap(other.spans);
  std::swap(tracked, other.tracked);
  std::swap(origin, other.origin);
  std::swap(limit, other.limit);
}

void NormalizedText::fail_limit() const {
  fail(ErrorCode::bad_model,
       "the tokenizer's normalizer expands a text of {} bytes to more than {} bytes; remove the expanding rules from "
       "tokenizer.json",
       (limit - kFreeBytes) / kMostGrowth, limit);
}

void NormalizedText::append(char32_t c, Span span) {
  const size_t before = text.size();
  append_utf8(text, c);
  expect_bytes(text.size());
  if (tracked) spans.insert(spans.end(), text.size() - before, span);
}

void NormalizedText::transform(std::span<const Rewrite> chars, size_t skipped) {
  NormalizedText out = emptied();
  out.text.reserve(text.size() + 8);
  if (!tracked) {
    for (const Rewrite& r : chars) append_utf8(out.text, r.c);
    expect_bytes(out.text.size());
    swap(out);
    return;
  }
  out.spans.reserve(spans.size() + 8);
  size_t at = 0;  // byte of the old text that corresponds to the next code point
  auto skip = [&] {
    if (at < text.size()) at += static_cast<size_t>(decode_valid(text, at).bytes);
  };
  for (size_t i = 0; i < skipped; ++i) skip();
  for (const Rewrite& r : chars) {
    Span span{origin, origin};
    if (r.change > 0) {
      if (at > 0) span = spans[at - 1];
    } else if (at < spans.size()) {
      span = spans[at];
    }
    out.append(r.c, span);
    for (int32_t k = r.change; k <= 0; ++k) skip();
  }
  swap(out);
}

}  // namespace brim::text
