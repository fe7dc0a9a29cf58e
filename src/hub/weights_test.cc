// SPDX-License-Identifier: Apache-2.0
#include "hub/weights.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "base/test_files.h"

namespace brim::hub {
namespace {

namespace fs = std::filesystem;

void write_floats(const fs::path& path, const std::vector<std::pair<std::string, std::vector<float>>>& tensors) {
  std::map<std::string, tensor::TensorView> views;
  for (const auto& [name, values] : tensors)
    views[name] = tensor::TensorView(const_cast<float*>(values.data()), tensor::DType::f32,
                                     {static_cast<int64_t>(values.size())});
  write_safetensors(path, views);
}

TEST(WeightSource, OpensASafetensorsDirectory) {
  const TempDir dir;
  write_floats(dir / "model.safetensors",
               {{"a.weight", {1, 2, 3}}, {"x.LayerNorm.gamma", {4}}, {"x.LayerNorm.beta", {5}}});
  const auto source = WeightSource::open(dir.path());
  EXPECT_EQ(source->names(), (std::vector<std::string>{"a.weight", "x.LayerNorm.beta", "x.LayerNorm.gamma"}));
  EXPECT_EQ(source->metadata().at("format"), "pt");
  EXPECT_EQ(source->parameter_count(), 5);
  EXPECT_EQ(source->file_bytes(), static_cast<int64_t>(fs::file_size(dir / "model.safetensors")));
  const auto a = source->find("a.weight");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->shape_text(), "f32[3]");
  EXPECT_EQ(a->as<float>()[2], 3);
  EXPECT_EQ(source->get("x.LayerNorm.weight").as<float>()[0], 4);
  EXPECT_EQ(source->get("x.LayerNorm.bias").as<float>()[0], 5);
  EXPECT_FALSE(source->find("b"));
  const std::string message = error_of(ErrorCode::bad_model, [&] { source->get("a.weigth"); });
  EXPECT_HAS(message, "tensor 'a.weigth' is missing (similar: 'a.weight')");
  EXPECT_HAS(source->where("a.weight"), "model.safetensors: tensor 'a.weight'");
}

// Comparing the missing name with 100,000 others would take seconds.
TEST(WeightSource, SkipsSuggestionsForVeryManyTensors) {
  const TempDir dir;
  std::string header = R"({"a.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  for (int i = 0; i < 5000; ++i)
    header += fmt::format(R"(,"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", i);
  header += "}";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  put_file(dir / "model.safetensors", file + header);
  const auto source = WeightSource::open(dir.path());
  EXPECT_EQ(source->names().size(), 5001u);
  const std::string message = error_of(ErrorCode::bad_model, [&] { source->require("a.weigth"); });
  EXPECT_HAS(message, "tensor 'a.weigth' is missing: the weights do not match");
}

// Opening a named pipe would block until a writer opens it.
TEST(WeightSource, RejectsIrregularFiles) {
  const TempDir dir;
  const auto refused = [&] { return error_of(ErrorCode::bad_model, [&] { WeightSource::open(dir.path()); }); };
  ASSERT_EQ(::mkfifo((dir / "shard.safetensors").c_str(), 0600), 0);
  put_file(dir / "model.safetensors.index.json", R"({"weight_map":{"a":"shard.safetensors"}})");
  EXPECT_HAS(refused(), "shard.safetensors: is a named pipe, not a regular file");
  fs::remove(dir / "model.safetensors.index.json");
  ASSERT_EQ(::mkfifo((dir / "model.safetensors.index.json").c_str(), 0600), 0);
  EXPECT_HAS(refused(), "model.safetensors.index.json: is a named pipe, not a regular file");
  fs::create_directory(dir / "model.safetensors");
  EXPECT_HAS(refused(), "model.safetensors: is a directory, not a regular file");
}

TEST(WeightSource, ReadsMisalignedTensorsFromSeveralThreads) {
  const TempDir dir;
  // Two bytes of I8 misalign the floats, as in files of old writers.
  const std::string header =
      R"({"q":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"F32","shape":[2],"data_offsets":[2,10]}})";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  const float values[2] = {1.5f, -2.5f};
  file += header + "\x01\x02" + std::string(reinterpret_cast<const char*>(values), sizeof values);
  put_file(dir / "model.safetensors", file);
  const auto source = WeightSource::open(dir.path());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      EXPECT_EQ(source->get("w").as<float>()[1], -2.5f);
      EXPECT_EQ(source->get("q").as<int8_t>()[1], 2);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(source->get("w").data) % 4, 0u);
}

TEST(WeightSource, ReadsPartsOfContiguousAndStridedTensors) {
  const auto source = WeightSource::open_file(fs::path(BRIM_SOURCE_DIR) / "tests/data/io/state_dict.bin");
  for (const char* name : {"f32", "transposed", "slice"}) {
    const LoadedTensor whole = source->get(name);
    for (int64_t begin = 0; begin <= whole.elements(); ++begin)
      for (int64_t end = begin; end <= whole.elements(); ++end) {
        std::vector<float> part(static_cast<size_t>(end - begin));
        source->read(name, begin, end, part.data());
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.as<float>() + begin)) << name << begin << " " << end;
      }
  }
}

