// SPDX-License-Identifier: Apache-2.0
#include "text/spm/metaspace.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/components.h"
#include "text/json_reader.h"

namespace brim::text {
namespace {

// Formats pieces as "text(begin,end)" with origins; `cuts` are the input pieces, in bytes.
std::string pieces(const MetaspaceConfig& config, std::string_view text, std::vector<Piece> cuts = {},
                   int32_t first = 0) {
  const auto pre_tokenizer = make_metaspace(config);
  std::string out[2];
  for (const bool tracked : {false, true}) {
    PreTokenized state;
    state.text.reset(text, tracked, first);
    state.pieces = cuts;
    if (cuts.empty() && !text.empty()) state.pieces = {{0, static_cast<uint32_t>(text.size())}};
    pre_tokenizer->apply(state);
    for (const Piece& piece : state.pieces) {
      out[tracked] += fmt::format("{}{}", out[tracked].empty() ? "" : " ",
                                  state.text.text.substr(piece.begin, piece.end - piece.begin));
      if (!tracked) continue;
      out[1] += fmt::format("({},{})", state.text.spans[piece.begin].begin, state.text.spans[piece.end - 1].end);
    }
    EXPECT_EQ(state.text.spans.size(), tracked ? state.text.text.size() : 0);
  }
  return out[1];
}

TEST(Metaspace, MarksAndSplits) {
  const MetaspaceConfig always{.replacement = '_'};
  EXPECT_EQ(pieces(always, "Hey friend!"), "_Hey(0,3) _friend!(3,11)");
  EXPECT_EQ(pieces(always, "Hey   you"), "_Hey(0,3) _(3,4) _(4,5) _you(5,9)");
  EXPECT_EQ(pieces(always, " a"), "_a(0,2)");
  EXPECT_EQ(pieces(always, "_a_"), "_a(0,2) _(2,3)");
  EXPECT_EQ(pieces(always, ""), "");
  EXPECT_EQ(pieces(always, "ab cd", {{0, 2}, {3, 5}}), "_ab(0,2) _cd(3,5)");
  EXPECT_EQ(pieces({.replacement = 0x2581}, "a b \u2581c"), "\u2581a(0,1) \u2581b(1,3) \u2581(3,4) \u2581c(4,6)");
}

TEST(Metaspace, PrependsByScheme) {
  EXPECT_EQ(pieces({'_', PrependScheme::never, true}, "a b"), "a(0,1) _b(1,3)");
  EXPECT_EQ(pieces({'_', PrependScheme::first, true}, "ab cd", {{0, 2}, {3, 5}}), "_ab(0,2) cd(3,5)");
  EXPECT_EQ(pieces({'_', PrependScheme::first, true}, "ab", {}, 4), "ab(4,6)");
  EXPECT_TRUE(make_metaspace({'_', PrependScheme::first, true})->needs_spans());
  EXPECT_FALSE(make_metaspace({'_', PrependScheme::always, true})->needs_spans());
}

TEST(Metaspace, SplitIsOptional) { EXPECT_EQ(pieces({'_', PrependScheme::always, false}, "a b c"), "_a_b_c(0,5)"); }

TEST(Metaspace, ReadsJson) {
  const std::filesystem::path file = "tokenizer.json";
  const auto make = [&](const char* text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    return make_metaspace(JsonValue(json, file, "pre_tokenizer"));
  };
  EXPECT_TRUE(make(R"({"replacement":"_","prepend_scheme":"first"})")->needs_spans());
  EXPECT_FALSE(make(R"({"replacement":"_","prepend_scheme":"first","add_prefix_space":false})")->needs_spans());
  EXPECT_THROW(make(R"({"replacement":"__"})"), Error);
  EXPECT_THROW(make(R"({"replacement":""})"), Error);
  EXPECT_THROW(make(R"({})"), Error);
  EXPECT_THROW(make(R"({"replacement":"_","prepend_scheme":"last"})"), Error);
}

}  // namespace
}  // namespace brim::text
