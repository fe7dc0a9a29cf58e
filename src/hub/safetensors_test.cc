// SPDX-License-Identifier: Apache-2.0
#include "hub/safetensors.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_safetensors
#include "hub/safetensors_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::hub {

using tensor::DType;
using tensor::TensorView;

namespace {

std::string with_header(const std::string& header, const std::string& data = "") {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

std::string safetensors_error(const std::string& file) {
  return error_of(ErrorCode::bad_model, [&] { parse_safetensors(as_bytes(file), "m.safetensors"); });
}

const char* const kTwo = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                         R"("b":{"dtype":"I8","shape":[3],"data_offsets":[16,19]}})";

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string file = with_header(kTwo, std::string(16, '\0') + "\x01\x02\x03");
  const SafetensorsContents contents = parse_safetensors(as_bytes(file), "m");
  ASSERT_EQ(contents.tensors.size(), 2u);
  EXPECT_EQ(contents.metadata.at("format"), "pt");
  const StoredTensor& b = contents.tensors.at("b");
  EXPECT_EQ(b.dtype, DType::i8);
  EXPECT_EQ(b.shape, std::vector<int64_t>{3});
  EXPECT_EQ(static_cast<int>(b.data[2]), 3);
  EXPECT_EQ(contents.tensors.at("a").elements, 4);
}

TEST(Safetensors, ReadsScalarsEmptyTensorsAndUnusedTypes) {
  const std::string file = with_header(
      R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},)"
      R"("m":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]}}   )",
      std::string(10, '\1'));
  const SafetensorsContents contents = parse_safetensors(as_bytes(file), "m");
  EXPECT_EQ(contents.tensors.at("s").elements, 1);
  EXPECT_EQ(contents.tensors.at("e").elements, 0);
  EXPECT_FALSE(contents.tensors.at("m").dtype.has_value());
  EXPECT_TRUE(parse_safetensors(as_bytes(with_header("{}")), "m").tensors.empty());
}

TEST(Safetensors, RejectsDamagedHeaders) {
  EXPECT_HAS(safetensors_error(""), "0 bytes are too few");
  EXPECT_HAS(safetensors_error("1234567"), "7 bytes are too few");
  EXPECT_HAS(safetensors_error(std::string(8, '\xFF')), "18446744073709551615 bytes");
  EXPECT_HAS(safetensors_error(std::string("\x00\xE1\xF5\x05\0\0\0\0", 8)),
             "exceeds the file of 8");  // 1e8: allowed, but truncated
  EXPECT_HAS(safetensors_error(std::string("\x01\xE1\xF5\x05\0\0\0\0", 8)), "exceeds 100000000");
  const std::string whole = with_header(kTwo, std::string(19, '\0'));
  for (size_t n = 0; n < whole.size(); ++n) safetensors_error(whole.substr(0, n));
  EXPECT_HAS(safetensors_error(whole.substr(0, whole.size() - 1)),
             "tensor 'b': data_offsets [16, 19] are outside the 18");
  EXPECT_HAS(safetensors_error(whole + "x"), "1 bytes after the last tensor (19 of 20");
  EXPECT_HAS(safetensors_error(with_header("[]")), "starts with '['");
  EXPECT_HAS(safetensors_error(with_header(" {}")), "starts with ' '");
  EXPECT_HAS(safetensors_error(with_header("")), "starts with ''");
  EXPECT_HAS(safetensors_error(with_header("{} x")), "not valid JSON");
  EXPECT_HAS(safetensors_error(with_header("{\"a\xFF\":1}")), "not valid JSON");
  EXPECT_HAS(safetensors_error(with_header("{\"a\":")), "not valid JSON");
}