TEST(WeightSource, DetectsFilesThatChangeWhileOpen) {
  const TempDir dir;
  const fs::path file = dir / "model.safetensors";
  write_floats(file, {{"w", std::vector<float>(4096, 1.0f)}});
  const std::string bytes = get_file(file);
  const auto opened = [&] {
    put_file(file, bytes);
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
    auto source = WeightSource::open(dir.path());
    source->check_unchanged();
    return source;
  };
  const auto change = [](const WeightSource& source) {
    return error_of(ErrorCode::bad_model, [&] { source.check_unchanged(); });
  };
  auto source = opened();
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('x');
  EXPECT_HAS(change(*source), "model.safetensors: modified while it was being read");

  source = opened();
  put_file(dir / "next", bytes);
  fs::rename(dir / "next", file);
  EXPECT_EQ(source->get("w").as<float>()[4095], 1.0f);
  EXPECT_HAS(change(*source), "model.safetensors: replaced while it was being read");

  source = opened();
  fs::resize_file(file, 1024);
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { source->get("w"); }), "truncated to 1024 bytes");
  EXPECT_HAS(change(*source), "modified");

  source = opened();
  fs::remove(file);
  source->check_unchanged();
}

TEST(WeightSource, RejectsUnsupportedTypesAndRanks) {
  const TempDir dir;
  const std::string header =
      R"({"m":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},"r":{"dtype":"I8","shape":[1,1,1,1,1],"data_offsets":[1,2]}})";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  put_file(dir / "model.safetensors", file + header + "xx");
  const auto source = WeightSource::open(dir.path());
  EXPECT_EQ(source->describe("m")->dtype_text, "BOOL");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { source->find("m"); }), "tensor 'm': unsupported type BOOL");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { source->find("r"); }), "[1,1,1,1,1] has more than 4 dimensions");
}

TEST(WeightSource, ReadsShards) {
  const TempDir dir;
  write_floats(dir / "model-00001-of-00002.safetensors", {{"a", {1}}, {"b", {2}}});
  write_floats(dir / "model-00002-of-00002.safetensors", {{"c", {3}}});
  const fs::path index = dir / "model.safetensors.index.json";
  put_file(index, R"({"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors",
      "b":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}})");
  const auto source = WeightSource::open(dir.path());
  EXPECT_EQ(source->names().size(), 3u);
  EXPECT_EQ(source->files().size(), 2u);
  EXPECT_EQ(source->get("c").as<float>()[0], 3);
  EXPECT_HAS(source->where("c"), "model-00002-of-00002.safetensors");

  auto refused = [&](const std::string& text) {
    put_file(index, text);
    return error_of(ErrorCode::bad_model, [&] { WeightSource::open(dir.path()); });
  };
  EXPECT_HAS(refused(R"({"weight_map":{"a":"../secret.safetensors"}})"), "files in the same directory");
  EXPECT_HAS(refused(R"({"weight_map":{"a":"/etc/passwd"}})"), "files in the same directory");
  EXPECT_HAS(refused(R"({"weight_map":{"a":".."}})"), "files in the same directory");
  EXPECT_HAS(refused(R"({"weight_map":{"a":7}})"), "files in the same directory");
  EXPECT_HAS(refused(R"({"weight_map":{"a":"gone.safetensors"}})"),
             "the shard 'gone.safetensors' is missing (0 of 1 found)");
  EXPECT_HAS(
      refused(R"({"weight_map":{"a":"model-00001-of-00002.safetensors","z":"model-00003-of-00002.safetensors"}})"),
      "the shard 'model-00003-of-00002.safetensors' is missing (1 of 2 found); download it again");
  EXPECT_HAS(refused(R"({"weight_map":{"z":"model-00002-of-00002.safetensors"}})"), "tensor 'z' is missing from");
  EXPECT_HAS(refused(R"({"weight_map":[]})"), "weight_map");
  EXPECT_HAS(refused(R"([])"), "weight_map");
  EXPECT_HAS(refused("{"), "not valid JSON");
}

TEST(WeightSource, StripsPrefixesOfWrappers) {
  const TempDir dir;
  const auto names = [&](const std::vector<std::string>& stored) {
    std::vector<std::pair<std::string, std::vector<float>>> tensors;
    for (const std::string& name : stored) tensors.push_back({name, {static_cast<float>(tensors.size() + 1)}});
    write_floats(dir / "model.safetensors", tensors);
    return WeightSource::open(dir.path())->names();
  };
  using Names = std::vector<std::string>;
  for (const std::string prefix : {"module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module."})
    EXPECT_EQ(names({prefix + "bert.a", prefix + "classifier.weight"}), (Names{"bert.a", "classifier.weight"}));
  EXPECT_EQ(WeightSource::open(dir.path())->get("classifier.weight").as<float>()[0], 2);
  EXPECT_EQ(names({"model.bert.a", "classifier.weight"}), (Names{"classifier.weight", "model.bert.a"}));
  EXPECT_EQ(names({"module.", "module.a"}), (Names{"module.", "module.a"}));
  // ModernBERT's encoder without a head.
  const Names modern = {"model.embeddings.tok_embeddings.weight", "model.final_norm.weight"};
  EXPECT_EQ(names(modern), modern);
  EXPECT_EQ(names({"model." + modern[0], "model." + modern[1]}), modern);
}

TEST(WeightSource, ReportsMissingFiles) {
  const TempDir dir;
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { WeightSource::open(dir / "none"); }), "not a directory");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { WeightSource::open(dir.path()); }),
             "no weights found (model.safetensors");
  put_file(dir / "tf_model.h5", "");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { WeightSource::open(dir.path()); }), "has tf_model.h5 but no");
}

}  // namespace
}  // namespace brim::hub
