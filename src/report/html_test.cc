// SPDX-License-Identifier: Apache-2.0
#include "report/html.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/test_files.h"
#include "report/markup_check.h"

namespace brim::report {
namespace {

const std::string kHostilePage =
    "</title><script>alert('x')</script> \" onload=\"y &amp; <b>\x01\x7f\xff\xc3 \xe2\x80\xae"
    "evil";

TEST(Html, EscapeLeavesNoMarkup) {
  EXPECT_EQ(html_escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_escape(std::string("a\0b\x1b[0m\x7f", 8)), "ab[0m");
  EXPECT_EQ(html_escape("\xff"), "\xEF\xBF\xBD");
  EXPECT_EQ(html_escape("\xe2\x80\xae"
                        "x"),
            "x")
      << "direction override";
  EXPECT_EQ(html_escape("naïve 🙂\n"), "naïve 🙂\n");
}

TEST(Html, ShortenedCountsCodePoints) {
  EXPECT_EQ(shortened("ééééé", 5), "ééééé");
  EXPECT_EQ(shortened("éééééé", 5), "éééé…");
  EXPECT_EQ(shortened("", 5), "");
}

TEST(Html, PageIsWellFormedForAnyNames) {
  HtmlPage page(kHostilePage, kHostilePage);
  page.heading(kHostilePage);
  page.heading("two");
  page.paragraph(kHostilePage);
  page.list({kHostilePage, ""});
  page.list({});
  page.figures({{kHostilePage, kHostilePage}});
  page.table({kHostilePage,
              {"model", kHostilePage},
              {{kHostilePage, "1.5"}, {"only the first cell"}, {"a", "b", "one too many"}}});
  page.table({"", {}, {}});
  page.details(kHostilePage, kHostilePage);
  page.plots({});
  const std::string html = page.html();
  const MarkupCheck check = check_markup(html);
  EXPECT_EQ(check.problem, "");
  EXPECT_EQ(check.tags.at("script"), 1) << "only the script of the page";
  EXPECT_EQ(check.tags.at("h2"), 2);
  EXPECT_EQ(html.find("alert('x')"), std::string::npos);
}

TEST(Html, PageHasNoExternalResources) {
  HtmlPage page("t");
  const std::string html = page.html();
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_NE(html.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(html.find("Content-Security-Policy"), std::string::npos);
}

TEST(Html, NumericColumnsAreRightAligned) {
  HtmlPage page("t");
  page.table({"", {"name", "rate", "text"}, {{"7", "1,234", "yes"}, {"8", "–", "1"}, {"9", "-3.5 ms", "n/a"}}});
  const std::string html = page.html();
  EXPECT_NE(html.find("<th scope=\"col\" class=\"n\">rate</th>"), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"col\">name</th>"), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"col\">text</th>"), std::string::npos);
}

TEST(Html, WriteIsAtomic) {
  const TempDir dir;
  const auto path = dir / "report.html";
  HtmlPage page("t");
  page.write(path);
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), page.html());
  EXPECT_THROW(page.write("/no such folder/report.html"), Error);
}

}  // namespace
}  // namespace brim::report
