// SPDX-License-Identifier: Apache-2.0
#include "report/html.h"

#include <fmt/format.h>

#include "base/utf8.h"
#include "io/atomic_file.h"

namespace brim::report {
namespace {

// Blue, orange, green, purple, brown-red, sky, yellow, grey after Okabe and Ito; the dark set is lightened where
// contrast would be too low.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark}
:root,:root[data-theme=light]{--ground:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#57606a;--line:#d5dae0;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#a3477f;--c4:#8a6d00;--c5:#2f8fc4;--c6:#7a4b24;--c7:#66707a}
:root[data-theme=light]{color-scheme:light}
@media (prefers-color-scheme:dark){:root:not([data-theme=light]){--ground:#14171b;--card:#1d2126;--ink:#e8eaed;--soft:#a3acb6;
--line:#3a414a;--c0:#58b0e8;--c1:#f0894a;--c2:#3cc79d;--c3:#d98bbb;--c4:#e0c341;--c5:#8fd0f5;--c6:#c99a70;--c7:#9aa4ae}}
:root[data-theme=dark]{color-scheme:dark;--ground:#14171b;--card:#1d2126;--ink:#e8eaed;--soft:#a3acb6;--line:#3a414a;
--c0:#58b0e8;--c1:#f0894a;--c2:#3cc79d;--c3:#d98bbb;--c4:#e0c341;--c5:#8fd0f5;--c6:#c99a70;--c7:#9aa4ae}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
header,main,footer{max-width:1180px;margin:0 auto;padding:0 24px}
header{padding-top:32px;display:flex;gap:24px;align-items:flex-start;justify-content:space-between}
h1{font-size:1.8rem;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:40px 0 12px;padding-top:12px;border-top:1px solid var(--line);overflow-wrap:anywhere}
p{max-width:80ch;overflow-wrap:anywhere}
.sub{margin:0;color:var(--soft)}
button{font:inherit;font-size:.85rem;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:6px 12px;cursor:pointer;white-space:nowrap}
button:focus-visible,a:focus-visible,summary:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
a{color:var(--c0)}
nav{margin-top:12px;font-size:.9rem}
nav a{margin-right:16px;overflow-wrap:anywhere}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-wrap:anywhere}
.figures dt{font-size:.82rem;color:var(--soft)}
.figures dd{margin:0;font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;margin:12px 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;min-width:40%}
caption{text-align:left;color:var(--soft);font-size:.85rem;padding:4px 0}
th,td{padding:6px 12px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;max-width:46ch;overflow-wrap:anywhere}
thead th{border-bottom:2px solid var(--line);white-space:nowrap}
tbody th{font-weight:500;min-width:9em}
.n{text-align:right;white-space:nowrap}
figure{margin:16px 0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px;margin:16px 0}
.plots figure{margin:0}
svg{display:block;width:100%;height:auto;max-width:900px;margin:0 auto}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;font-size:.85rem}
footer{margin-top:48px;padding-bottom:32px;color:var(--soft);font-size:.85rem}
@media print{button,nav{display:none}figure,.figures div{break-inside:avoid}}
)css";

// Cycles through auto, light, dark. Storage may be unavailable for file: pages; the choice is then lost with the page.
constexpr const char* kScript = R"js(
(function () {
  var root = document.documentElement, button = document.getElementById('theme'), names = ['auto', 'light', 'dark'], at = 0;
  try { at = Math.max(0, names.indexOf(localStorage.getItem('brim-theme'))); } catch (e) { at = 0; }
  function show() {
    if (at === 0) root.removeAttribute('data-theme'); else root.setAttribute('data-theme', names[at]);
    button.textContent = 'Theme: ' + names[at];
  }
  button.hidden = false;
  button.addEventListener('click', function () {
    at = (at + 1) % names.length;
    try { localStorage.setItem('brim-theme', names[at]); } catch (e) { root.title = ''; }
    show();
  });
  show();
})();
)js";

// A number, possibly with a unit or sign; columns of these are right-aligned.
bool looks_numeric(std::string_view text) {
  if (text.empty() || text == "–" || text == "n/a") return true;
  const char c = text[0] == '-' || text[0] == '+' ? (text.size() > 1 ? text[1] : ' ') : text[0];
  return c >= '0' && c <= '9' && text.size() <= 24;
}

}  // namespace

std::string html_escape(std::string_view text) {
  const std::string clean = replace_invalid_utf8(text);
  std::string out;
  out.reserve(clean.size() + clean.size() / 8);
  for (size_t i = 0; i < clean.size();) {
    const CodePoint p = decode_valid(clean, i);
    switch (p.value) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const bool control = (p.value < 0x20 && p.value != '\n' && p.value != '\t') ||
                             (p.value >= 0x7F && p.value < 0xA0) || p.value == 0xFFFE || p.value == 0xFFFF;
        // Direction overrides could make one name look like another.
        const bool override_mark = (p.value >= 0x202A && p.value <= 0x202E) || (p.value >= 0x2066 && p.value <= 0x2069);
        if (!control && !override_mark) out.append(clean, i, static_cast<size_t>(p.bytes));
      }
    }
    i += static_cast<size_t>(p.bytes);
  }
  return out;
}