TEST(Safetensors, IdentifiesForeignFiles) {
  EXPECT_HAS(safetensors_error("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), "git lfs pull");
  EXPECT_HAS(safetensors_error("<!DOCTYPE html><html>"), "web page");
  EXPECT_HAS(safetensors_error(std::string("PK\x03\x04\0\0\0\0\0", 9)), "zip archive");
}

std::string one_tensor(const std::string& info) { return "{\"t\":" + info + "}"; }

TEST(Safetensors, RejectsInconsistentTensors) {
  struct Case {
    std::string header;
    size_t data;
    std::string problem;
  };
  const Case cases[] = {
      {one_tensor(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})"), 4, "unknown dtype 'F31'"},
      {one_tensor(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})"), 4, "dtype of tensor 't': found 7"},
      {one_tensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), 4, "found -1"},
      {one_tensor(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})"), 4, "found '1.5'"},
      {one_tensor(R"({"dtype":"F32","shape":[1e30],"data_offsets":[0,4]})"), 4, "found '1e30'"},
      {one_tensor(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})"), 4, "found '1'"},
      {one_tensor(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})"), 4, "18446744073709551615"},
      {one_tensor(R"({"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]})"), 4, "99999999999999999999"},
      {one_tensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0, "too large"},
      {one_tensor(R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})"), 0, "too large"},
      {one_tensor(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"), 0, "too large"},
      {one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), 4,
       "F32[2] requires 8 bytes, but data_offsets [0, 4] cover 4"},
      {one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), 4, "are not ascending"},
      {one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]})"), 4, "outside"},
      {one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), 8, "gap of 4 bytes after the header"},
      {one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), 4, "has 1 numbers"},
      {one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})"), 4, "found 8"},
      {one_tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1})"), 4, "unknown key 'x'"},
      {one_tensor(R"({"dtype":"F32","shape":[1]})"), 4, "data_offsets is missing"},
      {one_tensor(R"({"dtype":"F32","data_offsets":[0,4]})"), 4, "shape is missing"},
      {one_tensor(R"({"shape":[1],"data_offsets":[0,4]})"), 4, "dtype is missing"},
      {one_tensor(R"({"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]})"), 4, "header: duplicate "},
      {one_tensor(R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})"), 4, "header: duplicate "},
      {one_tensor(R"({"dtype":"F4","shape":[1],"data_offsets":[0,0]})"), 0, "F4[1]"},
      {one_tensor("[1]"), 0, "found an array"},
      {one_tensor("null"), 0, "found null"},
      {R"({"__metadata__":{"a":1}})", 0, "found 1"},
      {R"({"__metadata__":{"a":{}}})", 0, "found an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "duplicate"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "duplicate"},
      {R"({"t":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
       2, "duplicate tensor 't'"},
      {R"({"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}})",
       4, "tensor 'b': data_offsets [2, 4] overlap tensor 'a', which ends at 3"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[2],"data_offsets":[2,4]}})",
       4, "gap of 1 bytes after tensor 'a'"},
      {"{\"\\u001b[31m\":{\"dtype\":\"Q\"}}", 0, "\\x1b[31m"},
  };
  for (const Case& c : cases) {
    const std::string message = safetensors_error(with_header(c.header, std::string(c.data, '\0')));
    EXPECT_HAS(message, c.problem);
    EXPECT_TRUE(message.starts_with("m.safetensors: ")) << message;
  }
}

