// SPDX-License-Identifier: Apache-2.0
#include "hub/pickle.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_pickle
#include "hub/pickle_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::hub {
namespace {

using Kind = PickleValue::Kind;
using namespace std::string_literals;

constexpr std::string_view kAllowed[] = {"collections OrderedDict", "torch make"};

Pickle unpickle(const std::string& bytes) { return parse_pickle(as_bytes(bytes), kAllowed, "m.bin"); }
std::string pickle_error(const std::string& bytes) {
  return error_of(ErrorCode::bad_model, [&] { unpickle(bytes); });
}

TEST(Pickle, ReadsPlainValues) {
  // pickle.dumps(…, protocol=2) of single values
  EXPECT_EQ(unpickle("\x80\x02N.").top().kind, Kind::none);
  EXPECT_EQ(unpickle("\x80\x02\x88.").top().integer, 1);
  EXPECT_EQ(unpickle("\x80\x02K\xFF.").top().integer, 255);
  EXPECT_EQ(unpickle("\x80\x02M\x01\x02.").top().integer, 0x201);
  EXPECT_EQ(unpickle("\x80\x02J\xFE\xFF\xFF\xFF.").top().integer, -2);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x00."s).top().integer, 0);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x01\xFF.").top().integer, -1);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x05\x00\x00\x00\x00\x01."s).top().integer, int64_t{1} << 32);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F.").top().integer, INT64_MAX);
  EXPECT_EQ(unpickle("\x80\x02\x8a\x0a"
                     "0123456789.")
                .top()
                .kind,
            Kind::big_integer);
  EXPECT_EQ(unpickle("\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00."s).top().real, 1.5);
  EXPECT_EQ(unpickle("\x80\x02X\x02\x00\x00\x00hi."s).top().text, "hi");
  EXPECT_EQ(unpickle("\x80\x04\x95\x06\x00\x00\x00\x00\x00\x00\x00\x8c\x02hi\x94."s).top().text, "hi");
  EXPECT_EQ(unpickle("\x80\x03"
                     "C\x02hi.")
                .top()
                .kind,
            Kind::bytes);
}

TEST(Pickle, ReadsContainersAndTheMemo) {
  const Pickle tuple = unpickle("\x80\x02K\x01K\x02\x86q\x00h\x00\x86."s);  // t = (1, 2); (t, t)
  ASSERT_EQ(tuple.top().items.size(), 2u);
  EXPECT_EQ(tuple.top().items[0], tuple.top().items[1]);
  EXPECT_EQ(tuple[tuple[tuple.top().items[0]].items[1]].integer, 2);
  const Pickle list = unpickle(
      "\x80\x02](K\x01K\x02"
      "eK\x03"
      "a.");
  EXPECT_EQ(list.top().items.size(), 3u);
  const Pickle dict = unpickle(
      "\x80\x02}(U\x01"
      "aK\x01U\x01"
      "bK\x02u.");
  EXPECT_EQ(dict.top().items.size(), 4u);
  const Pickle ordered = unpickle(
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(U\x01"
      "aK\x01u}U\x09_metadataK\x01sb.");
  EXPECT_EQ(ordered.top().kind, Kind::dict);
  EXPECT_EQ(ordered.top().items.size(), 2u);
  const Pickle pairs = unpickle(
      "\x80\x02"
      "ccollections\nOrderedDict\n](](U\x01"
      "aK\x01"
      "e](U\x01"
      "bK\x02"
      "ee\x85R.");
  EXPECT_EQ(pairs.top().items.size(), 4u);
  const Pickle call = unpickle(
      "\x80\x02"
      "ctorch\nmake\nU\x01k\x85Q\x85R.");
  ASSERT_EQ(call.top().kind, Kind::call);
  EXPECT_EQ(call[call.top().items[0]].text, "torch make");
  const Pickle rows = unpickle("\x80\x02K\x01.\x80\x02K\x02.");
  EXPECT_EQ(rows.bytes_read, 5u);
}

TEST(Pickle, ExecutesNothing) {
  // The classic attack: os.system("…") by GLOBAL and REDUCE, and by STACK_GLOBAL.
  const std::string by_global = pickle_error(
      "\x80\x02"
      "cos\nsystem\nU\x02id\x85R.");
  EXPECT_HAS(by_global, "m.bin: pickle, byte 2: 'os.system' is not allowed");
  EXPECT_HAS(by_global, "safetensors");
  EXPECT_HAS(pickle_error("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."), "'posix.system'");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "c__builtin__\neval\n."),
             "'__builtin__.eval'");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ctorch.storage\n_load_from_bytes\n."),
             "'torch.storage._load_from_bytes'");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ctorch\nmake.__globals__\n."),
             "'torch.make.__globals__'");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "c\x1b[2J\nx\n."),
             "\\x1b[2J.x");
  EXPECT_HAS(pickle_error("\x80\x02U\x03"
                          "abc)R."),
             "REDUCE: found text, not a class");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ctorch\nmake\n}R."),
             "REDUCE: found a dict, not a tuple");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ctorch\nmake\n)\x81."),
             "opcode 0x81");  // NEWOBJ
  EXPECT_HAS(pickle_error("\x80\x02"
                          "(S'id'\nios\nsystem\n."),
             "opcode 0x53");                                             // STRING, INST
  EXPECT_HAS(pickle_error("\x80\x02(ios\nsystem\n."), "opcode 0x69");    // INST
  EXPECT_HAS(pickle_error("\x80\x02(ctorch\nmake\no."), "opcode 0x6f");  // OBJ
  EXPECT_HAS(pickle_error("\x80\x02\x82\x01."), "opcode 0x82");          // EXT1
  EXPECT_HAS(pickle_error("\x80\x02P1\n."), "opcode 0x50");              // PERSID
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ctorch\nmake\n)R}b."),
             "BUILD: found a call, not a dict");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ccollections\nOrderedDict\nK\x01\x85R."),
             "OrderedDict called with a number");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "ccollections\nOrderedDict\nNN\x86R."),
             "OrderedDict called with 2 arguments");
}

