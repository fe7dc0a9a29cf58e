// SPDX-License-Identifier: Apache-2.0
#include "hub/torch_bin.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "hub/weights.h"
#include "io/zip_maker.h"

#define LLVMFuzzerTestOneInput fuzz_torch_bin
#include "hub/torch_bin_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::hub {

using io::ZipMaker;

namespace {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) { return fs::path(BRIM_SOURCE_DIR) / "tests/data/io" / name; }

std::string torch_bin_error(const std::string& file) {
  return error_of(ErrorCode::bad_model, [&] { parse_torch_bin(as_bytes(file), "m.bin"); });
}

// The values in every tensor of tools/make_io_goldens.py: -1, -0.75, -0.5 …
double ramp(int64_t i) { return 0.25 * static_cast<double>(i) - 1; }

void expect_values(const WeightSource& source, const std::string& name, const std::string& shape,
                   const std::vector<double>& expected) {
  const LoadedTensor view = source.get(name);
  EXPECT_EQ(view.shape_text(), shape) << name;
  ASSERT_EQ(view.elements(), static_cast<int64_t>(expected.size())) << name;
  std::vector<double> actual(expected.size());
  convert_elements(view.data, view.dtype, actual.data(), tensor::DType::f64, view.elements());
  EXPECT_EQ(actual, expected) << name;
}

std::vector<double> ramps(std::initializer_list<int64_t> indices) {
  std::vector<double> out;
  for (const int64_t i : indices) out.push_back(ramp(i));
  return out;
}

class TorchGolden : public testing::TestWithParam<const char*> {};