TEST(Safetensors, RejectsResourceExhaustion) {
  EXPECT_HAS(safetensors_error(with_header("{\"a\":" + std::string(1'000'000, '['))), "an array");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_HAS(safetensors_error(with_header(deep)), "unknown key 'a'");
  std::string dims = "0";
  for (int i = 0; i < 100'000; ++i) dims += ",0";
  EXPECT_HAS(
      safetensors_error(with_header(one_tensor(R"({"dtype":"F32","shape":[)" + dims + R"(],"data_offsets":[0,0]})"))),
      "at most 64");
}

TEST(SafetensorsWriter, RoundTrips) {
  const TempDir dir;
  float weight[6] = {1, 2, 3, 4, 5, 6};
  int8_t quantized[5] = {-1, 2, -3, 4, -5};
  tensor::bf16_t half[2] = {tensor::to_bf16(0.5f), tensor::to_bf16(-2.0f)};
  int64_t id = 7;
  TensorView scalar(&id, DType::i64, {});
  write_safetensors(dir / "m.safetensors", {{"w", TensorView(weight, DType::f32, {2, 3})},
                                            {"q\"\n", TensorView(quantized, DType::i8, {5})},
                                            {"h", TensorView(half, DType::bf16, {2, 1})},
                                            {"empty", TensorView(weight, DType::f32, {0, 3})},
                                            {"scalar", scalar}});
  const std::string file = get_file(dir / "m.safetensors");
  const SafetensorsContents contents = parse_safetensors(as_bytes(file), "m");
  ASSERT_EQ(contents.tensors.size(), 5u);
  EXPECT_EQ(contents.metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(std::memcmp(contents.tensors.at("w").data, weight, sizeof weight), 0);
  EXPECT_EQ(std::memcmp(contents.tensors.at("q\"\n").data, quantized, sizeof quantized), 0);
  EXPECT_EQ(std::memcmp(contents.tensors.at("scalar").data, &id, sizeof id), 0);
  EXPECT_TRUE(contents.tensors.at("scalar").shape.empty());
  for (const auto& [name, tensor] : contents.tensors) {  // no tensor is misaligned
    const auto offset = static_cast<size_t>(tensor.data - as_bytes(file).data());
    EXPECT_EQ(offset % static_cast<size_t>(dtype_bytes(*tensor.dtype)), 0u) << name;
  }
  EXPECT_EQ(static_cast<unsigned char>(file[0]) % 8, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "no temporary file is left";
}

TEST(SafetensorsWriter, StreamsInPiecesAndInADeterministicOrder) {
  const TempDir dir;
  const std::vector<SafetensorsSpec> specs = {{"b", DType::i8, {4}}, {"z", DType::f32, {1}}, {"a", DType::i8, {2}}};
  SafetensorsWriter writer(dir / "m", specs, {});
  ASSERT_EQ(writer.order()[0].name, "z");
  ASSERT_EQ(writer.order()[1].name, "a");
  writer.append("z", "\0\0\0\0", 4);
  EXPECT_THROW(writer.append("b", "1234", 4), Error);  // a is next
  writer.append("a", "12", 2);
  EXPECT_THROW(writer.append("b", "12345", 5), Error);
  writer.append("b", "123", 3);
  EXPECT_THROW(writer.commit(), Error);
  writer.append("b", "4", 1);
  EXPECT_THROW(writer.append("b", "4", 1), Error);
  writer.commit();
  EXPECT_TRUE(get_file(dir / "m").ends_with("121234"));
  EXPECT_THROW(SafetensorsWriter(dir / "n", {{"a", DType::i8, {1}}, {"a", DType::f32, {1}}}), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "no temporary file is left";
}

// The bytes written by the reference library for the same tensors (tools/make_io_goldens.py).
TEST(SafetensorsWriter, MatchesTheReferenceByteForByte) {
  const std::filesystem::path golden = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/io/reference.safetensors";
  const std::string expected = get_file(golden);
  ASSERT_FALSE(expected.empty()) << golden;
  const SafetensorsContents contents = parse_safetensors(as_bytes(expected), golden.string());
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : contents.tensors) specs.push_back({name, *tensor.dtype, tensor.shape});
  const TempDir dir;
  SafetensorsWriter writer(dir / "m", specs, contents.metadata);
  for (const SafetensorsSpec& spec : writer.order()) {
    const StoredTensor& tensor = contents.tensors.at(spec.name);
    writer.append(spec.name, tensor.data, static_cast<size_t>(tensor.elements * dtype_bytes(spec.dtype)));
  }
  writer.commit();
  EXPECT_EQ(get_file(dir / "m"), expected);
}

TEST(SafetensorsFuzz, NeverCrashes) {
  drive_fuzz(fuzz_safetensors,
             {with_header(kTwo, std::string(19, '\0')), with_header("{}"), with_header(one_tensor("{}"))}, 10000);
}

}  // namespace
}  // namespace brim::hub
