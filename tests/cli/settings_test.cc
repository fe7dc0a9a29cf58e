// SPDX-License-Identifier: Apache-2.0
// Every setting as a flag, environment variable and file entry; and the completion scripts generated from the tables.
#include "train/settings.h"

#include <fmt/format.h>

#include <regex>
#include <set>

#include "cli/program.h"

namespace brim {
namespace {

class Settings : public ProgramTest {
 protected:
  static std::string variable(const std::string& name) {
    std::string out = "BRIM_";
    for (const char c : name) out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return out;
  }
  // Error messages for `name` given as a flag, in the environment and in a file.
  std::vector<std::string> errors_of(const std::string& verb, const std::string& name, const std::string& value) {
    put("a.yaml", fmt::format("{}: {}\n", name, value));
    std::vector<std::string> all;
    for (const Outcome& o : {brim({verb, fmt::format("--{}={}", dashed(name), value)}, {.input = "w5\n"}),
                             brim({verb}, {.input = "w5\n", .environment = {{variable(name), value}}}),
                             brim({verb, "--config", "a.yaml"}, {.input = "w5\n"})}) {
      EXPECT_EQ(o.code, 2) << name << ": " << o.err;
      all.push_back(o.err);
    }
    return all;
  }
  // Flags in the help of a subcommand, or of the program if `words` is empty.
  std::set<std::string> flags_of(std::vector<std::string> words) {
    words.insert(words.begin(), {"help", "--all"});
    const std::string help = must(words);
    std::set<std::string> flags;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  -")) continue;
      const std::string names = line.substr(2, line.find("  ", 2) - 2);
      const std::regex flag("--[a-z][a-z0-9_-]*");
      for (std::sregex_iterator it(names.begin(), names.end(), flag), end; it != end; ++it) flags.insert(it->str());
    }
    return flags;
  }
};

bool refuses(const std::string& name, const std::string& value) {
  try {
    train::TrainSettings s;
    apply_setting(s, name, value);
    return false;
  } catch (const Error&) {
    return true;
  }
}

TEST_F(Settings, TrainingSettingsWorkAsFlagVariableAndKey) {
  int refused = 0;
  for (const SettingInfo& setting : train::train_settings().infos()) {
    const std::string flag = dashed(setting.name);
    const std::string value = setting.ignored                                        ? "true"
                              : setting.is_list || !refuses(setting.name, "neither") ? "w"
                                                                                     : "neither";
    const auto all = errors_of("train", setting.name, value);
    const auto expect = [&](size_t source, const std::string& part) {
      EXPECT_NE(all[source].find(part), std::string::npos) << setting.name << ": " << all[source];
    };
    if (setting.ignored) {
      for (const size_t source : {0, 1}) expect(source, fmt::format("--{} is ignored: ", flag));
      expect(2, fmt::format("a.yaml:1: {} is ignored: ", setting.name));
    } else if (value == "neither") {
      ++refused;
      for (const size_t source : {0, 1}) expect(source, fmt::format("brim: --{} neither: ", flag));
      expect(2, fmt::format("brim: a.yaml:1: {}: neither: ", setting.name));
    } else {  // any text is accepted; the error is about a different setting
      for (const size_t source : {0, 1, 2}) {
        EXPECT_EQ(all[source].find("unknown"), std::string::npos) << setting.name << ": " << all[source];
        EXPECT_EQ(all[source].find("no flag"), std::string::npos) << setting.name << ": " << all[source];
      }
    }
  }
  EXPECT_GT(refused, 40) << "numbers, choices and switches";
}

TEST_F(Settings, EngineSettingsWorkAsFlagVariableAndKey) {
  for (const auto& [name, value, wanted] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"device", "tpu", "use auto, cpu"},
                                                                      {"precision", "int3", "use auto, fp32"},
                                                                      {"memory_limit", "lots", "use a size"},
                                                                      {"threads", "2000", "must be from 1 to 1024"},
                                                                      {"max_length", "-1", "must not be negative"},
                                                                      {"long_text", "cut", "use truncate, window-mean"},
                                                                      {"fill", "perhaps", "true or false"}}) {
    const auto all = errors_of("score", name, value);
    for (const size_t source : {0, 1}) {
      EXPECT_NE(all[source].find(fmt::format("brim: --{} {}: ", dashed(name), value)), std::string::npos)
          << all[source];
      EXPECT_NE(all[source].find(wanted), std::string::npos) << all[source];
    }
    EXPECT_NE(all[2].find(fmt::format("brim: a.yaml:1: {}: {}: ", name, value)), std::string::npos) << all[2];
    EXPECT_NE(all[2].find(wanted), std::string::npos) << all[2];
  }
}

TEST_F(Settings, CompletionListsAllSubcommandsAndFlags) {
  std::vector<std::vector<std::string>> verbs = {{"score"},
                                                 {"train"},
                                                 {"plan"},
                                                 {"eval"},
                                                 {"embed"},
                                                 {"doctor"},
                                                 {"compare"},
                                                 {"profile"},
                                                 {"profile", "latency"},
                                                 {"models", "tune"},
                                                 {"tokenize"},
                                                 {"tune"},
                                                 {"bench"},
                                                 {"bench", "streams"},
                                                 {"models"},
                                                 {"models", "export"},
                                                 {"monitor"},
                                                 {"help"},
                                                 {"forecast"},
                                                 {"forecast", "eval"},
                                                 {"completion"}};
  if (brim({"help", "serve"}).code == 0)
    verbs.insert(verbs.end(), {{"serve"}, {"bench", "serve"}});  // not in every build
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = must({"completion", shell});
    for (const auto& verb : verbs) {
      EXPECT_NE(script.find(verb.back()), std::string::npos) << shell << " " << verb.back();
      const auto flags = flags_of(verb);
      EXPECT_FALSE(flags.empty()) << verb.back();
      for (const std::string& flag : flags) {
        const std::string wanted = shell == std::string("fish") ? " -l " + flag.substr(2) + " " : flag;
        EXPECT_NE(script.find(wanted), std::string::npos) << shell << " " << verb.back() << " " << flag;
      }
    }
  }
  EXPECT_GT(flags_of({"train"}).size(), 100u);
  EXPECT_EQ(must({"completion"}), must({"completion", "bash"}));
  refused(2, {"brim completion tcsh: use bash, zsh or fish"}, {"completion", "tcsh"});
}

TEST_F(Settings, CompletesInBash) {
  put("c.sh",
      "source complete\nCOMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _brim; echo \"${COMPREPLY[*]}\" > reply\n");
  put("complete", must({"completion"}));
  const auto reply = [&](const std::string& words) {
    EXPECT_EQ(std::system(fmt::format("cd '{}' && bash c.sh {}", folder_.string(), words).c_str()), 0);
    return get("reply");
  };
  EXPECT_EQ(reply("brim sc"), "score\n");
  EXPECT_EQ(reply("brim score --mem"), "--memory-limit\n");
  EXPECT_EQ(reply("brim models exp"), "export\n");
  EXPECT_EQ(reply("brim models export --o"), "--output\n");
  EXPECT_EQ(reply("brim train --lr-scaling ''"), "none sqrt linear\n");
  EXPECT_EQ(reply("brim score --long-text w"), "window-mean window-max\n");
  EXPECT_EQ(reply("brim forecast eval --gaps ''"), "mask error fill\n");
  EXPECT_EQ(reply("brim score c"), "c.sh complete\n");  // files
}

}  // namespace
}  // namespace brim
