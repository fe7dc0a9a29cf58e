// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "base/error.h"
#include "cli/help_groups.h"
#include "cli/render.h"
#include "cli/tei_flags.h"

namespace brim::cli {
namespace {

constexpr const char *kPlainGroup = "Flags", *kOtherGroup = "Other";
constexpr const char* kCli11Group = "Options";  // the group of flags without one

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::string long_name(const CLI::Option& option) { return option.get_lnames().empty() ? "" : option.get_lnames()[0]; }

bool is_help_flag(const CLI::Option& option) { return long_name(option) == "help" || long_name(option) == "help-all"; }

bool is_common(const std::string& group) {
  return group != kAdvancedGroup && group != kAliasGroup && group != kIgnoredGroup && group != kTeiGroup;
}

void assign_groups(CLI::App& command) {
  const auto groups = help_groups(command_path(command));
  for (CLI::Option* option : command.get_options()) {
    if (is_help_flag(*option))
      option->group(kOtherGroup);
    else if (option->nonpositional() && option->get_group() == kCli11Group)
      option->group(groups.empty() ? kPlainGroup : kAdvancedGroup);
  }
  for (const HelpGroup& group : groups)
    for (std::string name : split_words(group.flags)) {
      const bool optional = name.back() == '?';
      if (optional) name.pop_back();
      CLI::Option* option = command.get_option_no_throw("--" + name);
      BRIM_CHECK(optional || option != nullptr, "help of {}: no flag --{}", command_path(command), name);
      if (option != nullptr) option->group(group.title);
    }
}

// Names of values by flag; other flags show the kind of their value.
const char* named_value(const std::string& flag) {
  static const std::map<const char*, std::string, std::less<>> kFlags = {
      {"FILE",
       "access-log actual api-key-file apply baseline config data disagreements env-file forecast jsonl run "
       "summary summary-json texts tls-cert tls-key token-train token-val trace train val"},
      {"DIR", "adapter adapters-root jobs-root logging-dir output-dir state-dir"},
      {"PATH", "output"},
      {"COLUMN", "id-column label-column pair-column target-column text-column time-column"},
      {"MODEL", "embedding-model llm-model model models sentiment-model teacher"},
      {"NAME", "alias prompt-name served-model served-model-name"},
      {"DEVICE", "device"},
      {"FORMAT", "format output-format"},
      {"SIZE", "cache leave-free max-jobs-bytes max-size memory-limit parked-limit payload-limit vram"},
      {"TIME", "interval keep-alive keep-jobs release-device-after"},
      {"URL", "llm-url url"},
      {"[DIR]", "resume-from-checkpoint"},
      {"[FILE]", "serve"},
      {"HOST", "allowed-host hostname"},
      {"ADDRESS", "listen"},
      {"I/N", "shard"},
  };
  for (const auto& [value, flags] : kFlags)
    if ((" " + flags + " ").find(" " + flag + " ") != std::string::npos) return value;
  return nullptr;
}

struct Line {
  std::string left, right;
};

const std::string kTied = "\x1f";  // a space at which lines are not broken

// Breaks text between words.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (const std::string& word : split_words(text)) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  for (std::string& line : lines) std::replace(line.begin(), line.end(), kTied[0], ' ');
  return lines;
}

std::string columns(const std::vector<Line>& lines, size_t left, size_t width) {
  std::string out;
  for (const Line& line : lines) {
    std::string head = "  " + line.left;
    if (head.size() + 2 > left) {
      out += head + "\n";
      head.clear();
    }
    for (const std::string& part : wrapped(line.right, width - left)) {
      out += fmt::format("{:<{}}{}\n", head, left, part);
      head.clear();
    }
  }
  return out;
}

std::string description_of(const CLI::Option& option, bool with_variable) {
  std::vector<std::string> notes;
  if (option.get_required()) notes.emplace_back("required");
  if (const std::string value = shown_default(option); !value.empty()) notes.push_back("default:" + kTied + value);
  if (with_variable && !option.get_envname().empty()) notes.push_back("env:" + kTied + option.get_envname());
  const std::string text = option.get_description();
  return notes.empty() ? text : fmt::format("{} ({})", text, fmt::join(notes, "; "));
}

Line line_of(const CLI::Option& option, bool all) {
  const std::string value = value_name(option);
  const std::string name = option.nonpositional() ? flag_names(option) : option.get_name(true);
  return {name + (option.nonpositional() && !value.empty() ? " " + value : ""), description_of(option, all)};
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void add_reference(const CLI::App& command, std::string& out) {
  const std::string path = command_path(command);
  out += fmt::format("\n## brim{}{}\n\n{}\n\n    {}\n", path.empty() ? "" : " ", path,
                     sentence(command.get_description()), usage_line(command));
  for (const FlagGroup& group : flag_groups(command)) {
    std::string rows;
    for (const CLI::Option* option : group.flags) {
      if (is_help_flag(*option)) continue;
      const bool flag = option->nonpositional();
      const std::string value = flag ? value_name(*option) : "", preset = shown_default(*option);
      rows += fmt::format("| `{}` | {} | {} | {} | {} |\n", flag ? flag_names(*option) : option->get_name(true), value,
                          preset.empty() ? "" : "`" + cell(preset) + "`",
                          option->get_envname().empty() ? "" : "`" + option->get_envname() + "`",
                          cell(option->get_description()));
    }
    if (!rows.empty())
      out += fmt::format(
          "\n**{}**\n\n| Flag | Value | Default | Environment | Description |\n"
          "| --- | --- | --- | --- | --- |\n{}",
          group.title, rows);
  }
  for (const CLI::App* inner : subcommands_of(command)) add_reference(*inner, out);
}

}  // namespace

void prepare_help(CLI::App& command) {
  assign_groups(command);
  const Renderer renderer(command);
  for (CLI::Option* option : command.get_options()) option->description(renderer.text(option->get_description(), ""));
  for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; })) prepare_help(*inner);
}

