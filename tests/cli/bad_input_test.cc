// SPDX-License-Identifier: Apache-2.0
// Invalid and unusual input: gives labels, or a message with the file, the location, the value and a fix.
#include <fmt/format.h>

#include <regex>
#include <set>

#include "cli/program.h"

namespace brim {
namespace {

class BadInput : public ProgramTest {
 protected:
  std::vector<std::string> tiny(std::vector<std::string> more) const {
    std::vector<std::string> all = {"score", "--model", "tiny", "--device", "cpu", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(BadInput, ScoresEmptyFilesAndBlankLines) {
  EXPECT_EQ(must(tiny({"-"}), {.input = ""}), "text,label,score\n");
  EXPECT_EQ(must(tiny({"--format", "jsonl"}), {.input = "\n\n"}), "");
  EXPECT_EQ(must(tiny({"--format", "csv"}), {.input = "text\n"}), "text,label,score\n");
  const auto blank = lines_of(must(tiny({"-"}), {.input = "\n\n\n"}));
  ASSERT_EQ(blank.size(), 4u);
  EXPECT_EQ(blank[1].substr(0, 1), ",");
  put("empty.csv", "");
  refused(3, {"empty.csv", "header line"}, tiny({"empty.csv"}));
  EXPECT_EQ(must({"score", "--model", "vader", "-q"}, {.input = "\n"}), "text,label,score\n,neutral,1\n");
}

TEST_F(BadInput, ReportsSkippedBlankLines) {
  put("one.csv", "text\ngood\n\n\"\"\n\nbad\n");
  const Outcome got = brim({"score", "one.csv", "--model", "vader", "-o", "o.csv", "--summary-json", "s.json"});
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("3 rows in "), std::string::npos) << got.err;
  EXPECT_NE(got.err.find(" · 2 blank lines skipped\n"), std::string::npos) << got.err;
  EXPECT_EQ(json_of("s.json").at("blank_lines"), 2);
  put("two.csv", "text\ngood\n");
  EXPECT_EQ(brim({"score", "two.csv", "--model", "vader", "-o", "o.csv"}).err.find("blank"), std::string::npos);
  put("labelled.csv", "text,label\ngood,positive\n\nbad,negative\n\n\n");
  const std::vector<std::string> eval = {"eval", "labelled.csv", "--model", "vader"};
  EXPECT_NE(brim(eval).err.find("3 blank lines skipped\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(must({"eval", "labelled.csv", "--model", "vader", "--json"})).at("blank_lines"), 3);
  std::vector<std::string> compare = {"compare", "--models", "vader,tiny", "--device",
                                      "cpu",     "-q",       "--data",     "one.csv"};
  EXPECT_NE(must(compare).find("3 rows · 2 blank lines skipped · classes "), std::string::npos);
  compare.emplace_back("--json");
  EXPECT_EQ(nlohmann::json::parse(must(compare)).at("blank_lines"), 2);
}

TEST_F(BadInput, RejectsBareCrLineEnds) {
  put("mac.txt", "good\rbad\rugly\r");
  refused(3, {"mac.txt: has CR line endings", "tr '\\r' '\\n'"}, {"score", "mac.txt", "--model", "vader"});
  refused(3, {"stdin: has CR line endings"}, {"score", "--model", "vader"}, {.input = "good\rbad\rugly\r"});
}

TEST_F(BadInput, AcceptsNulBytesInText) {
  const std::string text("a\0b\nw5\n", 7);
  const std::string out = must(tiny({"-"}), {.input = text});
  EXPECT_EQ(lines_of(out).size(), 3u);
  EXPECT_NE(out.find(std::string("a\0b,", 4)), std::string::npos);
  const auto rows = json_lines(must(tiny({"--output-format", "jsonl"}), {.input = text}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("text").get<std::string>(), std::string("a\0b", 3));
  EXPECT_EQ(lines_of(must({"score", "--model", "vader", "-q"}, {.input = text})).size(), 3u);
}

TEST_F(BadInput, TreatsInvalidUtf8AsBadRow) {
  put("a.txt", "w5\nw6\n\xff\xfe w5\nw7\nw8 \xe9\n");
  for (const char* model : {"tiny", "vader"})
    refused(3, {"a.txt: line 3: byte 1 (0xFF) is not UTF-8", "iconv", "--on-error skip"},
            {"score", "a.txt", "--model", model, "-q"});
  EXPECT_EQ(lines_of(must(tiny({"a.txt", "--on-error", "skip"}))).size(), 4u);
  const auto null = lines_of(must(tiny({"a.txt", "--on-error", "null"})));
  ASSERT_EQ(null.size(), 6u);
  EXPECT_EQ(null[3], "\xff\xfe w5,,");
  const auto rows = json_lines(must(tiny({"a.txt", "--on-error", "null", "--output-format", "jsonl"})));
  ASSERT_EQ(rows.size(), 5u);  // always valid JSON
  EXPECT_EQ(rows[2].at("text").get<std::string>(), "\xef\xbf\xbd\xef\xbf\xbd w5");
  EXPECT_TRUE(rows[2].at("label").is_null());
  put("a.jsonl", "{\"text\":\"w5\"}\n{\"text\":\"\xe9\"}\n");
  const auto invalid = json_lines(must(tiny({"a.jsonl", "--on-error", "null"})));
  ASSERT_EQ(invalid.size(), 2u);
  EXPECT_EQ(invalid[1].at("invalid_json").get<std::string>(), "{\"text\":\"\xef\xbf\xbd\"}");

  put("latin1.csv", "text\nd\xe9j\xe0 vu\ncaf\xe9\n");
  refused(3, {"latin1.csv", "Latin-1", "iconv -f WINDOWS-1252 -t UTF-8"}, tiny({"latin1.csv", "--on-error", "skip"}));
}

TEST_F(BadInput, RejectsUtf16AndSuggestsConversion) {
  put("a.txt", std::string("\xff\xfe"
                           "w\0"
                           "5\0\n\0",
                           8));
  refused(3, {"a.txt", "UTF-16", "iconv"}, tiny({"a.txt"}));
}

TEST_F(BadInput, RejectsBinaryInput) {
  put("a.txt", std::string("I\0 \0l\0o\0v\0e\0 \0i\0t\0\n\0", 20));  // UTF-16 without byte order mark
  refused(3, {"a.txt", "UTF-16LE", "iconv -f UTF-16LE"}, tiny({"a.txt"}));
  put("b.csv.xz", std::string("\xFD"
                              "7zXZ\0\0\4",
                              8) +
                      "text\nw5\n");
  refused(3, {"b.csv.xz", "xz -dc"}, tiny({"b.csv.xz"}));
  put("c.bz2", "BZh91AY&SY rest");
  refused(3, {"c.bz2", "bzip2 -dc"}, tiny({"c.bz2"}));
  put("p.parquet", "PAR1\x15 columns");
  refused(3, {"p.parquet", "pandas.read_parquet('IN.parquet').to_csv('OUT.csv'"}, tiny({"p.parquet"}));
  put("d.csv", "PK\3\4 sheet");
  refused(3, {"d.csv", "zip archive", "CSV"}, tiny({"d.csv"}));
  put("e.json", "{\n  \"text\": \"w5\"\n}\n");
  refused(3, {"e.json", "several lines", "jq -c ."}, tiny({"e.json"}));
  put("f.txt", "BZh is a word, PK too\n");
  EXPECT_EQ(lines_of(must(tiny({"f.txt"}))).size(), 2u);
}

TEST_F(BadInput, RejectsUnexpectedSeparator) {
  put("a.csv", "text;id\nw5;1\n");
  refused(2, {"a.csv", "text;id", "semicolons", "--text-column"}, tiny({"a.csv"}));
  EXPECT_EQ(lines_of(must(tiny({"a.csv", "--text-column", "text;id"}))).size(), 2u);
  const auto rows = lines_of(must(tiny({"a.csv", "--delimiter", ";"})));
  EXPECT_EQ(rows.at(0), "text,id,label,score");
  EXPECT_EQ(rows.at(1).substr(0, 5), "w5,1,");
  put("labels.csv", "text;label\n\"w5; w6\";neutral\n");
  EXPECT_EQ(
      nlohmann::json::parse(must({"eval", "labels.csv", "--delimiter", ";", "--model", "tiny", "--json"})).at("rows"),
      1);
  for (const char* verb : {"embed", "tokenize"})
    EXPECT_EQ(json_lines(must({verb, "a.csv", "--delimiter", ";", "--model", "tiny"})).size(), 1u) << verb;
  for (const char* wrong : {"x", ";;", "\""})
    refused(2, {"--delimiter", "one character"}, tiny({"a.csv", "--delimiter", wrong}));
  refused(2, {"--delimiter", "txt"}, tiny({"--delimiter", ";"}), {.input = "w5\n"});
  put("raw.tsv", "text\tid\n\"w5\" w6\t1\n");
  refused(3, {"raw.tsv", "closing quote"}, tiny({"raw.tsv"}));
  EXPECT_EQ(lines_of(must(tiny({"raw.tsv", "--no-quotes"}))).at(1).substr(0, 9), "\"w5\" w6\t1");
  put("raw.csv", "text,id\n\"w5\" w6,1\n");
  EXPECT_EQ(lines_of(must(tiny({"raw.csv", "--no-quotes"}))).at(1).substr(0, 14), R"("""w5"" w6",1,)")
      << "ordinary csv, whose fields may hold commas";
  put("b.csv", "text\tid\nw5\t1\n");
  refused(2, {"b.csv", "tabs", "--format tsv"}, tiny({"b.csv"}));
  put("c.csv", "\"one, two; three\"\nw5\n");
  EXPECT_EQ(lines_of(must(tiny({"c.csv"}))).size(), 2u);
}

TEST_F(BadInput, WarnsAboutTableOnStdin) {
  for (const auto& [text, format] : {std::pair("{\"text\":\"w5\"}\n", "jsonl"), std::pair("id,text\n1,w5\n", "csv"),
                                     std::pair("text\tid\nw5\t1\n", "tsv")}) {
    const Outcome got = brim(tiny({}), {.input = text});
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_NE(got.err.find(fmt::format("--format {}", format)), std::string::npos) << got.err;
    EXPECT_EQ(brim(tiny({"--format", format}), {.input = text}).err, "");
  }
  EXPECT_EQ(brim(tiny({}), {.input = "text of mine, w5\n"}).err, "");
  EXPECT_EQ(brim(tiny({}), {.input = "{curly} w5\n"}).err, "");
}

TEST_F(BadInput, RejectsImplausibleOutputs) {
  put("a.txt", "w5\n");
  for (const char* name : {"o.xlsx", "o.parquet", "o.csv.bz2", "o.csv.zip"}) {
    refused(2, {name, ".gz"}, tiny({"a.txt", "-o", name}));
    EXPECT_FALSE(exists(name));
  }
  for (const char* verb : {"score", "embed", "tokenize"})
    refused(2, {"./a.txt", "is also the input a.txt"}, {verb, "--model", "tiny", "a.txt", "-o", "./a.txt"});
  EXPECT_EQ(get("a.txt"), "w5\n");
  refused(7, {"no/dir/o.csv: ", "create the directory no/dir first"}, tiny({"a.txt", "-o", "no/dir/o.csv"}));
  refused(2, {"--summary-json -", "-o FILE"}, tiny({"a.txt", "--summary-json", "-"}));
  EXPECT_EQ(nlohmann::json::parse(must(tiny({"a.txt", "-o", "o.csv", "--summary-json", "-"}))).at("rows"), 1);
}

// File names need not be UTF-8, although JSON cannot represent them.
TEST_F(BadInput, AcceptsFileNamesThatAreNotUtf8) {
  put("caf\xe9.txt", made_up_lines(300));
  must(tiny({"caf\xe9.txt", "-o", "o\xe9.csv", "--checkpoint-seconds", "0", "--summary-json", "s.json", "--trace",
             "t.json"}));
  EXPECT_EQ(lines_of(get("o\xe9.csv")).size(), 301u);
  EXPECT_EQ(json_of("s.json").at("rows"), 300);
  EXPECT_TRUE(json_of("t.json").is_object());
}

TEST_F(BadInput, ScoresVeryLongWords) {
  for (const char* unit : {"x", "é", "😍", "!", "#"}) {
    std::string word;
    while (word.size() < 300'000) word += unit;
    for (const char* model : {"tiny", "vader"}) {
      const auto rows = lines_of(must({"score", "--model", model, "-q"}, {.input = word + "\nw5\n"}));
      ASSERT_EQ(rows.size(), 3u) << unit;
      EXPECT_EQ(rows[1].substr(0, word.size()), word);
    }
  }
}

TEST_F(BadInput, ReportsLineOfBadRows) {
  put("a.csv", "text,id\nw5,1\n\"w6,2\nw7,3\n");
  refused(3, {"a.csv: line 3: ", "unterminated quote"}, tiny({"a.csv"}));
  put("b.csv", "text,id\n\"w6\"x,2\n");
  refused(3, {"b.csv: line 2: ", "field 1"}, tiny({"b.csv"}));
  put("c.csv", "text,id\nw6,2,3\n");
  refused(3, {"c.csv: line 2: ", "3 fields", "header has 2"}, tiny({"c.csv"}));
  put("a.jsonl", "{\"text\":\"w5\"}\n{\"text\":\"w5\",}\n");
  refused(3, {"a.jsonl: line 2: byte 14: "}, tiny({"a.jsonl"}));
  put("b.jsonl", "{\"text\":\"w5\"}\n\n{\"text\":7}\n");
  refused(3, {"b.jsonl: line 3: ", "\"text\" is a number"}, tiny({"b.jsonl"}));
  put("c.jsonl", "{\"text\":\"w5\"}\n{\"txt\":\"w5\"}\n[1]\n");
  refused(3, {"c.jsonl: line 2: missing key \"text\""}, tiny({"c.jsonl"}));
  must(tiny({"c.jsonl", "--on-error", "skip", "--summary-json", "s.json"}));
  EXPECT_EQ(json_of("s.json").at("bad_rows"), 2);
}

TEST_F(BadInput, NamesLocationOnce) {
  put("a.csv", "text,label\nw5,neutral\n\"w6,2\n");
  for (const char* model : {"tiny", "vader"})
    for (const auto& command : {std::vector<std::string>{"score", "a.csv", "--model", model, "-q"},
                                {"score", "a.csv", "--model", model, "-q", "--on-error", "skip", "-o", "o.csv"},
                                {"eval", "a.csv", "--model", model},
                                {"compare", "--models", "vader,tiny", "--data", "a.csv"}}) {
      const std::string err = brim(command).err;
      const size_t first = err.find("a.csv: line 3: unterminated quote");
      EXPECT_NE(first, std::string::npos) << err;
      EXPECT_EQ(err.find("a.csv", first + 1), std::string::npos) << err;
    }
}

TEST_F(BadInput, UsesSingularForms) {
  put("one.csv", "text,label\nw5,neutral\n");
  EXPECT_EQ(must({"eval", "one.csv", "--model", "vader"}).substr(0, 6), "1 row ");
  EXPECT_NE(brim({"score", "one.csv", "--model", "vader", "-o", "o.csv"}).err.find("vader on cpu (rules)"),
            std::string::npos);
  EXPECT_NE(brim({"eval", "one.csv", "--model", "vader"}).err.find("vader on cpu (rules)"), std::string::npos);
}

TEST_F(BadInput, ReportsFileOfCorruptCompression) {
  put("a.txt", made_up_lines(5000));
  must(tiny({"a.txt", "-o", "a.csv.gz"}));
  must(tiny({"a.txt", "-o", "a.csv.zst"}));
  for (const char* name : {"a.csv.gz", "a.csv.zst"}) {
    std::string bytes = get(name);
    put(std::string("cut_") + name, bytes.substr(0, bytes.size() / 2));
    refused(3, {std::string("cut_") + name}, tiny({std::string("cut_") + name, "-o", "o.csv"}));
    EXPECT_FALSE(exists("o.csv"));
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
    bytes[bytes.size() / 2 + 1] = static_cast<char>(bytes[bytes.size() / 2 + 1] ^ 0x55);
    put(std::string("bad_") + name, bytes);
    refused(3, {std::string("bad_") + name}, tiny({std::string("bad_") + name, "-o", "o.csv"}));
  }
}

TEST_F(BadInput, RejectsUnknownFlagsAndSubcommands) {
  refused(2, {"unknown flag --modle", "did you mean --model?", "brim score --help"}, {"score", "--modle", "tiny"});
  refused(2, {"'scroe'", "did you mean score?"}, {"scroe"});
  refused(2, {"--precison", "did you mean --precision?"}, {"models", "export", "tiny", "--precison", "int8"});
  refused(2, {"see `brim models export --help`"}, {"models", "export", "tiny", "--precison", "int8"});
  refused(2, {"unexpected argument 'rows.csv' (did you mean --train rows.csv?)", "`brim train --help`"},
          {"train", "rows.csv"});
  refused(2, {"unexpected argument 'tiny' (did you mean --model tiny?)"}, {"plan", "tiny"});
  refused(2, {"--format is given 2 times; brim score accepts one"}, tiny({"--format", "csv", "--format", "tsv"}));
  refused(2, {"--format: missing value"}, tiny({"--format"}));
  refused(2, {"--threshold: missing value"}, tiny({"--threshold", ""}), {.input = "w5\n"});
  refused(2, {"unknown flag -Z"}, tiny({"-Z"}));
  refused(2, {"unknown flag --first;"}, tiny({"--first", "--second", "3"}));
  refused(2, {"unknown flag --gpu (did you mean --device cuda:0?)"}, tiny({"--gpu", "0"}));
  refused(2, {"unknown flag --fp16 (did you mean --precision fp16?)"}, tiny({"--fp16"}));
  refused(2, {"unknown flag --memory-fraction (did you mean --memory-limit 98%?)"}, tiny({"--memory-fraction=0.98"}));
  refused(2, {"unknown flag --batch-size: batch sizes are planned"}, tiny({"--batch-size", "64"}));
  refused(2, {"unknown flag --per-device-batch-size (did you mean --per-device-train-batch-size?)"},
          {"train", "--per-device-batch-size", "8"});
  refused(2, {"--threads"}, tiny({"--threads", "many"}), {.input = "w5\n"});
  refused(2, {"--threads -1"}, tiny({"--threads", "-1"}), {.input = "w5\n"});
  refused(2, {"--format xlsx", "csv"}, tiny({"--format", "xlsx"}), {.input = "w5\n"});
  refused(2, {"--output-format xml", "jsonl"}, tiny({"--output-format", "xml"}), {.input = "w5\n"});
  refused(2, {"--precision int3", "int8"}, tiny({"--precision", "int3"}), {.input = "w5\n"});
  refused(2, {"--device tpu", "cuda"}, {"score", "--model", "tiny", "--device", "tpu"}, {.input = "w5\n"});
  // A GPU requested from a build without the CUDA backend is a usage error, not a lost device.
  if (const Outcome o = brim({"score", "--model", "tiny", "--device", "cuda"}, {.input = "w5\n"}); o.code != 0) {
    EXPECT_EQ(o.code, o.err.find("no CUDA backend") != std::string::npos ? 2 : 6) << o.err;
  }
  refused(2, {"--memory-limit 101%"}, tiny({"--memory-limit", "101%"}), {.input = "w5\n"});
  refused(2, {"--memory-limit 0.98", "did you mean 98%?"}, tiny({"--memory-limit", "0.98"}), {.input = "w5\n"});
  refused(2, {"--memory-limit 6: ", "did you mean 6GiB?"}, tiny({"--memory-limit", "6"}), {.input = "w5\n"});
  for (const char* precision : {"FP32", "Auto", "Int8"}) must(tiny({"--precision", precision}), {.input = "w5\n"});
  refused(2, {"--memory-limit -1GiB"}, tiny({"--memory-limit", "-1GiB"}), {.input = "w5\n"});
  for (const char* verb : {"score", "plan", "embed"})
    refused(2, {"--memory-limit", "90%"}, {verb, "--model", "tiny", "--memory-limit", ""}, {.input = "w5\n"});
  refused(2, {"nothere.csv", "No such file"}, tiny({"nothere.csv"}));
}

TEST_F(BadInput, ValidatesFlagsForVader) {
  const auto vader = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"score", "--model", "vader", "-q"});
    return more;
  };
  refused(2, {"--threads -5"}, vader({"--threads", "-5"}), {.input = "w5\n"});
  refused(2, {"--device tpu", "cuda"}, vader({"--device", "tpu"}), {.input = "w5\n"});
  refused(2, {"--precision int3", "int8"}, vader({"--precision", "int3"}), {.input = "w5\n"});
  refused(2, {"--memory-limit abc"}, vader({"--memory-limit", "abc"}), {.input = "w5\n"});
  EXPECT_EQ(lines_of(must(vader({"--threads", "1", "--memory-limit", "1GiB"}), {.input = "w5\n"})).size(), 2u);
}

TEST_F(BadInput, RejectsFlagsOfOtherToolsAndValuesOutOfRange) {
  refused(2, {"--batch-size", "--memory-limit"}, {"score", "--batch-size", "32"});
  refused(2, {"--num_workers", "--threads"}, {"score", "--num_workers", "4"});
  refused(2, {"--threads 1.5: "}, tiny({"--threads", "1.5"}), {.input = "w5\n"});
  for (const char* threads : {"-1", "99999"})
    refused(2, {fmt::format("--threads {}", threads), "1024"}, {"tokenize", "--model", "tiny", "--threads", threads},
            {.input = "w5\n"});
  const Outcome no_column =
      refused(2, {"unknown column 1"}, tiny({"--format", "csv", "--text-column", "1"}), {.input = "a,b\n1,w5\n"});
  EXPECT_EQ(no_column.err.find("did you mean"), std::string::npos) << no_column.err;
}

TEST_F(BadInput, WarnsAboutMisspelledEnvironmentVariable) {
  const Outcome got =
      brim(tiny({}), {.input = "w5\n", .environment = {{"BRIM_PRECISON", "int8"}, {"BRIM_UNRELATED_THING", "1"}}});
  EXPECT_EQ(got.code, 0);
  EXPECT_NE(got.err.find("BRIM_PRECISON"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("did you mean BRIM_PRECISION?"), std::string::npos) << got.err;
  EXPECT_EQ(got.err.find("UNRELATED"), std::string::npos) << got.err;
}

// Variables set by Kubernetes for a service named brim, and names that match flags.
TEST_F(BadInput, IgnoresUnrelatedEnvironmentVariables) {
  const Outcome got =
      brim(tiny({}),
           {.input = "w5\n",
            .environment = {{"BRIM_PORT", "tcp://10.0.0.1:80"}, {"BRIM_HOSTNAME", "pod"}, {"BRIM_REVISION", "main"}}});
  EXPECT_EQ(got.code, 0) << got.err;
}

// Names and labels come from untrusted files and must not control the terminal.
TEST_F(BadInput, EscapesControlSequencesInMessages) {
  const std::string evil = "\x1b]0;owned\x07\x1b[2J", shown = "\\x1b]0;owned\\x07\\x1b[2J";
  const auto expect_escaped = [&](const Outcome& got, int code) {
    EXPECT_EQ(got.code, code) << got.err;
    EXPECT_EQ(got.err.find_first_of("\x1b\x07"), std::string::npos) << got.err;
    EXPECT_NE(got.err.find(shown), std::string::npos) << got.err;
  };
  put("header.csv", "id," + evil + "\n1,x\n");
  expect_escaped(brim({"score", "header.csv", "--model", "vader"}), 2);
  put("key.jsonl", nlohmann::json{{evil, "x"}, {"id", 1}}.dump() + "\n");
  expect_escaped(brim({"score", "key.jsonl", "--model", "vader"}), 2);
  put(evil + ".txt", "\xff\n\xff\n");
  expect_escaped(brim({"score", evil + ".txt", "--model", "vader"}), 3);
  edit_config("tiny", [&](nlohmann::json& c) {
    c["id2label"] = {{"0", evil + "0"}, {"1", evil + "1"}, {"2", evil + "2"}};
    c["label2id"] = {{evil + "0", 0}, {evil + "1", 1}, {evil + "2", 2}};
  });
  put("in.txt", "w5\n");
  expect_escaped(brim({"score", "in.txt", "--model", "tiny", "--device", "cpu", "-o", "o.csv"}), 0);
  EXPECT_NE(get("o.csv").find(evil), std::string::npos) << "results are unchanged";
}

TEST_F(BadInput, RejectsMisspelledVariableInEnvFile) {
  put("wrong.env", "OTHER=1\nBRIM_PRECISON=int8\n");
  refused(2, {"wrong.env:2", "BRIM_PRECISON", "did you mean BRIM_PRECISION?"},
          {"--env-file", "wrong.env", "models", "list"});
  put("once.env", "BRIM_MODLE=tiny\n");
  EXPECT_EQ(refused(2, {}, {"--env-file", "once.env", "score"}).err,
            "brim: once.env:1: unknown variable BRIM_MODLE (did you mean BRIM_MODEL?)\n");
  put("code.env", "BRIM_NVML_LIBRARY=./evil.so\n");
  refused(2, {"code.env:1: BRIM_NVML_LIBRARY cannot be set in a file"}, {"--env-file", "code.env", "monitor"});
  put("right.env", "OTHER=1\nBRIM_PRECISION=fp32\nBRIM_SAVE_STEPS=5\nBRIM_SYNC=0\n");
  EXPECT_EQ(brim({"--env-file", "right.env", "models", "list"}).err, "");
}

// Tests the variables of all flags of all commands, so that new ones must be classified.
TEST_F(BadInput, AcceptsOnlySafeVariablesFromEnvFile) {
  const std::set<std::string> harmful = {"BRIM_ACCESS_LOG",
                                         "BRIM_ADAPTERS_ROOT",
                                         "BRIM_ALLOWED_HOST",
                                         "BRIM_ALLOW_PICKLE",
                                         "BRIM_API_KEY",
                                         "BRIM_API_KEY_FILE",
                                         "BRIM_APPLY",
                                         "BRIM_CONFIG",
                                         "BRIM_CORS_ALLOW_ORIGIN",
                                         "BRIM_DISAGREEMENTS",
                                         "BRIM_INSECURE",
                                         "BRIM_JOBS_ROOT",
                                         "BRIM_JSONL",
                                         "BRIM_LISTEN",
                                         "BRIM_LLM_KEY",
                                         "BRIM_LLM_URL",
                                         "BRIM_LOGGING_DIR",
                                         "BRIM_OUTPUT",
                                         "BRIM_OUTPUT_DIR",
                                         "BRIM_OVERWRITE_OUTPUT_DIR",
                                         "BRIM_PLOT",
                                         "BRIM_PULL",
                                         "BRIM_RECORD_AGREEMENT",
                                         "BRIM_STATE_DIR",
                                         "BRIM_SUMMARY",
                                         "BRIM_SUMMARY_JSON",
                                         "BRIM_TLS_CERT",
                                         "BRIM_TLS_KEY",
                                         "BRIM_TRACE",
                                         "BRIM_TRUSTED_PROXY",
                                         "BRIM_URL",
                                         "BRIM_CACHE",
                                         "BRIM_CUBLASLT",
                                         "BRIM_ENV_FILE",
                                         "BRIM_NVML_LIBRARY"};
  std::set<std::string> all = {"BRIM_CACHE", "BRIM_CUBLASLT", "BRIM_ENV_FILE", "BRIM_NVML_LIBRARY", "BRIM_DEBUG"};
  const std::string reference = must({"help", "--markdown"});
  const std::regex variable("`(BRIM_[A-Z0-9_]+)`");
  for (std::sregex_iterator at(reference.begin(), reference.end(), variable), end; at != end; ++at)
    all.insert((*at)[1]);
  for (const char* name : {"BRIM_CALLERS", "BRIM_COUNT", "BRIM_ROUNDS"})
    EXPECT_TRUE(all.contains(name)) << name << ": the reference lists subcommands of subcommands too";
  EXPECT_GT(all.size(), 200u);
  std::string harmless;
  for (const std::string& name : all)
    if (!harmful.contains(name)) harmless += name + "=\n";  // an empty value is read but sets nothing
  put("good.env", harmless);
  const Outcome taken = brim({"--env-file", "good.env", "models", "list"});
  EXPECT_EQ(taken.code, 0) << taken.err << "add the variable to one of the lists in src/cli/env_file.cc";
  for (const std::string& name : harmful) {
    EXPECT_TRUE(all.contains(name)) << name;
    put("bad.env", "# from a project\n" + name + "=1\n");
    refused(2, {"bad.env:2: " + name + " cannot be set in a file"}, {"--env-file", "bad.env", "models", "list"});
  }
}

TEST_F(BadInput, EnvFileCannotOverwriteFiles) {
  put("precious", "precious");
  put("project.env", "BRIM_OUTPUT=precious\n");
  refused(2, {"project.env:1: BRIM_OUTPUT", "use --output"}, {"--env-file", "project.env", "score", "--model", "vader"},
          {.input = "good\n"});
  EXPECT_EQ(get("precious"), "precious");
}

TEST_F(BadInput, UnprefixedVariablesDoNotChangeGeneralCommands) {
  const Surroundings bot{
      .input = "w5\n",
      .environment = {{"SENTIMENT_MODEL_NAME", "vader"}, {"GPU_MEMORY_CLEANUP", "1"}, {"BRIM_MODEL", "tiny"}}};
  const std::vector<std::string> score = {"score", "--device", "cpu", "-o", "o.csv"};
  EXPECT_NE(brim({"help", "score"}, {.environment = {{"SENTIMENT_MODEL_NAME", "some-model"}}}).out.find("--model"),
            std::string::npos);
  EXPECT_EQ(brim({"help", "score"}, {.environment = {{"SENTIMENT_MODEL_NAME", "some-model"}}}).out.find("some-model"),
            std::string::npos);
  const Outcome plain = brim(score, bot);
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(plain.err.find("GPU_MEMORY_CLEANUP"), std::string::npos) << plain.err;
  put("bot.env", "SENTIMENT_MODEL_NAME=vader\nSENTIMENT_BATCH_SIZE=10\nGPU_MAX_TEMPERATURE_C=80\n");
  const Outcome from_file = brim({"--env-file", "bot.env", "score"}, {.input = "good\n"});
  EXPECT_EQ(from_file.code, 0) << from_file.err;
  EXPECT_NE(from_file.err.find("vader on "), std::string::npos) << from_file.err;
  EXPECT_NE(from_file.err.find("bot.env: not used by brim score: GPU_MAX_TEMPERATURE_C, SENTIMENT_BATCH_SIZE\n"),
            std::string::npos)
      << from_file.err;
  const Outcome named =
      brim({"--env-file", "bot.env", "score", "--model", "tiny", "--device", "cpu"}, {.input = "w5\n"});
  EXPECT_NE(named.err.find("GPU_MAX_TEMPERATURE_C, SENTIMENT_BATCH_SIZE, SENTIMENT_MODEL_NAME\n"), std::string::npos)
      << named.err;
}

// The library's messages contain settings in backquotes; a subcommand renders those for which it has a flag.
TEST_F(BadInput, NamesSettingsAsFlagsOfTheSubcommand) {
  put("a.csv", "text\nw5\n");
  refused(2, {"brim: model 'a.csv': is a file"}, {"models", "show", "a.csv"});
  refused(2, {"brim: --models 'a.csv': is a file"}, {"compare", "--models", "vader,a.csv", "--data", "a.csv"});
  refused(2, {"brim: --model 'a.csv': is a file"}, {"score", "--model", "a.csv"}, {.input = "w5\n"});
  put("long.txt", "w5 w6 w7 w8\n");
  refused(3, {"the text has 6 tokens, the model supports 4; set --long-text truncate or --long-text window-mean; "},
          tiny({"long.txt", "--max-length", "4", "--long-text", "error"}));
  const auto plan = nlohmann::json::parse(must({"plan", "--model", "tiny", "--device", "rtx3070", "--fill", "--json"}));
  EXPECT_NE(plan.at("why").dump().find("--fill"), std::string::npos) << plan.at("why");
  put("trace.json", "{}");
  refused(3, {"create one with `brim score --trace FILE` or `brim train --trace FILE`"},
          {"doctor", "--run", "trace.json"});
  put("trace.json", "{\"traceEvents\": [");
  EXPECT_EQ(
      refused(3, {"trace.json: not a trace: syntax error"}, {"doctor", "--run", "trace.json"}).err.find("json.ex"),
      std::string::npos);
  put("tags.conll", "London B-LOC\nis O\n\n");
  refused(2, {"`brim train --task ner` to train on it", "(--format txt scores"}, tiny({"tags.conll"}));
}

TEST_F(BadInput, PrintsHelp) {
  EXPECT_NE(must({"help"}).find("label the texts of files"), std::string::npos);
  for (const char* verb : {"score", "train", "eval", "embed", "tokenize", "models", "plan"})
    EXPECT_NE(must({"help", verb}).find(fmt::format("Usage: brim {} [flags]", verb)), std::string::npos) << verb;
  EXPECT_NE(must({"score", "--help"}).find("--on-error"), std::string::npos);
  EXPECT_NE(must({"help", "models", "export"}).find("Usage: brim models export [flags] model"), std::string::npos);
  EXPECT_EQ(must({"help", "help"}), must({"help"}));
  EXPECT_EQ(must({"help", "forecast", "backtest"}), must({"help", "forecast", "roll"}));
  EXPECT_EQ(must({"forecast", "backtest", "--help"}), must({"forecast", "roll", "--help"}));
  EXPECT_NE(must({"help", "--man"}).find("\\fBbrim\\-score\\fR(1)"), std::string::npos);
  EXPECT_NE(must({"help", "--man", "score"}).find("\\fB\\-\\-shard\\fR \\fII/N\\fR"), std::string::npos);
  EXPECT_NE(must({"help", "--man", "models"}).find(".SS brim models export"), std::string::npos);
  refused(2, {"brim models: unknown subcommand 'shw'", "did you mean show?"}, {"models", "shw"});
  refused(2, {"brim models: unknown subcommand 'shw'"}, {"help", "models", "shw"});
  refused(2, {"brim bench: missing subcommand: streams, latency"}, {"bench"});
  refused(2, {"unexpected argument 'latnecy'"}, {"profile", "latnecy"});
  EXPECT_EQ(refused(2, {}, {"eval"}).err.substr(0, 10), "brim eval:");  // the program name occurs once
  EXPECT_EQ(must({"--version"}).substr(0, 5), "brim ");
  EXPECT_NE(must({"completion"}).find("complete "), std::string::npos);
}

}  // namespace
}  // namespace brim
