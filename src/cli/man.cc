// SPDX-License-Identifier: Apache-2.0
#include "cli/man.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <vector>

#include "brim/brim.h"
#include "cli/help.h"

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

// "\fB\-o\fR, \fB\-\-output\fR \fIPATH\fR"
std::string names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& letter : option.get_snames()) names.push_back("\\fB\\-" + troff(letter) + "\\fR");
  for (const auto& word : option.get_lnames()) names.push_back("\\fB\\-\\-" + troff(word) + "\\fR");
  const std::string value = value_name(option);
  return fmt::format("{}{}", fmt::join(names, ", "), value.empty() ? "" : fmt::format(" \\fI{}\\fR", troff(value)));
}

// `headings`: one per group of flags.
void add_flags(const CLI::App& app, bool headings, std::string& page) {
  for (const FlagGroup& group : flag_groups(app)) {
    if (headings) page += fmt::format(".SS {}\n", troff(group.title));
    for (const CLI::Option* option : group.flags) {
      if (!option->nonpositional()) {
        page += fmt::format(".TP\n\\fI{}\\fR\n{}\n", troff(option->get_name()), troff(option->get_description()));
        continue;
      }
      page += fmt::format(".TP\n{}\n{}", names_of(*option), troff(option->get_description()));
      if (const std::string value = shown_default(*option); !value.empty())
        page += fmt::format(" (default: {})", troff(value));
      page += "\n";
    }
  }
}

std::string verb_page(const CLI::App& verb) {
  const std::string name = "brim-" + verb.get_name();
  std::string page = title(name) + section("NAME") + troff(name) + " \\- " + troff(verb.get_description()) + "\n";
  page += section("SYNOPSIS") + fmt::format("\\fBbrim {}\\fR", troff(verb.get_name()));
  if (!verbs_in(verb).empty()) page += " \\fIsubcommand\\fR";
  page += " [\\fIflags\\fR]";
  for (const CLI::Option* option : verb.get_options())
    if (option->get_lnames().empty() && option->get_snames().empty())
      page += fmt::format(" [\\fI{}\\fR]", troff(option->get_name()));
  page += "\n" + section("OPTIONS");
  add_flags(verb, true, page);
  for (const CLI::App* inner : verbs_in(verb)) {
    page += fmt::format(".SS brim {} {}\n{}.\n", troff(verb.get_name()), troff(inner->get_name()),
                        troff(inner->get_description()));
    add_flags(*inner, false, page);
  }
  page += section("ENVIRONMENT") +
          "Long flags can also be set by variables: \\fB\\-\\-memory\\-limit\\fR by \\fBBRIM_MEMORY_LIMIT\\fR.\n";
  return page + section("SEE ALSO") + "\\fBbrim\\fR(1)\n";
}

std::string program_page(const CLI::App& program) {
  std::string page = title("brim") + section("NAME") + "brim \\- fine\\-tune, run and serve text classifiers\n" +
                     section("SYNOPSIS") + "\\fBbrim\\fR \\fIcommand\\fR [\\fIflags\\fR]\n" + section("DESCRIPTION") +
                     troff(sentence(program.get_description())) + "\n" + section("COMMANDS");
  std::vector<std::string> pages;
  for (const CLI::App* verb : verbs_in(program)) {
    page += fmt::format(".TP\n\\fB{}\\fR\n{}.\n", troff(verb->get_name()), troff(verb->get_description()));
    if (verb->get_name() != "help" && verb->get_name() != "completion")
      pages.push_back(fmt::format("\\fBbrim\\-{}\\fR(1)", troff(verb->get_name())));
  }
  page += section("OPTIONS");
  add_flags(program, false, page);
  page += section("EXIT STATUS");
  for (const auto& [code, meaning] :
       {std::pair(0, "ok"), std::pair(1, "internal error"), std::pair(2, "usage"), std::pair(3, "bad data"),
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