std::string shortened(std::string_view text, size_t most) {
  const std::string clean = replace_invalid_utf8(text);
  if (clean.size() <= most || count_code_points(clean) <= most) return clean;
  size_t end = 0;
  for (size_t n = 0; n + 1 < most; ++n) end += static_cast<size_t>(decode_valid(clean, end).bytes);
  return clean.substr(0, end) + "…";
}

HtmlPage::HtmlPage(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void HtmlPage::heading(std::string_view text) {
  sections_.emplace_back(text);
  body_ += fmt::format("<h2 id=\"s{}\">{}</h2>\n", sections_.size(), html_escape(text));
}

void HtmlPage::paragraph(std::string_view text) { body_ += fmt::format("<p>{}</p>\n", html_escape(text)); }

void HtmlPage::list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<ul>\n";
  for (const auto& item : items) body_ += fmt::format("<li>{}</li>\n", html_escape(item));
  body_ += "</ul>\n";
}

void HtmlPage::figures(const std::vector<std::pair<std::string, std::string>>& named) {
  if (named.empty()) return;
  body_ += "<dl class=\"figures\">\n";
  for (const auto& [name, value] : named)
    body_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escape(name), html_escape(value));
  body_ += "</dl>\n";
}

void HtmlPage::table(const HtmlTable& t) {
  std::vector<bool> numeric(t.header.size(), true);
  for (const auto& row : t.rows)
    for (size_t c = 0; c < t.header.size() && c < row.size(); ++c) numeric[c] = numeric[c] && looks_numeric(row[c]);
  if (!numeric.empty()) numeric[0] = false;  // names, even if they are numbers
  const auto cls = [&](size_t c) { return numeric[c] && !t.rows.empty() ? " class=\"n\"" : ""; };
  body_ += "<div class=\"scroll\"><table>\n";
  if (!t.caption.empty()) body_ += fmt::format("<caption>{}</caption>\n", html_escape(t.caption));
  body_ += "<thead><tr>";
  for (size_t c = 0; c < t.header.size(); ++c)
    body_ += fmt::format("<th scope=\"col\"{}>{}</th>", cls(c), html_escape(t.header[c]));
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : t.rows) {
    body_ += "<tr>";
    for (size_t c = 0; c < t.header.size(); ++c) {
      const std::string cell = c < row.size() ? html_escape(row[c]) : std::string();
      body_ += c == 0 ? fmt::format("<th scope=\"row\">{}</th>", cell) : fmt::format("<td{}>{}</td>", cls(c), cell);
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::svg(std::string_view drawn) { body_ += fmt::format("<figure>{}</figure>\n", drawn); }

void HtmlPage::plots(const std::vector<std::string>& drawn) {
  body_ += "<div class=\"plots\">\n";
  for (const auto& d : drawn) body_ += fmt::format("<figure>{}</figure>\n", d);
  body_ += "</div>\n";
}

void HtmlPage::details(std::string_view summary, std::string_view text) {
  body_ +=
      fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", html_escape(summary), html_escape(text));
}

std::string HtmlPage::html() const {
  std::string nav;
  if (sections_.size() > 1) {
    nav = "<nav aria-label=\"Sections\">";
    for (size_t i = 0; i < sections_.size(); ++i)
      nav += fmt::format("<a href=\"#s{}\">{}</a> ", i + 1, html_escape(shortened(sections_[i], 40)));
    nav += "</nav>";
  }
  // The content security policy is a second defence behind escaping: injected markup could load nothing.
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{0}</title>\n<link "
      "rel=\"icon\" href=\"data:,\"/>\n"
      "<style>{1}</style>\n</head>\n<body>\n<header><div><h1>{0}</h1><p class=\"sub\">{2}</p>{3}</div>"
      "<button id=\"theme\" type=\"button\" hidden=\"hidden\" title=\"Change between light and "
      "dark\">Theme</button></header>\n"
      "<main>\n{4}</main>\n<footer>Written by Brim. This page loads nothing from "
      "elsewhere.</footer>\n<script>{5}</script>\n</body>\n</html>\n",
      html_escape(title_), kStyle, html_escape(subtitle_), nav, body_, kScript);
}

void HtmlPage::write(const std::filesystem::path& path) const { io::write_file_atomically(path, html()); }

}  // namespace brim::report
