// SPDX-License-Identifier: Apache-2.0
// A self-contained HTML page: no external assets, light and dark, printable. All input is text and is escaped, except
// for svg(), which takes the output of plot.h. The result is well-formed XML too.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::report {

// For HTML and SVG, in text and attributes. Replaces invalid UTF-8 by U+FFFD and removes control characters.
std::string html_escape(std::string_view text);
// At most `most` code points; ends with "…" if truncated.
std::string shortened(std::string_view text, size_t most);

struct HtmlTable {
  std::string caption;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // missing cells are empty; the first column names the row
};

class HtmlPage {
 public:
  explicit HtmlPage(std::string title, std::string subtitle = "");
  void heading(std::string_view text);  // starts a section; the page lists its sections at the top
  void paragraph(std::string_view text);
  void list(const std::vector<std::string>& items);
  void figures(const std::vector<std::pair<std::string, std::string>>& named);  // large numbers as (name, value)
  void table(const HtmlTable& table);                                           // numeric columns are right-aligned
  void svg(std::string_view drawn);                                             // from plot.h; full width
  void plots(const std::vector<std::string>& drawn);                            // side by side if there is enough width
  void details(std::string_view summary, std::string_view text);                // collapsed, in a fixed-width font

  std::string html() const;
  // Atomic. Throws cannot_write.
  void write(const std::filesystem::path& path) const;

 private:
  std::string title_, subtitle_, body_;
  std::vector<std::string> sections_;
};

}  // namespace brim::report
