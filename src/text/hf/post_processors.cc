// SPDX-License-Identifier: Apache-2.0
// The post-processors of tokenizer.json: add special tokens around a text, and trim offsets by the spaces that
// byte-level tokens include.
#include <algorithm>

#include "base/utf8.h"
#include "text/components.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

// A sequence of special tokens and the text itself (zero or more times).
class Template : public PostProcessor {
 public:
  struct Item {
    bool text = false;
    std::vector<int32_t> ids;
    std::vector<std::string> tokens;
  };
  explicit Template(std::vector<Item> items, std::optional<PairTemplate> pair = std::nullopt)
      : items_(std::move(items)), pair_(std::move(pair)) {}

  void apply(PostProcessed& output) const override {
    Encoding out;
    for (const Item& item : items_) {
      if (item.text) {
        const Encoding& in = output.encoding;
        out.ids.insert(out.ids.end(), in.ids.begin(), in.ids.end());
        out.tokens.insert(out.tokens.end(), in.tokens.begin(), in.tokens.end());
        out.offsets.insert(out.offsets.end(), in.offsets.begin(), in.offsets.end());
      } else {
        out.ids.insert(out.ids.end(), item.ids.begin(), item.ids.end());
        if (!output.full) continue;
        out.tokens.insert(out.tokens.end(), item.tokens.begin(), item.tokens.end());
        out.offsets.insert(out.offsets.end(), item.ids.size(), {0, 0});
      }
    }
    output.encoding = std::move(out);
  }

  bool surround(std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) const override {
    const auto is_text = [](const Item& item) { return item.text; };
    if (std::count_if(items_.begin(), items_.end(), is_text) != 1) return false;
    std::vector<int32_t> before;
    bool seen = false;
    for (const Item& item : items_) {
      seen = seen || item.text;
      auto& side = seen ? suffix : before;
      side.insert(side.end(), item.ids.begin(), item.ids.end());
    }
    prefix.insert(prefix.begin(), before.begin(), before.end());
    return true;
  }
  void added_ids(std::vector<int32_t>& ids) const override {
    for (const Item& item : items_) ids.insert(ids.end(), item.ids.begin(), item.ids.end());
  }

  const PairTemplate* pair() const override { return pair_ ? &*pair_ : nullptr; }

 private:
  std::vector<Item> items_;
  std::optional<PairTemplate> pair_;
};

// Excludes leading and trailing spaces (as visible in the token) from the offsets.
class TrimOffsets : public PostProcessor {
 public:
  explicit TrimOffsets(bool add_prefix_space) : add_prefix_space_(add_prefix_space) {}

  void apply(PostProcessed& output) const override {
    if (!output.full) return;
    for (size_t i = 0; i < output.encoding.tokens.size(); ++i) {
      const std::string& token = output.encoding.tokens[i];
      auto& [begin, end] = output.encoding.offsets[i];
      int32_t leading = 0, trailing = 0, run = 0;
      bool at_front = true;
      for (size_t k = 0; k < token.size();) {
        const CodePoint p = decode_valid(token, k);
        k += static_cast<size_t>(p.bytes);
        const bool space = p.value == 0x120 || unicode::is_white_space(p.value);
        run = space ? run + 1 : 0;
        at_front = at_front && space;
        if (at_front) ++leading;
      }
      trailing = run;
      if (leading > 0) {
        // The space that add_prefix_space inserted before the first word is not in the text.
        const bool own = (i == 0 || begin == 0) && add_prefix_space_ && leading == 1;
        begin = std::min(begin + (own ? 0 : leading), end);
      }
      if (trailing > 0 && end >= trailing) end = std::max(end - trailing, begin);
    }
  }
  bool surround(std::vector<int32_t>&, std::vector<int32_t>&) const override { return true; }
  void added_ids(std::vector<int32_t>&) const override {}

 private:
  bool add_prefix_space_;
};

class PostProcessorSequence : public PostProcessor {
 public:
  explicit PostProcessorSequence(std::vector<std::unique_ptr<PostProcessor>> parts) : parts_(std::move(parts)) {}
  void apply(PostProcessed& output) const override {
    for (const auto& part : parts_) part->apply(output);
  }
  bool surround(std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) const override {
    for (const auto& part : parts_) {
      if (!part->surround(prefix, suffix)) return false;
    }
    return true;
  }
  void added_ids(std::vector<int32_t>& ids) const override {
    for (const auto& part : parts_) part->added_ids(ids);
  }