TEST(Pickle, RejectsInvalidPickles) {
  EXPECT_HAS(pickle_error(""), "needs 1 bytes but 0 are left");
  EXPECT_HAS(pickle_error("\x80\x05."), "protocol 5");
  EXPECT_HAS(pickle_error("\x80\x01."), "protocol 1");
  EXPECT_HAS(pickle_error("\x80\x02."), "0 values");
  EXPECT_HAS(pickle_error("\x80\x02NN."), "2 values");
  EXPECT_HAS(pickle_error("\x80\x02N(."), "1 marks");
  EXPECT_HAS(pickle_error("\x80\x02\x85."), "empty stack");
  EXPECT_HAS(pickle_error("\x80\x02N(\x85."), "empty stack");  // may not reach below the mark
  EXPECT_HAS(pickle_error("\x80\x02t."), "missing mark");
  EXPECT_HAS(pickle_error("\x80\x02h\x07."), "reads memo 7");
  EXPECT_HAS(pickle_error("\x80\x02q\x07."), "empty stack");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "2."),
             "empty stack");
  EXPECT_HAS(pickle_error("\x80\x02}(Nu."), "not pairs");
  EXPECT_HAS(pickle_error("\x80\x02](NN\x86"
                          "u."),
             "not pairs");
  EXPECT_HAS(pickle_error("\x80\x02NNa."), "APPENDS: found None");
  EXPECT_HAS(pickle_error("\x80\x02X\xFF\xFF\xFF\x7Fhi."), "needs 2147483647 bytes");
  EXPECT_HAS(pickle_error("\x80\x04\x8d\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFhi."), "needs 18446744073709551615 bytes");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "cno end"),
             "unterminated name");
  EXPECT_HAS(pickle_error("\x80\x02"
                          "c" +
                          std::string(5000, 'a') + "\nb\n."),
             "unterminated name");
}

TEST(Pickle, StaysLinearOnHostileInput) {
  // Doubling tuples: 2^200000 elements if anything expanded them.
  std::string doubling = "\x80\x02N";
  for (int i = 0; i < 200'000; ++i) doubling += "2\x86";
  EXPECT_EQ(unpickle(doubling + ".").top().items.size(), 2u);
  std::string deep = "\x80\x02" + std::string(500'000, ']');
  for (int i = 0; i < 499'999; ++i) deep += 'a';
  EXPECT_EQ(unpickle(deep + ".").top().kind, Kind::list);  // its destruction does not recurse either
  EXPECT_EQ(unpickle("\x80\x02]q\x00h\x00"
                     "a."s)
                .top()
                .items.size(),
            1u);  // a list that contains itself
  EXPECT_HAS(pickle_error("\x80\x02" + std::string(3'000'000, 'N')), "more than 1048576 values");
  EXPECT_HAS(pickle_error("\x80\x02N" + std::string(3'000'000, '2')), "on the stack");
  EXPECT_HAS(pickle_error("\x80\x02" + std::string(3'000'000, '(')), "marks");
  EXPECT_HAS(pickle_error("\x80\x04N" + std::string(3'000'000, '\x94')), "stores more than");
  // One list of pairs reused for many dicts.
  std::string pairs = "\x80\x02](";
  for (int i = 0; i < 1000; ++i) pairs += "NN\x86";
  pairs += "eq\x01";
  for (int i = 0; i < 10'000; ++i) pairs += "ccollections\nOrderedDict\nh\x01\x85R";
  EXPECT_HAS(pickle_error(pairs + "."), "dicts of more than 1048576 pairs");
  // One value inserted into a dict repeatedly.
  std::string filled = "\x80\x02Nq\x01}";
  for (int i = 0; i < 1'100'000; ++i) filled += "h\x01h\x01s";
  EXPECT_HAS(pickle_error(filled + "."), "dicts of more than 1048576 pairs");
}

TEST(PickleFuzz, NeverCrashes) {
  std::vector<std::string> seeds = {
      "\x80\x02}(U\x01"
      "aK\x01U\x01"
      "bK\x02u.",
      "\x80\x02](K\x01K\x02"
      "eK\x03"
      "a.",
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(U\x01"
      "aK\x01u}U\x09_metadataK\x01sb."};
  drive_fuzz(fuzz_pickle, seeds, 15000);
}

}  // namespace
}  // namespace brim::hub