TEST_P(TorchGolden, ReadsTorchFiles) {
  const auto source = WeightSource::open_file(golden(GetParam()));
  EXPECT_EQ(source->names().size(), 17u);
  expect_values(*source, "f32", "f32[2,3]", ramps({0, 1, 2, 3, 4, 5}));
  expect_values(*source, "f16", "f16[5]", ramps({0, 1, 2, 3, 4}));
  expect_values(*source, "bf16", "bf16[2,2]", ramps({0, 1, 2, 3}));
  expect_values(*source, "f64", "f64[2]", ramps({0, 1}));
  expect_values(*source, "parameter", "f32[2,2]", ramps({0, 1, 2, 3}));
  expect_values(*source, "scalar", "f32[1]", {2.5});
  expect_values(*source, "empty", "f32[0,3]", {});
  expect_values(*source, "transposed", "f32[6,4]",
                ramps({0, 6, 12, 18, 1, 7, 13, 19, 2, 8, 14, 20, 3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23}));
  expect_values(*source, "slice", "f32[2,3]", ramps({8, 9, 10, 14, 15, 16}));
  expect_values(*source, "rows", "f32[2,6]", ramps({12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  expect_values(*source, "shared.a", "f32[3,2]", ramps({0, 1, 2, 3, 4, 5}));
  expect_values(*source, "shared.b", "f32[3,2]", ramps({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source->get("i64").as<int64_t>()[3], 3);
  EXPECT_EQ(source->get("i32").as<int32_t>()[3], 3);
  EXPECT_EQ(source->get("i8").as<int8_t>()[0], -2);
  EXPECT_EQ(source->get("u8").as<uint8_t>()[3], 3);
  EXPECT_EQ(source->describe("bool")->dtype_text, "bool");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { source->find("bool"); }), "unsupported type bool");
}

INSTANTIATE_TEST_SUITE_P(Files, TorchGolden,
                         testing::Values("state_dict.bin", "state_dict_protocol4.bin", "state_dict_legacy.bin"));

TEST(TorchBin, ReadsAStateDict) {
  const auto source = WeightSource::open_file(golden("module.bin"));
  EXPECT_EQ(source->names(), (std::vector<std::string>{"0.bias", "0.weight", "1.bias", "1.weight"}));
  EXPECT_EQ(source->get("0.weight").shape_text(), "f32[2,3]");
  EXPECT_EQ(source->get("1.weight").as<float>()[1], 1);
}

TEST(TorchBin, OpensADirectoryAndShards) {
  const TempDir dir;
  fs::copy_file(golden("module.bin"), dir / "pytorch_model-00001-of-00002.bin");
  fs::copy_file(golden("state_dict.bin"), dir / "pytorch_model-00002-of-00002.bin");
  put_file(
      dir / "pytorch_model.bin.index.json",
      R"({"weight_map":{"0.weight":"pytorch_model-00001-of-00002.bin","f32":"pytorch_model-00002-of-00002.bin"}})");
  const auto shards = WeightSource::open(dir.path());
  EXPECT_EQ(shards->names(), (std::vector<std::string>{"0.weight", "f32"}));
  expect_values(*shards, "f32", "f32[2,3]", ramps({0, 1, 2, 3, 4, 5}));
  fs::copy_file(golden("module.bin"), dir / "pytorch_model.bin");
  EXPECT_EQ(WeightSource::open(dir.path())->names().size(), 4u);  // a single file takes precedence over shards
}

TEST(TorchBin, ErrorsNameTheRejectedItem) {
  EXPECT_HAS(torch_bin_error(get_file(golden("pickled_module.bin"))), "'torch.nn.modules.container.Sequential'");
  EXPECT_HAS(torch_bin_error(get_file(golden("training_checkpoint.bin"))), "with tensors inside 'state_dict'");
  EXPECT_HAS(torch_bin_error(get_file(golden("sparse.bin"))), "'torch._utils._rebuild_sparse_tensor'");
  EXPECT_HAS(torch_bin_error(""), "not a file of torch.save (0 bytes)");
  EXPECT_HAS(torch_bin_error("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull");
  EXPECT_HAS(torch_bin_error("\x80\x02K\x01."), "not a file of torch.save");
  EXPECT_HAS(torch_bin_error(std::string(257, 'x') + "ustar" + std::string(300, '\0')), "tar");
  for (const char* name : {"state_dict.bin", "state_dict_legacy.bin"}) {
    const std::string whole = get_file(golden(name));
    for (size_t n = 0; n < whole.size(); ++n) torch_bin_error(whole.substr(0, n));
  }
}

// ---- files that torch never writes ----

std::string text(const std::string& value) { return "X" + ZipMaker::le(value.size(), 4) + value; }
std::string integer(int64_t value) { return "\x8a\x08" + ZipMaker::le(static_cast<uint64_t>(value), 8); }
std::string tuple(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const int64_t v : values) out += integer(v);
  return out + "t";
}

struct FakeTensor {
  std::string storage_class = "torch\nFloatStorage\n", key = text("0"), tag = text("storage");
  int64_t elements = 4, offset = 0;
  std::vector<int64_t> size = {4}, stride = {1};
  std::string function = "torch._utils\n_rebuild_tensor_v2\n";

  std::string pickled() const {
    const std::string storage = "(" + tag + "c" + storage_class + key + text("cpu") + integer(elements) + "tQ";
    return "c" + function + "(" + storage + integer(offset) + tuple(size) + tuple(stride) + "\x89}tR";
  }
};

std::string state_dict(const std::string& items) { return "\x80\x02}(" + items + "u."; }

std::string archive(const std::string& pickle, const std::string& data = std::string(16, '\0'),
                    std::vector<ZipMaker::Member> more = {}) {
  ZipMaker zip;
  zip.members.push_back({.name = "m/data.pkl", .bytes = pickle});
  zip.members.push_back({.name = "m/data/0", .bytes = data});
  for (auto& member : more) zip.members.push_back(std::move(member));
  return zip.make();
}

std::string one(const FakeTensor& tensor) { return archive(state_dict(text("w") + tensor.pickled())); }

TEST(TorchBin, ReadsAHandMadeArchive) {
  EXPECT_EQ(parse_torch_bin(as_bytes(one({})), "m").at("w").shape, std::vector<int64_t>{4});
  FakeTensor strided;
  strided.size = {2, 1};
  strided.stride = {3, 1};
  EXPECT_EQ(parse_torch_bin(as_bytes(one(strided)), "m").at("w").stride, (std::vector<int64_t>{3, 1}));
  FakeTensor empty;
  empty.size = {0, 7};
  empty.stride = {7, 1};
  empty.offset = 4;
  EXPECT_EQ(parse_torch_bin(as_bytes(one(empty)), "m").at("w").elements, 0);
}

TEST(TorchBin, RejectsInconsistentTensors) {
  auto with = [](auto&& change) {
    FakeTensor tensor;
    change(tensor);
    return torch_bin_error(one(tensor));
  };
  EXPECT_HAS(with([](auto& t) { t.size = {5}; }), "tensor 'w': offset 0, size [5] and stride [1] exceed the storage");
  EXPECT_HAS(with([](auto& t) { t.offset = 1; }), "exceed the storage of 4");
  EXPECT_HAS(with([](auto& t) { t.offset = -1; }), "exceed the storage");
  EXPECT_HAS(with([](auto& t) { t.offset = INT64_MAX; }), "exceed the storage");
  EXPECT_HAS(with([](auto& t) { t.stride = {2}; }), "exceed the storage");
  EXPECT_HAS(with([](auto& t) { t.stride = {INT64_MAX}; }), "exceed the storage");
  EXPECT_HAS(with([](auto& t) { t.stride = {-1}; }), "stride contains -1");
  EXPECT_HAS(with([](auto& t) { t.size = {-4}; }), "size contains -4");
  EXPECT_HAS(with([](auto& t) {
               t.size = {1LL << 40, 1LL << 40};
               t.stride = {0, 0};
             }),
             "too large");
  EXPECT_HAS(with([](auto& t) {
               t.size = {1LL << 40};
               t.stride = {0};
             }),
             "repeats the storage of 4");
  EXPECT_HAS(with([](auto& t) {
               t.size = {3, 3};
               t.stride = {0, 1};
             }),
             "call .contiguous()");
  EXPECT_HAS(with([](auto& t) { t.stride = {1, 1}; }), "differ in length");
  EXPECT_HAS(with([](auto& t) { t.elements = 5; }), "storage '0' has 16 bytes, but 5 float32 require 20");
  EXPECT_HAS(with([](auto& t) { t.elements = -1; }), "-1 elements");
  EXPECT_HAS(with([](auto& t) { t.elements = INT64_MAX; }), "9223372036854775807 elements");
  EXPECT_HAS(with([](auto& t) { t.key = text("9"); }), "storage '9' is missing");
  EXPECT_HAS(with([](auto& t) { t.key = text("../../etc/passwd"); }), "is missing");
  EXPECT_HAS(with([](auto& t) { t.key = "K\x01"; }), "storage key is a number");
  EXPECT_HAS(with([](auto& t) { t.tag = text("module"); }), "storage is a 'module'");
  EXPECT_HAS(with([](auto& t) { t.storage_class = "torch\nDoubleStorage\n"; }), "4 float64 require 32");
  EXPECT_HAS(with([](auto& t) { t.storage_class = "torch\nQInt8Storage\n"; }), "'torch.QInt8Storage'");
  EXPECT_HAS(with([](auto& t) { t.storage_class = "collections\nOrderedDict\n"; }),
             "storage type is 'collections OrderedDict'");
  EXPECT_HAS(with([](auto& t) { t.function = "torch\nFloatStorage\n"; }), "is created by 'torch FloatStorage'");
  EXPECT_HAS(with([](auto& t) { t.function = "torch._utils\n_rebuild_parameter\n"; }), "value is a storage name");
  FakeTensor other;
  other.storage_class = "torch\nIntStorage\n";
  EXPECT_HAS(torch_bin_error(archive(state_dict(text("w") + FakeTensor().pickled() + text("v") + other.pickled()))),
             "is int32[4] here but float32[4] elsewhere");
  EXPECT_HAS(
      torch_bin_error(archive(state_dict(text("w") + FakeTensor().pickled() + text("w") + FakeTensor().pickled()))),
      "duplicate key 'w'");
  EXPECT_HAS(torch_bin_error(archive(state_dict("K\x01" + FakeTensor().pickled()))), "a dict with a number as a key");
  EXPECT_HAS(torch_bin_error(archive("\x80\x02].")), "contains a list, not a state dict");
}

TEST(TorchBin, RejectsOtherArchives) {
  const std::string good = state_dict(text("w") + FakeTensor().pickled());
  const std::string data(16, '\0');
  EXPECT_HAS(torch_bin_error(archive(good, data, {{.name = "m/byteorder", .bytes = "big"}})), "byte order is 'big'");
  EXPECT_HAS(torch_bin_error(archive(good, data, {{.name = "m/constants.pkl", .bytes = "x"}})), "TorchScript");
  EXPECT_HAS(torch_bin_error(archive(good, data, {{.name = "m/data/0", .bytes = data}})), "duplicate zip member");
  ZipMaker none;
  none.members.push_back({.name = "readme", .bytes = "hello"});
  EXPECT_HAS(torch_bin_error(none.make()), "without data.pkl");
  ZipMaker wrong_sum;
  wrong_sum.members.push_back({.name = "m/data.pkl", .bytes = good, .wrong_crc = 1});
  EXPECT_HAS(torch_bin_error(wrong_sum.make()), "checksum");
}

// Wrapped in torch._utils._rebuild_parameter `times` times.
std::string wrapped(int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += "ctorch._utils\n_rebuild_parameter\n";
  out += FakeTensor().pickled();
  for (int i = 0; i < times; ++i) out += "\x89}\x87R";
  return out;
}

TEST(TorchBin, ReadsOneLevelOfParameters) {
  EXPECT_EQ(parse_torch_bin(as_bytes(archive(state_dict(text("w") + wrapped(1)))), "m").at("w").elements, 4);
  for (const int times : {2, 20'000})
    EXPECT_HAS(torch_bin_error(archive(state_dict(text("w") + wrapped(times)))),
               "tensor 'w': a parameter of a parameter");
}

// Following the chain for every entry would take 10^10 steps.
TEST(TorchBin, RejectsASharedChainOfParameters) {
  std::string items = text("first") + wrapped(100'000) + "q\x01";
  for (int i = 0; i < 100'000; ++i) items += text(std::to_string(i)) + "h\x01";
  EXPECT_HAS(torch_bin_error(archive(state_dict(items))), "a parameter of a parameter");
}

TEST(TorchBin, SharesOneTensorBetweenManyEntries) {
  std::string items = text("first") + FakeTensor().pickled() + "q\x01";
  for (int i = 0; i < 50'000; ++i) items += text(std::to_string(i)) + "h\x01";
  EXPECT_EQ(parse_torch_bin(as_bytes(archive(state_dict(items))), "m").size(), 50'001u);
  FakeTensor keyed;
  keyed.key = text(std::string(257, '0'));
  EXPECT_HAS(torch_bin_error(one(keyed)), "storage key has 257 bytes, more than 256");
}

TEST(TorchBin, RejectsRepeatedKeys) {
  EXPECT_HAS(torch_bin_error(
                 archive(state_dict(text("w") + FakeTensor().pickled() + text("n") + "K\x01" + text("n") + "K\x02"))),
             "duplicate key 'n'");
  EXPECT_HAS(torch_bin_error(archive(state_dict(text("w") + "}" + text("w") + FakeTensor().pickled()))),
             "duplicate key 'w'");
}

TEST(TorchBinFuzz, NeverCrashes) {
  // Without a checksum, the archive does not detect changes to the pickle.
  ZipMaker unchecked;
  unchecked.members.push_back(
      {.name = "m/data.pkl", .bytes = state_dict(text("w") + FakeTensor().pickled()), .wrong_crc = 0});
  unchecked.members.push_back({.name = "m/data/0", .bytes = std::string(16, '\0'), .wrong_crc = 0});
  drive_fuzz(fuzz_torch_bin,
             {unchecked.make(), get_file(golden("state_dict_legacy.bin")), get_file(golden("module.bin"))}, 10000);
}

}  // namespace
}  // namespace brim::hub