std::vector<FlagGroup> flag_groups(const CLI::App& command) {
  std::vector<std::string> titles = {kPlainGroup};
  for (const HelpGroup& group : help_groups(command_path(command))) titles.emplace_back(group.title);
  for (const char* title : {kOtherGroup, kAdvancedGroup, kAliasGroup, kTeiGroup, kIgnoredGroup})
    if (std::find(titles.begin(), titles.end(), title) == titles.end()) titles.emplace_back(title);
  std::vector<FlagGroup> groups = {{"Arguments", {}, true}};
  for (const CLI::Option* option : command.get_options())
    if (!option->nonpositional()) groups[0].flags.push_back(option);
  for (const std::string& title : titles) {
    FlagGroup group{title, {}, is_common(title)};
    for (const HelpGroup& listed : help_groups(command_path(command)))
      if (listed.title == title)
        for (const std::string& name : split_words(listed.flags))
          if (const CLI::Option* option = command.get_option_no_throw("--" + name.substr(0, name.find('?'))))
            group.flags.push_back(option);
    for (const CLI::Option* option : command.get_options())
      if (option->nonpositional() && option->get_group() == title &&
          std::find(group.flags.begin(), group.flags.end(), option) == group.flags.end())
        group.flags.push_back(option);
    groups.push_back(std::move(group));
  }
  std::erase_if(groups, [](const FlagGroup& group) { return group.flags.empty(); });
  return groups;
}

void show_default(CLI::Option& option, const std::string& text) { option.option_text(text); }

std::string shown_default(const CLI::Option& option) {
  return option.get_option_text().empty() ? option.get_default_str() : option.get_option_text();
}

bool lacks_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.find("INT") == std::string::npos && type.find("FLOAT") == std::string::npos) return false;
  const auto& given = option.results();
  return std::find(given.begin(), given.end(), "") != given.end();
}

std::string value_name(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  if (const char* name = named_value(long_name(option))) return name;
  const std::string type = option.get_type_name();
  if (type.empty()) return "";
  if (type.find("INT") != std::string::npos) return "N";
  return type.find("FLOAT") != std::string::npos ? "NUMBER" : "VALUE";
}

std::string flag_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& letter : option.get_snames()) names.push_back("-" + letter);
  for (const auto& name : option.get_lnames())
    if (name.find('_') == std::string::npos) names.push_back("--" + name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string usage_line(const CLI::App& command) {
  const std::string path = command_path(command);
  std::string line = "brim " + (path.empty() ? path : path + " ") + "[flags]";
  for (const CLI::Option* option : command.get_options()) {
    if (option->nonpositional()) continue;
    const bool several = option->get_items_expected_max() > 1;
    const std::string name = option->get_name(true) + (several ? "..." : "");
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  if (subcommands_of(command).empty()) return line;
  return line + (path.empty()                                ? " COMMAND"
                 : command.get_require_subcommand_min() == 0 ? " [SUBCOMMAND]"
                                                             : " SUBCOMMAND");
}

std::string sentence(const std::string& description) {
  if (description.empty()) return description;
  std::string text = description;
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text.back() == '.' ? text : text + ".";
}

std::string help_text(const CLI::App& command, bool all, int width) {
  const std::string path = command_path(command);
  std::string out = fmt::format("{}\n\nUsage: {}\n", sentence(command.get_description()), usage_line(command));
  bool hides = false;
  for (const FlagGroup& group : flag_groups(command)) {
    hides = hides || !group.common;
    if (!group.common && !all) continue;
    std::vector<Line> lines;
    for (const CLI::Option* option : group.flags) lines.push_back(line_of(*option, all));
    out += fmt::format("\n{}:\n{}", group.title, columns(lines, 32, static_cast<size_t>(width)));
  }
  std::vector<Line> lines;
  size_t left = 0;
  for (const CLI::App* inner : subcommands_of(command)) {
    lines.push_back({inner->get_name(), inner->get_description()});
    left = std::max(left, inner->get_name().size() + 4);
  }
  if (!lines.empty())
    out += fmt::format("\n{}:\n{}", path.empty() ? "Commands" : "Subcommands",
                       columns(lines, left, static_cast<size_t>(width)));
  if (const std::string footer = command.get_footer(); !footer.empty()) out += "\n" + footer + "\n";
  if (hides && !all) out += fmt::format("\nMore flags and environment variables: brim {} --help-all\n", path);
  return out;
}

std::string flag_reference(const CLI::App& program) {
  std::string out =
      "# Flags\n\n"
      "Generated by `tools/make_reference` from the flags of `brim`; do not edit.\n\n"
      "Flags take precedence over environment variables, and these over configuration files.\n"
      "[serve.md](../serve.md) describes the YAML file of the server, [training.md](../training.md) that of\n"
      "training. Long flags of `brim train` may also be written with underscores.\n";
  add_reference(program, out);
  return out;
}

}  // namespace brim::cli
