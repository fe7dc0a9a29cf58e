// SPDX-License-Identifier: Apache-2.0
// Background scoring jobs, over real sockets.
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "io/sha256.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class JobRoutesTest : public ServiceTest {
 protected:
  ServerOptions with_jobs() {
    ServerOptions o = loopback_options();
    o.state_dir = (temp_.path() / "state").string();
    o.models.push_back({"vader", "vader", "3", Scorer::open({.model = "vader"})});
    return o;
  }
  RawAnswer send_file(const std::string& query, const std::string& file) { return post("/jobs?" + query, file); }
  Json wait_for(const std::string& id, const std::string& status = "completed") {
    Json job;
    wait_until([&] {
      job = Json::parse(get("/jobs/" + id).body);
      return job.value("status", "") == status || job.value("status", "") == "failed";
    });
    EXPECT_EQ(job["status"], status) << job;
    return job;
  }
  size_t folders() {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(temp_.path() / "state" / "jobs")) ++n;
    return n;
  }
};

TEST_F(JobRoutesTest, DashboardOmitsRowsFromJobErrors) {
  ServerOptions o = with_jobs();
  o.tick_seconds = 0.02;
  start(std::move(o));
  const std::string id = Json::parse(send_file("format=csv", "secret words,others\na,b\n").body)["id"];
  EXPECT_NE(wait_for(id, "failed")["errors"]["data"][0]["message"].get<std::string>().find("secret"),
            std::string::npos);
  const auto seen = [&] { return get("/snapshot").body; };
  wait_until([&] { return seen().find(id) != std::string::npos && seen().find("\"failed\"") != std::string::npos; });
  EXPECT_EQ(seen().find("secret"), std::string::npos) << seen();
}

TEST_F(JobRoutesTest, ScoresFileInBackground) {
  start(with_jobs());
  const std::string file = "id,text\n1,I love it\n2,I hate it\n3,\n";
  const RawAnswer made = send_file("text_column=text", file);
  ASSERT_EQ(made.status, 201) << made.body;
  const std::string id = Json::parse(made.body)["id"];
  EXPECT_EQ(made.fields.at("location"), "/jobs/" + id);
  const Json job = wait_for(id);
  EXPECT_EQ(job["request_counts"]["total"], 3);
  EXPECT_EQ(job["model"], "vader");
  RawAnswer output = get("/jobs/" + id + "/output");
  ASSERT_EQ(output.status, 200);
  EXPECT_EQ(output.fields["content-type"], "text/csv; charset=utf-8");
  EXPECT_NE(output.body.find("1,I love it,positive,"), std::string::npos) << output.body;
  EXPECT_NE(output.body.find("2,I hate it,negative,"), std::string::npos) << output.body;
  const auto part = [&](const std::string& range) {
    return get("/jobs/" + id + "/output", "Range: " + range + "\r\n");
  };
  RawAnswer some = part("bytes=3-6");
  EXPECT_EQ(some.status, 206);
  EXPECT_EQ(some.body, output.body.substr(3, 4));
  EXPECT_EQ(some.fields["content-range"], "bytes 3-6/" + std::to_string(output.body.size()));
  EXPECT_EQ(part("bytes=-5").body, output.body.substr(output.body.size() - 5));
  EXPECT_EQ(part("bytes=9-").body, output.body.substr(9));
  EXPECT_EQ(part("bytes=9-8").status, 200);  // invalid range: ignored
  EXPECT_EQ(part("bytes=1-2,4-5").body, output.body);
  EXPECT_EQ(part("bytes=99999-").status, 416);
  client_->send("HEAD /jobs/" + id + "/output HTTP/1.1\r\nHost: localhost\r\n\r\n");
  RawAnswer head = client_->read(false);
  EXPECT_EQ(head.fields["content-length"], std::to_string(output.body.size()));
  EXPECT_EQ(Json::parse(get("/jobs").body)["data"][0]["id"], id);
  EXPECT_EQ(del("/jobs/" + id).status, 200);
  EXPECT_EQ(get("/jobs/" + id).status, 404);
  EXPECT_EQ(get("/jobs/" + id + "/output").status, 404);
  EXPECT_EQ(del("/jobs/" + id).status, 404);
  EXPECT_EQ(folders(), 0u);
  for (const char* status : {"completed", "failed"})  // includes deleted jobs
    EXPECT_NE(get("/metrics")
                  .body.find(fmt::format("brim_job_rows_total{{status=\"{}\"}} {}\n", status,
                                         job["request_counts"][status].get<int64_t>())),
              std::string::npos);
}

