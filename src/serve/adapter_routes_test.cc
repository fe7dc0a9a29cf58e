// SPDX-License-Identifier: Apache-2.0
// Adapters that an administrator loads and unloads while the server runs.
#include "base/test_files.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class AdapterRoutesTest : public ServiceTest {
 protected:
  AdapterRoutesTest() {
    model::put_golden_model(temp_.path() / "base", "roberta_sequence");
    const auto golden = model::golden_models().parent_path() / "adapters/roberta";
    std::filesystem::create_directories(temp_.path() / "root");
    for (const char* name : {"root/a", "root/b", "elsewhere"})
      std::filesystem::copy(golden, temp_.path() / name, std::filesystem::copy_options::recursive);
    nlohmann::json config = nlohmann::json::parse(get_file(golden / "adapter_config.json"));
    config["lora_alpha"] = 80;
    put_file(temp_.path() / "root/b/adapter_config.json", config.dump());
  }
  ScorerOptions options_of(const std::string& adapter = "") {
    ScorerOptions o = scorer_options(temp_.path() / "base");
    o.adapter = adapter;
    o.share_base = true;
    return o;
  }
  ServerOptions adapting() {
    ServerOptions o = loopback_options();
    o.io_threads = 2;
    o.max_queue_ms = 60'000;
    o.models.push_back({"cls", "base-id", "1", Scorer::open(options_of())});
    o.adapters_root = (temp_.path() / "root").string();
    o.add_adapter = [this](const std::string& name, const std::string& dir) {
      adapters_[name] = dir;
      ServedModel model{name, dir, "1", nullptr};
      model.base = "cls";
      return model;
    };
    o.reopen = [this](const std::string& name, const Scorer* beside, bool stays) {
      ServedModel model{name, adapters_.at(name), "1", nullptr};
      model.base = "cls";
      model.scorer = beside != nullptr ? open_beside(*beside, options_of(adapters_.at(name)), stays)
                                       : Scorer::open(options_of(adapters_.at(name)));
      return model;
    };
    o.revision_of = [](const std::string&) { return "1"; };
    return o;
  }
  std::string predict(const std::string& model) {
    const RawAnswer answer = post("/predict", R"({"inputs":"w6 w7 w8","model":")" + model + "\"}");
    return answer.status == 200 ? answer.body : std::to_string(answer.status);
  }
  RawAnswer load(const std::string& name, const std::string& path) {
    return post("/admin/adapters/" + name + "/load" + (path.empty() ? "" : "?path=" + path), "");
  }

  std::map<std::string, std::string> adapters_;
};

