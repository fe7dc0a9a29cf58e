// SPDX-License-Identifier: Apache-2.0
// Decoders of tokenizer.json: tokens back to text.
// An unknown decoder fails on first use, not when the model loads, because most runs never decode.
#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/components.h"
#include "text/hf/byte_level.h"
#include "text/hf/pattern.h"
#include "text/json_reader.h"

namespace brim::text {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

// "##ing" continues the previous word; other tokens begin a word.
class WordPieceDecoder final : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix_))
        token.erase(0, prefix_.size());
      else if (i > 0)
        token.insert(0, 1, ' ');
      if (cleanup_) clean(token);
    }
  }

 private:
  static void clean(std::string& token) {
    static constexpr std::pair<const char*, const char*> kSpaces[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kSpaces) replace_all(token, from, to);
  }
  const std::string prefix_;
  const bool cleanup_;
};

class ByteLevelDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    std::string all, bytes;
    for (const std::string& token : tokens) all += from_byte_level(token, bytes) ? bytes : token;
    tokens = {replace_invalid_utf8(all)};
  }
};

class MetaspaceDecoder final : public Decoder {
 public:
  MetaspaceDecoder(std::string mark, bool prepended) : mark_(std::move(mark)), prepended_(prepended) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], mark_, i == 0 && prepended_ ? "" : " ");
  }

 private:
  const std::string mark_;
  const bool prepended_;
};

// A suffix marks the end of a word.
class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 < tokens.size() ? " " : "");
  }

 private:
  const std::string suffix_;
};

// Runs of <0x41> tokens decode as UTF-8; if invalid, each becomes U+FFFD.
class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (is_valid_utf8(bytes))
        out.push_back(bytes);
      else
        out.insert(out.end(), bytes.size(), "\uFFFD");
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_of(token); byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static int byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    return value;
  }
};

class FuseDecoder final : public Decoder {
 public:
  void apply(Tokens& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {all};
  }
};

// Strips up to a given number of one character from both ends of each token.
class StripDecoder final : public Decoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      for (int64_t n = 0; n < start_ && token.starts_with(content_); ++n) token.erase(0, content_.size());
      for (int64_t n = 0; n < stop_ && token.ends_with(content_); ++n) token.resize(token.size() - content_.size());
    }
  }

 private:
  const std::string content_;
  const int64_t start_, stop_;
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      std::string out;
      size_t done = 0;
      pattern_.for_each_match(token, [&](size_t begin, size_t end) {
        out.append(token, done, begin - done);
        out += content_;
        done = end;
      });
      out.append(token, done);
      token = std::move(out);
    }
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> parts) : parts_(std::move(parts)) {}
  void apply(Tokens& tokens) const override {
    for (const auto& part : parts_) part->apply(tokens);
  }

 private:
  const std::vector<std::unique_ptr<Decoder>> parts_;
};

class UnknownDecoder final : public Decoder {
 public:
  explicit UnknownDecoder(std::string type) : type_(std::move(type)) {}
  void apply(Tokens&) const override { fail(ErrorCode::bad_model, "cannot decode ids: unsupported decoder {}", type_); }

 private:
  const std::string type_;
};

}  // namespace

std::unique_ptr<Decoder> make_wordpiece_decoder() { return std::make_unique<WordPieceDecoder>("##", true); }
std::unique_ptr<Decoder> make_byte_level_decoder() { return std::make_unique<ByteLevelDecoder>(); }

std::unique_ptr<Decoder> make_decoder(const JsonValue& json) {
  json.expect_object();
  const std::string type = json.at("type").as_string();
  const auto not_empty = [&](const char* key, const char* usual) {
    std::string value = json.get(key, usual);
    if (value.empty()) json.at(key).fail("must not be empty");
    return value;
  };
  if (type == "WordPiece")
    return std::make_unique<WordPieceDecoder>(json.get("prefix", "##"), json.get("cleanup", true));
  if (type == "ByteLevel") return make_byte_level_decoder();
  if (type == "Metaspace") {
    const bool prepended = json.has("prepend_scheme") ? json.at("prepend_scheme").as_string() != "never"
                                                      : json.get("add_prefix_space", true);
    return std::make_unique<MetaspaceDecoder>(not_empty("replacement", "\u2581"), prepended);
  }
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(not_empty("suffix", "</w>"));
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Strip")
    return std::make_unique<StripDecoder>(not_empty("content", " "), json.get("start", int64_t{0}),
                                          json.get("stop", int64_t{0}));
  if (type == "Replace")
    return std::make_unique<ReplaceDecoder>(read_pattern(json.at("pattern")), json.get("content", ""));
  if (type == "Sequence") {
    const JsonValue list = json.at("decoders");
    list.expect_array();
    std::vector<std::unique_ptr<Decoder>> parts;
    for (size_t i = 0; i < list.size(); ++i) parts.push_back(make_decoder(list.at(i)));
    return std::make_unique<DecoderSequence>(std::move(parts));
  }
  return std::make_unique<UnknownDecoder>(type);
}

}  // namespace brim::text
