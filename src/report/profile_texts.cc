// SPDX-License-Identifier: Apache-2.0
// Texts for measurements: rows of a file, or generated headlines with the lengths of headlines and tweets.
#include <array>

#include "base/error.h"
#include "report/profile.h"
#include "rows/row_reader.h"

namespace brim::report {
namespace {

ProfileTexts built_in(size_t most) {
  static constexpr std::array subjects = {
      "Shares of the chip maker",       "The central bank",    "A small brewery in the north",      "The airline",
      "Our favourite coffee place",     "The new phone",       "Quarterly revenue at the retailer", "The football club",
      "A startup for electric ferries", "The customer hotline"};
  static constexpr std::array verbs = {
      "rose sharply",           "disappointed everyone", "kept its forecast unchanged", "fell for the third day",
      "was praised by critics", "ran out of patience",   "announced a merger",          "lost a third of its value",
      "surprised us again",     "will close in spring"};
  static constexpr std::array ends = {
      ".",
      ", analysts said on Tuesday.",
      " after a record quarter!",
      ", and nobody noticed.",
      " because energy prices fell while demand for its older products stayed high across most regions.",
      " 😊",
      " :(",
      "; the board called it a good result in a difficult year, though the workers' council disagreed and asked for a "
      "second audit."};
  ProfileTexts t;
  t.source = "built-in headlines";
  // The sizes 10, 10 and 8 share factors, so stride through all combinations.
  for (size_t i = 0; t.texts.size() < std::min<size_t>(most, subjects.size() * verbs.size() * ends.size()); ++i)
    t.texts.push_back(std::string(subjects[i % subjects.size()]) + " " +
                      verbs[(i / subjects.size() + i) % verbs.size()] + ends[(i / 100 + i * 3) % ends.size()]);
  return t;
}

}  // namespace

ProfileTexts load_profile_texts(const ProfileFile& file, size_t most) {
  if (file.path.empty()) {
    if (!file.label_column.empty())
      fail(ErrorCode::usage, Remedy{"set `texts=FILE`"}, "`label_column={}`: the built-in texts have no labels",
           file.label_column);
    if (!file.pair_column.empty())
      fail(ErrorCode::usage, Remedy{"set `texts=FILE`"}, "`pair_column={}`: the built-in texts are not pairs",
           file.pair_column);
    return built_in(most);
  }
  rows::RowReaderOptions options;
  options.format = rows::parse_row_format(file.format);
  options.text_column = file.text_column;
  options.pair_column = file.pair_column;
  if (!file.label_column.empty()) options.label_columns = {file.label_column};
  rows::RowReader reader({file.path}, options);
  ProfileTexts t;
  t.source = file.path;
  rows::RowChunk chunk;
  while (t.texts.size() < most && reader.next_chunk(chunk))
    for (size_t r = 0; r < chunk.size() && t.texts.size() < most; ++r) {
      if (chunk.error(r) != nullptr) continue;
      t.texts.emplace_back(chunk.texts[r]);
      if (const auto pair = chunk.pair(r)) t.pairs.emplace_back(*pair);
      if (!chunk.labels.empty()) t.labels.emplace_back(chunk.labels[r]);
    }
  if (t.texts.empty()) fail(ErrorCode::bad_data, "{}: has no texts", file.path);
  return t;
}

}  // namespace brim::report
