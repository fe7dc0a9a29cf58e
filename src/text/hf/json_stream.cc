// SPDX-License-Identifier: Apache-2.0
#include "text/hf/json_stream.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "text/json_reader.h"
#include "text/vocab.h"

namespace brim::text {
namespace {

using Json = nlohmann::json;

// A number as serde_json reads it, in tokenizers: all digits as an integer, then one division or multiplication by a
// power of ten. The last bit may differ from the nearest double, which decides between splits of equal score.
double score_value(std::string_view text) {
  const bool negative = text.starts_with('-');
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool fraction = false, full = false;  // full: further digits do not fit and are dropped
  size_t at = negative ? 1 : 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(text[at] - '0');
    full = full || digits > (UINT64_MAX - digit) / 10;
    if (!full) digits = digits * 10 + digit;
    if (full && !fraction) ++exponent;
    if (!full && fraction) --exponent;
  }
  if (at < text.size()) {
    const size_t from = at + (at + 1 < text.size() && text[at + 1] == '+' ? 2 : 1);
    int64_t more = 0;
    std::from_chars(text.data() + from, text.data() + text.size(), more);
    exponent += std::clamp<int64_t>(more, -100'000, 100'000);
  }
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  static const std::array<double, 309> kPowers = [] {
    std::array<double, 309> powers{};
    for (size_t n = 0; n < powers.size(); ++n) powers[n] = std::strtod(("1e" + std::to_string(n)).c_str(), nullptr);
    return powers;
  }();
  const double power = kPowers[static_cast<size_t>(std::min<int64_t>(std::abs(exponent), 308))];
  value = exponent < 0 ? value / power : value * power;
  return negative ? -value : value;
}

// SAX handler. Builds a tree outside the vocabulary and merge lists; inside them each value has only one valid form.
class Handler {
 public:
  Handler(TokenizerJson& out, const std::filesystem::path& file, bool vocab_only)
      : out_(out), file_(file), vocab_only_(vocab_only) {}

  bool null() { return scalar(nullptr, "null"); }
  bool boolean(bool value) { return scalar(value, value ? "true" : "false"); }
  bool number_integer(int64_t value) {
    if (list_ == List::scores && depth_ == 1) return score(static_cast<double>(value));
    return scalar(value, std::to_string(value));
  }
  bool number_unsigned(uint64_t value) {
    if (list_ == List::ids) {
      if (value >= static_cast<uint64_t>(Vocab::kMostIds)) wrong(std::to_string(value), "is not a token id");
      out_.vocab.emplace_back(std::move(key_), static_cast<int32_t>(value));
      return true;
    }
    if (list_ == List::scores && depth_ == 1) return score(static_cast<double>(value));
    return scalar(value, std::to_string(value));
  }
  bool number_float(double value, const std::string& text) {
    if (list_ == List::scores && depth_ == 1) return score(score_value(text));
    return scalar(value, text);
  }
  bool string(std::string& value) {
    if (list_ == List::merges && depth_ == 0) return merge(value);
    if (list_ == List::merges || list_ == List::scores) {
      if (depth_ == 0 || parts_ >= 2 || (list_ == List::scores && parts_ == 1)) wrong(value, expected());
      (parts_ == 0 ? left_ : right_) = std::move(value);
      ++parts_;
      return true;
    }
    return scalar(Json(std::move(value)), "a string");
  }
  bool binary(Json::binary_t&) { return false; }  // not in JSON text

  bool start_object(size_t) {
    if (list_ != List::none) wrong("an object", expected());
    if (opens_list(true)) return true;
    open(Json::object());
    return true;
  }
  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }
  bool end_object() {
    if (list_ == List::ids) {
      list_ = List::none;
      return true;
    }
    return close();
  }
  bool start_array(size_t) {
    if (list_ == List::merges || list_ == List::scores) {
      if (depth_ != 0) wrong("an array", expected());
      depth_ = 1;
      parts_ = 0;
      return true;
    }
    if (list_ == List::ids) wrong("an array", expected());
    if (opens_list(false)) return true;
    open(Json::array());
    return true;
  }
  bool end_array() {
    if (list_ == List::none) return close();
    if (depth_ == 0) {
      list_ = List::none;
      return true;
    }
    if (parts_ != 2) wrong(std::to_string(parts_) + " values", expected());
    if (list_ == List::merges) {
      out_.merges.emplace_back(std::move(left_), std::move(right_));
    } else {
      out_.scores.emplace_back(std::move(left_), score_);
    }
    depth_ = 0;
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& error) {
    fail(ErrorCode::bad_model, Remedy{"download the file again"}, "{}: not valid JSON at byte {}: {}", file_.string(),
         byte, json_problem(error.what()));
  }

