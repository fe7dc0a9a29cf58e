// SPDX-License-Identifier: Apache-2.0
#include "cli/man.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <vector>

#include "brim/brim.h"

namespace brim::cli {
namespace {

// Escapes text for troff: backslashes, dashes, and lines that would begin a command.
std::string troff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    line_start = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::vector<const CLI::App*> verbs_in(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string title(const std::string& page) {
  std::string upper = page;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return fmt::format(".TH {} 1 \"\" \"brim {}\" \"User Commands\"\n", upper, version());
}

std::string section(const char* name) { return fmt::format(".SH {}\n", name); }

// "\fB\-o\fR, \fB\-\-output\fR \fITEXT\fR"
std::string flag_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& letter : option.get_snames()) names.push_back("\\fB\\-" + troff(letter) + "\\fR");
  for (const auto& word : option.get_lnames()) names.push_back("\\fB\\-\\-" + troff(word) + "\\fR");
  const bool takes_value = option.get_items_expected_max() > 0;
  return fmt::format("{}{}", fmt::join(names, ", "),
                     takes_value ? fmt::format(" \\fI{}\\fR", troff(option.get_type_name())) : "");
}

void add_flags(const CLI::App& app, std::string& page) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() && option->get_snames().empty()) {  // a positional argument
      page += fmt::format(".TP\n\\fI{}\\fR\n{}\n", troff(option->get_name()), troff(option->get_description()));
      continue;
    }
    page += fmt::format(".TP\n{}\n{}", flag_names(*option), troff(option->get_description()));
    if (!option->get_default_str().empty()) page += fmt::format("; by default {}", troff(option->get_default_str()));
    page += ".\n";
  }
}

std::string verb_page(const CLI::App& verb) {
  const std::string name = "brim-" + verb.get_name();
  std::string page = title(name) + section("NAME") + troff(name) + " \\- " + troff(verb.get_description()) + "\n";
  page += section("SYNOPSIS") + fmt::format("\\fBbrim {}\\fR", troff(verb.get_name()));
  if (!verbs_in(verb).empty()) page += " \\fIverb\\fR";
  page += " [\\fIflags\\fR]";
  for (const CLI::Option* option : verb.get_options())
    if (option->get_lnames().empty() && option->get_snames().empty())
      page += fmt::format(" [\\fI{}\\fR]", troff(option->get_name()));
  page += "\n" + section("OPTIONS");
  add_flags(verb, page);
  for (const CLI::App* inner : verbs_in(verb)) {
    page += fmt::format(".SS brim {} {}\n{}.\n", troff(verb.get_name()), troff(inner->get_name()),
                        troff(inner->get_description()));
    add_flags(*inner, page);
  }
  page += section("ENVIRONMENT") +
          "Every long flag is also a variable: \\fB\\-\\-memory\\-limit\\fR is \\fBBRIM_MEMORY_LIMIT\\fR.\n";
  return page + section("SEE ALSO") + "\\fBbrim\\fR(1)\n";
}

std::string program_page(const CLI::App& program) {
  std::string page = title("brim") + section("NAME") + "brim \\- text classifiers at the limit of the hardware\n" +
                     section("SYNOPSIS") + "\\fBbrim\\fR \\fIverb\\fR [\\fIflags\\fR]\n" + section("DESCRIPTION") +
                     troff(program.get_description()) + "\n" + section("VERBS");
  std::vector<std::string> pages;
  for (const CLI::App* verb : verbs_in(program)) {
    page += fmt::format(".TP\n\\fB{}\\fR\n{}.\n", troff(verb->get_name()), troff(verb->get_description()));
    if (verb->get_name() != "help" && verb->get_name() != "completion")
      pages.push_back(fmt::format("\\fBbrim\\-{}\\fR(1)", troff(verb->get_name())));
  }
  page += section("OPTIONS");
  add_flags(program, page);
  page += section("EXIT STATUS");
  for (const auto& [code, meaning] :
       {std::pair(0, "ok"), std::pair(1, "an error of brim itself"), std::pair(2, "usage"), std::pair(3, "bad data"),
        std::pair(4, "bad model"), std::pair(5, "does not fit"), std::pair(6, "device lost"),
        std::pair(7, "cannot write"), std::pair(8, "training diverged"), std::pair(130, "interrupted, work saved")})
    page += fmt::format(".TP\n{}\n{}\n", code, meaning);
  return page + section("SEE ALSO") + fmt::format("{}\n", fmt::join(pages, ",\n"));
}

}  // namespace

std::string man_page(const CLI::App& program, const CLI::App* verb) {
  return verb == nullptr ? program_page(program) : verb_page(*verb);
}

}  // namespace brim::cli
