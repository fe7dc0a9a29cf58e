// SPDX-License-Identifier: Apache-2.0
#include "text/spm/metaspace.h"

#include <cstring>

#include "base/utf8.h"
#include "text/components.h"
#include "text/json_reader.h"

namespace brim::text {
namespace {

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const MetaspaceConfig& config) : prepend_(config.prepend), split_(config.split) {
    append_utf8(mark_, config.replacement);
  }

  void apply(PreTokenized& text) const override {
    thread_local NormalizedText fresh;
    thread_local std::vector<Piece> pieces;
    fresh.clear();
    fresh.take_settings(text.text);
    pieces.clear();
    for (const Piece& piece : text.pieces) rewrite(text, piece, fresh, pieces);
    text.text.swap(fresh);
    text.pieces.swap(pieces);
  }

  Traits traits() const override {
    return {.marks_words = prepend_ == PrependScheme::always && split_ && mark_ == "\u2581"};
  }

  bool needs_spans() const override { return prepend_ == PrependScheme::first; }

 private:
  bool mark_at(std::string_view text, size_t at) const { return text.compare(at, mark_.size(), mark_) == 0; }

  void rewrite(const PreTokenized& from, const Piece& piece, NormalizedText& to, std::vector<Piece>& pieces) const {
    const NormalizedText& old = from.text;
    const std::string_view text = std::string_view(old.text).substr(0, piece.end);
    auto begin = static_cast<uint32_t>(to.text.size());
    const bool marked = text[piece.begin] == ' ' || mark_at(text, piece.begin);
    const bool wanted = prepend_ == PrependScheme::always || (prepend_ == PrependScheme::first && from.at_start(piece));
    if (wanted && !marked) to.append(mark_, old.span_at(piece.begin));
    size_t copied = piece.begin;  // bytes before this one have been written
    for (size_t at = piece.begin; at < piece.end; ++at) {
      const bool space = text[at] == ' ';
      if (!space && (text[at] != mark_[0] || !mark_at(text, at))) continue;
      to.copy_from(old, copied, at);
      const auto end = static_cast<uint32_t>(to.text.size());
      if (split_ && end > begin) {
        pieces.push_back({begin, end});
        begin = end;
      }
      to.append(mark_, old.span_at(at));
      if (!space) at += mark_.size() - 1;
      copied = at + 1;
    }
    to.copy_from(old, copied, piece.end);
    pieces.push_back({begin, static_cast<uint32_t>(to.text.size())});
  }

  std::string mark_;
  PrependScheme prepend_;
  bool split_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_metaspace(const MetaspaceConfig& config) {
  return std::make_unique<Metaspace>(config);
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonValue& json) {
  MetaspaceConfig config;
  const std::string mark = json.at("replacement").as_string();
  if (count_code_points(mark) != 1) json.at("replacement").fail("must be one character");
  config.replacement = decode_valid(mark, 0).value;
  const std::string scheme = json.get("prepend_scheme", "always");
  if (scheme == "always") {
    config.prepend = PrependScheme::always;
  } else if (scheme == "first") {
    config.prepend = PrependScheme::first;
  } else if (scheme == "never") {
    config.prepend = PrependScheme::never;
  } else {
    json.at("prepend_scheme").fail("must be always, first or never");
  }
  // Older files use this key.
  if (!json.get("add_prefix_space", true)) config.prepend = PrependScheme::never;
  config.split = json.get("split", true);
  return make_metaspace(config);
}

}  // namespace brim::text