TEST_F(AdapterRoutesTest, LoadsServesUnloadsAndLoadsAgain) {
  start(adapting());
  const std::string base = predict("cls");
  EXPECT_EQ(predict("new"), "404");
  const RawAnswer loaded = load("new", "a");
  EXPECT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_EQ(Json::parse(loaded.body), Json::parse(R"({"model":"new","state":"resident"})"));
  EXPECT_EQ(load("other", "b").status, 200);
  const std::string own = predict("new"), other = predict("other");
  EXPECT_EQ(own.substr(0, 1), "[") << own;
  EXPECT_NE(own, base);
  EXPECT_NE(own, other);
  EXPECT_EQ(predict("cls"), base);

  const Json models = Json::parse(get("/v1/models").body)["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[1]["parent"], "cls");
  EXPECT_EQ(models[2]["id"], "other");
  Json shown;
  wait_until([&] {
    const Json snapshot = Json::parse(get("/snapshot").body);
    if (snapshot.is_object()) shown = snapshot["models"];
    return shown.size() == 3;
  });
  EXPECT_TRUE(shown[0]["base"].is_null());
  EXPECT_EQ(shown[1]["base"], "cls");
  const std::string metrics = get("/metrics").body;
  for (const char* name : {"cls", "new", "other"})
    EXPECT_NE(metrics.find(std::string("brim_texts_total{model=\"") + name + "\",class=\"interactive\""),
              std::string::npos)
        << name;

  EXPECT_EQ(post("/admin/adapters/new/unload", "").status, 200);
  EXPECT_EQ(predict("new"), "503");
  EXPECT_EQ(predict("other"), other);
  EXPECT_EQ(load("new", "").status, 200) << "its directory is known";
  EXPECT_EQ(predict("new"), own);
  EXPECT_EQ(load("new", "a").status, 200);
  EXPECT_EQ(get("/health/live").status, 200);
}

TEST_F(AdapterRoutesTest, RefusesOtherDirectoriesAndUsedNames) {
  std::filesystem::create_directory_symlink(temp_.path() / "elsewhere", temp_.path() / "root/link");
  std::filesystem::create_directories(temp_.path() / "root/partly");
  std::filesystem::copy(temp_.path() / "root/a/adapter_config.json", temp_.path() / "root/partly");
  std::filesystem::create_symlink(temp_.path() / "elsewhere/adapter_model.safetensors",
                                  temp_.path() / "root/partly/adapter_model.safetensors");
  start(adapting());
  for (const char* path : {"../elsewhere", "link", "partly", "none", "", "a/..", "..", "%2E%2E/elsewhere"})
    EXPECT_EQ(load("x", path).status, 404) << path;
  EXPECT_EQ(load("x", (temp_.path() / "elsewhere").string()).status, 404);
  EXPECT_EQ(load("cls", "a").status, 409) << "a model";
  EXPECT_EQ(load("base-id", "a").status, 409) << "the id of a model";
  EXPECT_EQ(load("a%20b", "a").status, 422);
  EXPECT_EQ(post("/admin/adapters/cls/unload", "").status, 409);
  EXPECT_EQ(post("/admin/adapters/x/drop", "").status, 404);
  EXPECT_EQ(Json::parse(get("/v1/models").body)["data"].size(), 1u);
  EXPECT_EQ(load("x", "a").status, 200);
  const RawAnswer taken = load("x", "b");
  EXPECT_EQ(taken.status, 409);
  EXPECT_NE(taken.body.find("x is the adapter in "), std::string::npos) << taken.body;
}

TEST_F(AdapterRoutesTest, ReusesNamesThatServeNothing) {
  std::filesystem::copy(temp_.path() / "root/a", temp_.path() / "root/broken");
  nlohmann::json config = nlohmann::json::parse(get_file(temp_.path() / "root/broken/adapter_config.json"));
  config["use_dora"] = true;
  put_file(temp_.path() / "root/broken/adapter_config.json", config.dump());
  start(adapting());
  const std::string dir_a = (temp_.path() / "root/a").string(), dir_b = (temp_.path() / "root/b").string();
  EXPECT_EQ(load("x", "broken").status, 409);
  EXPECT_EQ(load("x", "none").status, 404);
  const RawAnswer first = load("x", "a");
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(get("/health").body.find("model x: "), std::string::npos) << "the fault is of the former directory";
  const std::string a = predict("x");
  EXPECT_EQ(a.substr(0, 1), "[") << a;
  EXPECT_EQ(predict(dir_a), a) << "found by its id";
  const RawAnswer used = load("x", "b");
  EXPECT_EQ(used.status, 409);
  EXPECT_NE(used.body.find("unload it first"), std::string::npos) << used.body;
  EXPECT_EQ(predict("x"), a);
  EXPECT_EQ(post("/admin/adapters/x/unload", "").status, 200);
  EXPECT_EQ(load("x", "b").status, 200);
  const std::string b = predict("x");
  EXPECT_EQ(b.substr(0, 1), "[") << b;
  EXPECT_NE(b, a);
  EXPECT_EQ(predict(dir_b), b);
  EXPECT_EQ(predict(dir_a), "404");
  EXPECT_EQ(post("/admin/adapters/x/unload", "").status, 200);
  EXPECT_EQ(load("x", "").status, 200);
  EXPECT_EQ(predict("x"), b) << "the last directory is known";
  EXPECT_EQ(Json::parse(get("/v1/models").body)["data"].size(), 2u);
}

TEST_F(AdapterRoutesTest, FindsNamesBeforeIds) {
  ServerOptions o = adapting();
  o.models.push_back({"base-id", "adapted-id", "1", Scorer::open(options_of((temp_.path() / "root/a").string()))});
  start(std::move(o));
  EXPECT_EQ(predict("base-id").substr(0, 1), "[");
  EXPECT_EQ(predict("base-id"), predict("adapted-id"));
  EXPECT_NE(predict("base-id"), predict("cls"));
}

TEST_F(AdapterRoutesTest, ReportsAdaptersThatCannotBeLoaded) {
  nlohmann::json config = nlohmann::json::parse(get_file(temp_.path() / "root/b/adapter_config.json"));
  config["use_dora"] = true;
  put_file(temp_.path() / "root/b/adapter_config.json", config.dump());
  start(adapting());
  const RawAnswer refused = load("bad", "b");
  EXPECT_EQ(refused.status, 409) << refused.body;
  EXPECT_NE(refused.body.find("use_dora"), std::string::npos) << refused.body;
  EXPECT_EQ(predict("bad"), "503");
  EXPECT_EQ(predict("cls").substr(0, 1), "[");
  const auto warns = [&] { return get("/health").body.find("model bad: ") != std::string::npos; };
  EXPECT_TRUE(warns());
  EXPECT_EQ(post("/admin/reload", "").status, 424) << "it is tried again";
  EXPECT_EQ(post("/admin/adapters/bad/unload", "").status, 200);
  EXPECT_FALSE(warns()) << get("/health").body;
  const RawAnswer reloaded = post("/admin/reload", "");
  EXPECT_EQ(reloaded.status, 200) << reloaded.body;
  EXPECT_EQ(predict("bad"), "503");
}

TEST_F(AdapterRoutesTest, RequiresTheRootAndTheScope) {
  ServerOptions o = adapting();
  o.add_adapter = {};
  o.keys.add("secret", "user");
  start(std::move(o));
  EXPECT_EQ(load("x", "a").status, 401);
  const RawAnswer answer = post("/admin/adapters/x/load?path=a", "", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(answer.status, 403) << "a key without the scope";
}

TEST_F(AdapterRoutesTest, IsDisabledWithoutARoot) {
  ServerOptions o = adapting();
  o.add_adapter = {};
  start(std::move(o));
  const RawAnswer answer = load("x", "a");
  EXPECT_EQ(answer.status, 403);
  EXPECT_NE(answer.body.find("adapters_root"), std::string::npos) << answer.body;
}

}  // namespace
}  // namespace brim::serve