 private:
  enum class List { none, ids, scores, merges };

  const char* expected() const {
    switch (list_) {
      case List::ids:
        return "is not a token id";
      case List::scores:
        return "must be a token and its score";
      default:
        return "must be two tokens";
    }
  }
  [[noreturn]] void wrong(const std::string& value, const char* why) const {
    std::string place = vocab_only_ ? "" : list_ == List::merges ? "model.merges" : "model.vocab";
    if (list_ == List::ids) {
      place += (place.empty() ? "" : ".") + key_;
    } else {
      place += "[" + std::to_string(list_ == List::merges ? out_.merges.size() : out_.scores.size()) + "]";
    }
    fail(ErrorCode::bad_model, "{}: {} is {}: {}", file_.string(), place, value.substr(0, 80), why);
  }

  bool opens_list(bool object) {
    if (vocab_only_ && stack_.empty()) {
      if (!object) fail(ErrorCode::bad_model, "{}: the file must be an object from token to id", file_.string());
      list_ = List::ids;
      out_.vocab_kind = TokenizerJson::VocabKind::ids;
      return true;
    }
    if (!in_model()) return false;
    if (key_ == "vocab") {
      list_ = object ? List::ids : List::scores;
      out_.vocab_kind = object ? TokenizerJson::VocabKind::ids : TokenizerJson::VocabKind::scores;
      out_.vocab.clear();
      out_.scores.clear();
    } else if (key_ == "merges" && !object) {
      list_ = List::merges;
      out_.has_merges = true;
      out_.merges.clear();
    } else {
      return false;
    }
    depth_ = 0;
    return true;
  }
  bool in_model() const { return stack_.size() == 2 && stack_[1] == model_; }

  bool score(double value) {
    if (parts_ != 1) wrong(std::to_string(value), expected());
    score_ = value;
    ++parts_;
    return true;
  }
  bool merge(const std::string& text) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      wrong('"' + text + '"', "must be two tokens separated by one space");
    }
    out_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  Json* add(Json value) {
    if (stack_.empty()) {
      out_.tree = std::move(value);
      return &out_.tree;
    }
    Json& top = *stack_.back();
    if (top.is_array()) {
      top.push_back(std::move(value));
      return &top.back();
    }
    return &(top[key_] = std::move(value));
  }
  bool scalar(Json value, const std::string& shown) {
    if (list_ != List::none) wrong(shown, expected());
    if (vocab_only_) fail(ErrorCode::bad_model, "{}: the file must be an object from token to id", file_.string());
    add(std::move(value));
    return true;
  }
  void open(Json container) {
    if (stack_.size() >= kDeepest) fail(ErrorCode::bad_model, "{}: nesting depth exceeds {}", file_.string(), kDeepest);
    const bool is_model = stack_.size() == 1 && key_ == "model" && stack_[0]->is_object();
    Json* added = add(std::move(container));
    if (is_model) model_ = added;
    stack_.push_back(added);
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  static constexpr size_t kDeepest = 100;
  TokenizerJson& out_;
  const std::filesystem::path& file_;
  const bool vocab_only_;
  std::vector<Json*> stack_;  // open containers; only the last one grows, so the pointers stay valid
  const Json* model_ = nullptr;
  List list_ = List::none;
  std::string key_, left_, right_;
  double score_ = 0;
  int depth_ = 0, parts_ = 0;  // inside a list: depth within an entry, and number of its parts read
};

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view text, const std::filesystem::path& file) {
  TokenizerJson out;
  Handler handler(out, file, false);
  Json::sax_parse(text.begin(), text.end(), &handler);
  return out;
}

std::vector<std::pair<std::string, int32_t>> read_vocab_json(std::string_view text, const std::filesystem::path& file) {
  TokenizerJson out;
  Handler handler(out, file, true);
  Json::sax_parse(text.begin(), text.end(), &handler);
  return std::move(out.vocab);
}

}  // namespace brim::text