TEST_F(JobRoutesTest, ListsJobsByPage) {
  start(with_jobs());
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(Json::parse(send_file("format=txt", "good\n").body)["id"]);
  Json page = Json::parse(get("/jobs?limit=2").body);
  EXPECT_TRUE(page["has_more"]);
  ASSERT_EQ(page["data"].size(), 2u);
  EXPECT_EQ(page["data"][0]["id"], ids[2]);
  page = Json::parse(get("/jobs?limit=2&after=" + ids[1]).body);
  EXPECT_FALSE(page["has_more"]);
  ASSERT_EQ(page["data"].size(), 1u);
  EXPECT_EQ(page["data"][0]["id"], ids[0]);
  EXPECT_EQ(get("/jobs?after=none").status, 404);
  EXPECT_EQ(get("/jobs?limit=0").status, 422);
  EXPECT_EQ(send_file("format=none", "good\n").status, 422);
  client_ = std::make_unique<RawClient>(server_->port());  // the body was not read
  // Both methods of a path must be one series; Prometheus rejects duplicates.
  std::set<std::string> series;
  std::istringstream metrics(get("/metrics").body);
  for (std::string line; std::getline(metrics, line);)
    if (!line.starts_with('#')) {
      EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
  EXPECT_TRUE(series.contains("brim_requests_total{route=\"/jobs\",model=\"\",code=\"422\"}"));
  for (const char* limit : {"0", "1001", "x", "-1"}) EXPECT_EQ(get(std::string("/jobs?limit=") + limit).status, 422);
}

TEST_F(JobRoutesTest, RemovesFilesOfExpiredJobs) {
  ServerOptions o = with_jobs();
  o.keep_jobs_seconds = 0;
  start(std::move(o));
  const std::string id = Json::parse(send_file("format=txt", "good\n").body)["id"];
  wait_until([&] { return get("/jobs/" + id).status == 404 && folders() == 0; });
}

TEST_F(JobRoutesTest, TransfersLargeFiles) {
  start(with_jobs());
  std::string file;
  for (int i = 0; i < 60'000; ++i) file += "good news of day " + std::to_string(i) + "\n";
  std::string chunked;
  for (size_t at = 0; at < file.size(); at += 100'000) {
    const std::string piece = file.substr(at, 100'000);
    char size[16];
    std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    chunked += size + piece + "\r\n";
  }
  client_->send(
      "POST /jobs?format=txt&output_format=jsonl HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
      "Transfer-Encoding: chunked\r\n\r\n" +
      chunked + "0\r\n\r\n");
  const RawAnswer made = client_->read();
  ASSERT_EQ(made.status, 201) << made.body;
  const std::string id = Json::parse(made.body)["id"];
  EXPECT_EQ(wait_for(id)["request_counts"]["completed"], 60'000);
  const RawAnswer output = get("/jobs/" + id + "/output");
  EXPECT_EQ(std::count(output.body.begin(), output.body.end(), '\n'), 60'000);
}

TEST_F(JobRoutesTest, RejectsInvalidJobs) {
  ServerOptions o = with_jobs();
  const auto root = temp_.path() / "root";
  std::filesystem::create_directories(root / "in");
  std::ofstream(root / "in" / "a.txt") << "good\n";
  std::ofstream(temp_.path() / "secret.txt") << "bad\n";
  std::filesystem::create_symlink(temp_.path() / "secret.txt", root / "out.txt");
  o.jobs_root = root.string();
  start(std::move(o));
  EXPECT_EQ(send_file("format=xml", "a").status, 422);
  client_ = std::make_unique<RawClient>(server_->port());  // a rejected body closes the connection
  EXPECT_EQ(send_file("model=none", "a").status, 404);
  client_ = std::make_unique<RawClient>(server_->port());
  EXPECT_EQ(send_file("format=txt", "").status, 422);
  EXPECT_EQ(send_file("format=txt&path=out.txt", "").status, 404);
  EXPECT_EQ(send_file("format=txt&path=../secret.txt", "").status, 404);
  EXPECT_EQ(send_file("format=txt&path=in", "").status, 404);
  const RawAnswer made = send_file("format=txt&path=/in/a.txt", "");
  ASSERT_EQ(made.status, 201) << made.body;
  wait_for(Json::parse(made.body)["id"]);
  EXPECT_EQ(get("/jobs/none/output").status, 404);
  RawClient leaving(server_->port());  // within its file
  leaving.send("POST /jobs?format=txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n" +
               std::string(3'000'000, 'x'));
  leaving.close();
  wait_until([&] { return folders() == 1; });
  EXPECT_EQ(Json::parse(get("/jobs").body)["data"].size(), 1u);
}

TEST_F(JobRoutesTest, ReportsIgnoredQueryKeys) {
  start(with_jobs());
  RawAnswer made = send_file("format=txt&all_score=true&model=vader", "good\n");
  ASSERT_EQ(made.status, 201) << made.body;
  EXPECT_EQ(made.fields["x-brim-ignored"], "all_score");
  EXPECT_FALSE(send_file("format=txt&all_scores=true", "good\n").fields.contains("x-brim-ignored"));
  EXPECT_EQ(get("/jobs?limit=1&offset=2").fields["x-brim-ignored"], "offset");
}

TEST_F(JobRoutesTest, ReadsFilesBelowJobsRoot) {
  ServerOptions o = with_jobs();
  const std::string file = std::filesystem::canonical(temp_.path()) / "a.txt";
  std::ofstream(file) << "good\n";
  o.jobs_root = "/";
  start(std::move(o));
  for (const std::string& path : {file, file.substr(1)}) {
    const RawAnswer made = send_file("format=txt&path=" + path, "");
    ASSERT_EQ(made.status, 201) << made.body;
    wait_for(Json::parse(made.body)["id"]);
  }
  EXPECT_EQ(send_file("format=txt&path=/none.txt", "").status, 404);
}

TEST_F(JobRoutesTest, RejectsUploadsBeyondQuota) {
  ServerOptions o = with_jobs();
  o.job_limits = {.jobs = 2, .bytes = 1000};
  start(std::move(o));
  const auto refused = [&](const RawAnswer& answer, const char* setting) {
    EXPECT_EQ(answer.status, 507) << answer.body;
    EXPECT_NE(answer.body.find(setting), std::string::npos) << answer.body;
    client_ = std::make_unique<RawClient>(server_->port());
  };
  const std::string id = Json::parse(send_file("format=txt", std::string(600, 'a')).body)["id"];
  wait_for(id);
  const std::string head = "POST /jobs?format=txt HTTP/1.1\r\nHost: localhost\r\n", half(300, 'a');
  client_->send(head + "Content-Length: 401\r\n\r\n");  // without its body
  refused(client_->read(), "`max_jobs_bytes`");
  client_->send(head + "Transfer-Encoding: chunked\r\n\r\n12c\r\n" + half + "\r\n12c\r\n" + half + "\r\n0\r\n\r\n");
  refused(client_->read(), "`max_jobs_bytes`");
  wait_until([&] { return folders() == 1; });
  const RawAnswer fits = send_file("format=txt", std::string(400, 'a'));
  ASSERT_EQ(fits.status, 201) << "rejected uploads no longer count: " << fits.body;
  wait_for(Json::parse(fits.body)["id"]);
  refused(send_file("format=txt", "a"), "`max_jobs`");
  EXPECT_EQ(del("/jobs/" + id).status, 200);
  EXPECT_EQ(send_file("format=txt", std::string(600, 'a')).status, 201);
}

TEST_F(JobRoutesTest, RequiresScopeAndStateDirectory) {
  ServerOptions o = with_jobs();
  o.keys = ApiKeys::parse("web:score:" + io::sha256_hex("a") + "\nnight:jobs:" + io::sha256_hex("b") + "\n", "keys");
  start(std::move(o));
  EXPECT_EQ(get("/jobs").status, 401);
  EXPECT_EQ(get("/jobs", "Authorization: Bearer a\r\n").status, 403);
  EXPECT_EQ(get("/jobs", "Authorization: Bearer b\r\n").status, 200);
  ServerOptions other = with_jobs();
  EXPECT_NO_THROW(Server{other}) << "without jobs, the server starts";
  other = with_jobs();
  other.state_needed = true;
  EXPECT_THROW(Server{other}, Error);
  other = with_jobs();
  other.state_dir.clear();
  start(std::move(other));
  EXPECT_EQ(get("/jobs").status, 404);
}

TEST_F(JobRoutesTest, ResumesJobsAfterRestart) {
  start(with_jobs());
  std::string file;
  for (int i = 0; i < 300'000; ++i) file += "so good " + std::to_string(i) + "\n";
  const std::string id = Json::parse(send_file("format=txt", file).body)["id"];
  wait_until([&] { return get("/jobs/" + id + "/output").status != 404; });
  server_.reset();
  start(with_jobs());
  EXPECT_EQ(wait_for(id)["request_counts"]["total"], 300'000);
  const std::string output = get("/jobs/" + id + "/output").body;
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 300'001) << "and a header";
  std::string before;
  for (size_t at = output.find('\n') + 1, row = 0; at < output.size(); at = output.find('\n', at) + 1, ++row)
    ASSERT_EQ(output.compare(at, 8 + std::to_string(row).size() + 1, "so good " + std::to_string(row) + ","), 0) << row;
}

TEST_F(JobRoutesTest, CancelsJobs) {
  ServerOptions o = with_jobs();
  o.models[0].scorer = Scorer::open({.model = "vader"});
  start(std::move(o));
  std::string file;
  for (int i = 0; i < 400'000; ++i) file += "so bad\n";
  const std::string id = Json::parse(send_file("format=txt", file).body)["id"];
  const std::string next = Json::parse(send_file("format=txt", "good\n").body)["id"];
  EXPECT_EQ(del("/jobs/" + id).status, 200);
  const Json job = Json::parse(get("/jobs/" + id).body);
  if (job["status"] != "completed") wait_for(id, "cancelled");
  wait_for(next);
}

}  // namespace
}  // namespace brim::serve
