// SPDX-License-Identifier: Apache-2.0
// One self-contained HTML page: no external asset, readable offline, light and dark, printable. Everything given to it
// is text and is escaped; the one exception is svg(), which takes what plot.h drew. Well-formed as XML too.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::report {

// For HTML and SVG, in text and attributes alike. Invalid UTF-8 becomes U+FFFD, control characters go.
std::string html_escape(std::string_view text);
// At most `most` code points, the last of them "…" where something was left out.
std::string shortened(std::string_view text, size_t most);

struct HtmlTable {
  std::string caption;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // a missing cell is empty; the first column names the row
};

class HtmlPage {
 public:
  explicit HtmlPage(std::string title, std::string subtitle = "");
  void heading(std::string_view text);  // a section; the page lists its sections at the top
  void subheading(std::string_view text);
  void paragraph(std::string_view text);
  void list(const std::vector<std::string>& items);
  void figures(const std::vector<std::pair<std::string, std::string>>& named);  // large numbers: what, value
  void table(const HtmlTable& table);                             // columns of numbers are set to the right
  void svg(std::string_view drawn);                               // from plot.h; a plot of its own, full width
  void plots(const std::vector<std::string>& drawn);              // side by side where there is room
  void details(std::string_view summary, std::string_view text);  // folded, in a fixed-width font

  std::string html() const;
  // Whole or absent. Throws cannot_write.
  void write(const std::filesystem::path& path) const;

 private:
  std::string title_, subtitle_, body_;
  std::vector<std::string> sections_;
};

}  // namespace brim::report