  const PairTemplate* pair() const override {
    const PairTemplate* found = nullptr;
    for (const auto& part : parts_) {
      const PairTemplate* pair = part->pair();
      if (pair != nullptr && found != nullptr) return nullptr;  // nested templates are unsupported
      if (pair != nullptr) found = pair;
    }
    return found;
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> parts_;
};

int32_t read_id(const JsonValue& json) {
  const int64_t id = json.as_int();
  if (id < 0 || id > kIdMask) json.fail("is not a token id");
  return static_cast<int32_t>(id);
}

// ["[SEP]", 102]
Template::Item read_special(const JsonValue& json) {
  return {false, {read_id(json.at(size_t{1}))}, {json.at(size_t{0}).as_string()}};
}

Template::Item text_item() { return {true, {}, {}}; }

Template::Item read_template_item(const JsonValue& item, const JsonValue& processor) {
  if (item.has("Sequence")) {
    const JsonValue id = item.at("Sequence").at("id");
    if (id.as_string() != "A") id.fail("must be A in the template for single texts");
    return text_item();
  }
  const std::string name = item.at("SpecialToken").at("id").as_string();
  const JsonValue special = processor.at("special_tokens");
  if (!special.has(name.c_str())) item.fail("is not defined in special_tokens");
  const JsonValue token = special.at(name.c_str());
  Template::Item out;
  const JsonValue ids = token.at("ids"), tokens = token.at("tokens");
  ids.expect_array();
  tokens.expect_array();
  if (ids.size() != tokens.size()) token.fail("must have as many ids as tokens");
  for (size_t i = 0; i < ids.size(); ++i) {
    out.ids.push_back(read_id(ids.at(i)));
    out.tokens.push_back(tokens.at(i).as_string());
  }
  return out;
}

// Template for two texts: A once, before B, with at least one token between them.
std::optional<PairTemplate> read_pair_template(const JsonValue& processor) {
  if (!processor.has("pair")) return std::nullopt;
  const JsonValue list = processor.at("pair");
  list.expect_array();
  PairTemplate pair;
  std::vector<int32_t>* part = &pair.before;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonValue item = list.at(i);
    const bool text = item.has("Sequence");
    const JsonValue body = item.at(text ? "Sequence" : "SpecialToken");
    const int64_t type = body.at("type_id").as_int();
    if (type < 0 || type > INT8_MAX) body.at("type_id").fail("is not a valid token type");
    if (text) {
      const bool first = part == &pair.before;
      if (part == &pair.after || body.at("id").as_string() != (first ? "A" : "B")) return std::nullopt;
      (first ? pair.first_type : pair.second_type) = static_cast<int32_t>(type);
      part = first ? &pair.between : &pair.after;
      continue;
    }
    for (const int32_t id : read_template_item(item, processor).ids)
      part->push_back(typed(id, static_cast<int32_t>(type)));
  }
  if (part != &pair.after || pair.between.empty()) return std::nullopt;
  return pair;
}

}  // namespace

PairTemplate make_pair_template(PairStyle style, int32_t cls, int32_t sep) {
  if (style == PairStyle::roberta) return {{cls}, {sep, sep}, {sep}, 0, 0};
  return {{cls}, {sep}, {typed(sep, 1)}, 0, 1};
}

std::unique_ptr<PostProcessor> make_template(const std::pair<std::string, int32_t>& cls,
                                             const std::pair<std::string, int32_t>& sep, PairStyle style) {
  std::vector<Template::Item> items{
      {false, {cls.second}, {cls.first}}, text_item(), {false, {sep.second}, {sep.first}}};
  return std::make_unique<Template>(std::move(items), make_pair_template(style, cls.second, sep.second));
}

std::unique_ptr<PostProcessor> make_trim_offsets(bool add_prefix_space) {
  return std::make_unique<TrimOffsets>(add_prefix_space);
}

std::unique_ptr<PostProcessor> make_post_sequence(std::vector<std::unique_ptr<PostProcessor>> parts) {
  return std::make_unique<PostProcessorSequence>(std::move(parts));
}

std::unique_ptr<PostProcessor> make_post_processor(const JsonValue& json) {
  const std::string type = json.at("type").as_string();
  std::vector<std::unique_ptr<PostProcessor>> parts;
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    if (type == "RobertaProcessing" && json.get("trim_offsets", true)) {
      parts.push_back(make_trim_offsets(json.get("add_prefix_space", true)));
    }
    const Template::Item cls = read_special(json.at("cls")), sep = read_special(json.at("sep"));
    const PairStyle style = type == "BertProcessing" ? PairStyle::bert : PairStyle::roberta;
    parts.push_back(make_template({cls.tokens[0], cls.ids[0]}, {sep.tokens[0], sep.ids[0]}, style));
  } else if (type == "TemplateProcessing") {
    const JsonValue single = json.at("single");
    single.expect_array();
    std::vector<Template::Item> items;
    for (size_t i = 0; i < single.size(); ++i) items.push_back(read_template_item(single.at(i), json));
    parts.push_back(std::make_unique<Template>(std::move(items), read_pair_template(json)));
  } else if (type == "ByteLevel") {
    if (json.get("trim_offsets", true)) parts.push_back(make_trim_offsets(json.get("add_prefix_space", true)));
  } else if (type == "Sequence") {
    const JsonValue list = json.at("processors");
    list.expect_array();
    for (size_t i = 0; i < list.size(); ++i) parts.push_back(make_post_processor(list.at(i)));
  } else {
    json.at("type").fail("unsupported post-processor");
  }
  return make_post_sequence(std::move(parts));
}

}  // namespace brim::text
