// SPDX-License-Identifier: Apache-2.0
#include "report/llm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "net/http_client.h"
#include "report/llm_stand_in.h"

namespace brim::report {
namespace {

LlmOptions options_for(const std::string& url, const std::string& api = "auto") {
  LlmOptions o;
  o.url = url;
  o.model = "mistral";
  o.api = api;
  o.requests = 3;
  o.max_tokens = 8;
  o.connect_s = 5;
  o.first_token_s = 20;
  o.total_s = 20;
  return o;
}

// Code and message of the error, or "none".
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return fmt::format("{}: {}", error_name(e.code()), e.what());
  }
  return "none";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(LlmStream, OllamaCountsAndTimesTokens) {
  int64_t now = 0;
  LlmStream s(LlmApi::ollama, 100, [&] { return now += 1000; });
  EXPECT_TRUE(s.feed("{\"response\":\"a\",\"done\":false}\n{\"respo"));
  EXPECT_EQ(s.pieces(), 1);
  EXPECT_TRUE(s.feed("nse\":\"b\",\"done\":false}\n\n"));
  EXPECT_TRUE(s.feed(
      "{\"response\":\"\",\"done\":true,\"eval_count\":9,\"eval_duration\":3000000000,\"load_duration\":500000000}"));
  s.end();
  EXPECT_TRUE(s.done());
  EXPECT_EQ(s.tokens(), 9);
  EXPECT_EQ(s.first_ns(), 1000);
  EXPECT_EQ(s.last_ns(), 2000);
  EXPECT_DOUBLE_EQ(*s.server_tokens_per_second(), 3.0);
  EXPECT_DOUBLE_EQ(*s.server_load_seconds(), 0.5);
}

TEST(LlmStream, OpenAiSkipsCommentsAndRoles) {
  LlmStream s(LlmApi::openai, 100, [] { return int64_t{1}; });
  EXPECT_TRUE(
      s.feed(": hello\nevent: message\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n"));
  EXPECT_EQ(s.pieces(), 0) << "a role is not a token";
  EXPECT_TRUE(s.feed("data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\r\n"));
  EXPECT_TRUE(s.feed("data: {\"choices\":[{\"delta\":{\"content\":\"yes\"},\"finish_reason\":\"stop\"}]}\n"));
  EXPECT_FALSE(s.done());
  EXPECT_TRUE(s.feed("data: [DONE]\n"));
  EXPECT_TRUE(s.done());
  EXPECT_EQ(s.tokens(), 2);
  EXPECT_FALSE(s.counted_by_server());
}

TEST(LlmStream, InvalidBytesGiveErrorMessages) {
  const auto problem = [](LlmApi api, const std::string& bytes) {
    LlmStream s(api, 10, [] { return int64_t{1}; });
    s.feed(bytes);
    s.end();
    return s.problem();
  };
  EXPECT_TRUE(has(problem(LlmApi::ollama, "<html>\n"), "not JSON"));
  EXPECT_TRUE(has(problem(LlmApi::ollama, "[1,2]\n"), "not JSON"));
  EXPECT_TRUE(has(problem(LlmApi::ollama, "{\"hello\":1}\n"), "not in ollama format"));
  EXPECT_TRUE(has(problem(LlmApi::openai, "data: {\"response\":\"a\"}\n"), "not in openai format"));
  EXPECT_TRUE(has(problem(LlmApi::ollama, "{\"error\":\"out of memory\"}\n"), "out of memory"));
  EXPECT_TRUE(has(problem(LlmApi::openai, "{\"error\":{\"message\":\"too long\"}}"), "too long"));
  EXPECT_TRUE(has(problem(LlmApi::ollama, std::string(3 << 20, 'x')), "exceeds 1 MiB"));
  EXPECT_EQ(problem(LlmApi::openai, "data: {\"choices\":[7,{\"delta\":3},{\"delta\":{\"content\":null}}]}\n"), "");
}

TEST(LlmStream, AcceptsAnyBytesInAnyPieces) {
  std::mt19937 random(7);
  const std::string good =
      "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n{\"response\":\"b\",\"done\":false}\ndata: [DONE]\n";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (size_t k = 0; k < random() % 6; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    LlmStream s(round % 2 ? LlmApi::ollama : LlmApi::openai, 1 + random() % 4, [] { return int64_t{5}; });
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = std::min<size_t>(1 + random() % 30, bytes.size() - at);
      if (!s.feed(std::string_view(bytes).substr(at, n))) break;
      at += n;
    }
    s.end();
    EXPECT_LE(s.pieces(), 4);
  }
}

TEST(Llm, DetectsAndMeasuresBothApis) {
  for (const bool ollama : {true, false}) {
    LlmStandIn server([&](const auto& c, const std::string& path, const std::string& body) {
      if (!ollama && path == "/api/version") return c.answer(404, "not here");
      good_llm(c, path, body);
    });
    const LlmClient client(options_for(server.url() + (ollama ? "/" : "/v1/")));
    EXPECT_EQ(client.api(), ollama ? LlmApi::ollama : LlmApi::openai);
    const LlmProfile p = profile_llm(client, llm_prompts({"a text"}, 3));
    EXPECT_EQ(p.alone.calls, 3);
    EXPECT_EQ(p.alone.failed, 0);
    EXPECT_EQ(p.alone.tokens, 3 * (ollama ? 6 : 7));
    EXPECT_TRUE(p.alone.counted_by_server);
    EXPECT_EQ(p.alone.first_token_s.count, 3);
    EXPECT_GT(p.alone.overall_tokens_per_second, 0);
    EXPECT_EQ(p.server_load_s.has_value(), ollama);
    if (ollama) {
      EXPECT_NEAR(p.alone.tokens_per_second.p50, 50, 1e-9);
    }
  }
}

TEST(Llm, ReportsThatNothingResponds) {
  std::string url;
  {
    LlmStandIn server(good_llm);
    url = server.url();
  }  // its port is closed now
  const std::string error = error_of([&] { LlmClient client(options_for(url)); });
  EXPECT_TRUE(has(error, "usage") && has(error, "no server responds") && has(error, url)) << error;
  EXPECT_TRUE(has(error_of([&] { LlmClient client(options_for("file:///etc/passwd")); }), "no server responds"));
  ::setenv("OLLAMA_HOST", url.c_str(), 1);
  EXPECT_TRUE(has(error_of([&] { LlmClient client(options_for("")); }), "`llm_url`"));
  ::unsetenv("OLLAMA_HOST");
  EXPECT_TRUE(has(error_of([&] { LlmClient client(options_for(url, "gopher")); }), "`llm_api=gopher`"));
}

TEST(Llm, UsesTheDefaultAddressAndTheOnlyModel) {
  std::string models = R"([{"name":"mistral"}])";
  const LlmStandIn server([&](const LlmStandIn::Connection& c, const std::string& path, const std::string& body) {
    if (path == "/api/tags") return c.answer(200, R"({"models":)" + models + "}");
    good_llm(c, path, body);
  });
  ::setenv("OLLAMA_HOST", server.url().substr(std::string("http://").size()).c_str(), 1);
  const LlmClient client((LlmOptions()));
  EXPECT_EQ(client.options().model, "mistral");
  EXPECT_EQ(client.base(), server.url());
  EXPECT_EQ(client.generate("hello").tokens, 6);
  LlmOptions openai;
  openai.api = "openai";
  EXPECT_EQ(LlmClient(openai).options().model, "mistral");
  const auto refused = [] { return error_of([] { LlmClient unused((LlmOptions())); }); };
  models = R"([{"name":"a"},{"name":"b"}])";
  EXPECT_TRUE(has(refused(), "`llm_model` is required: " + server.url() + " has 2 models (a, b)")) << refused();
  models = "[]";
  EXPECT_TRUE(has(refused(), "usage: `llm_model` is required: " + server.url() + " lists no models")) << refused();
  for (const auto& [host, url] :
       {std::pair("localhost", "http://localhost:11434"), std::pair("10.0.0.1:99", "http://10.0.0.1:99"),
        std::pair("https://gpu:1", "https://gpu:1")}) {
    ::setenv("OLLAMA_HOST", host, 1);
    EXPECT_EQ(default_llm_url(), url);
  }
  ::unsetenv("OLLAMA_HOST");
  EXPECT_EQ(default_llm_url(), "http://127.0.0.1:11434");
}

TEST(Llm, RejectsAnUnknownApi) {
  LlmStandIn server([](const auto& c, const std::string&, const std::string&) { c.answer(200, "<html>hello</html>"); });
  EXPECT_TRUE(has(error_of([&] { LlmClient client(options_for(server.url())); }), "neither"));
}

TEST(Llm, UnknownModelIsABadModel) {
  LlmStandIn server(good_llm);
  LlmOptions o = options_for(server.url());
  o.model = "nobody";
  const LlmClient client(o);
  const std::string error = error_of([&] { client.generate("x"); });
  EXPECT_TRUE(has(error, "bad_model") || has(error, "bad model")) << error;
  EXPECT_TRUE(has(error, "model 'nobody' not found")) << error;
}

// Runs a request against a faulty stream and returns the error message.
std::string generate_with(const LlmStandIn::Handler& stream, const std::function<void(LlmOptions&)>& change = nullptr,
                          const std::string& api = "ollama") {
  LlmStandIn server([&](const auto& c, const std::string& path, const std::string& body) {
    if (path == "/api/version" || path == "/v1/models") return good_llm(c, path, body);
    stream(c, path, body);
  });
  LlmOptions o = options_for(server.url(), api);
  if (change) change(o);
  return error_of([&] {
    const LlmCall call = LlmClient(o).generate("x");
    EXPECT_TRUE(call.cut);
  });
}

TEST(Llm, ReportsServerErrors) {
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) {
                    c.answer(500, R"({"error":"CUDA out of memory"})");
                  }),
                  "status 500: CUDA out of memory"));
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&,
                                   const auto&) { c.answer(429, R"({"error":{"message":"slow down"}})"); },
                                nullptr, "openai"),
                  "status 429: slow down"));
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) { c.answer(200, "what?"); }), "not JSON"));
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) { c.answer(200, ""); }), "no token"));
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) { c.send("this is no HTTP\r\n\r\n"); }),
                  "was interrupted"));
}

TEST(Llm, ReportsBrokenStreams) {
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) {
                    c.begin_stream();
                    c.chunk("{\"response\":\"a\",\"done\":false}\n");
                    c.send("4\r\nab");  // the connection ends in the middle of a chunk
                  }),
                  "was interrupted after 1 tokens"));
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) {
                    c.begin_stream();
                    c.chunk("{\"response\":\"a\",\"done\":false}\n");
                    c.end_stream();
                  }),
                  "without an end marker"));
}

TEST(Llm, SilentStreamsTimeOut) {
  const std::string error = generate_with(
      [](const auto& c, const auto&, const auto&) {
        c.begin_stream();
        c.chunk("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n");  // bytes, but no token
        c.wait_until_over();
      },
      [](LlmOptions& o) { o.first_token_s = 0.2; }, "openai");
  EXPECT_TRUE(has(error, "no token within 0.2 s")) << error;
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) { c.wait_until_over(); },
                                [](LlmOptions& o) { o.total_s = 0.3; }),
                  "did not end within 0.3 s"));
}

TEST(Llm, StreamThatStallsIsBroken) {
  const std::string error = generate_with(
      [](const auto& c, const auto&, const auto&) {
        c.begin_stream();
        c.chunk("{\"response\":\"a\",\"done\":false}\n");
        c.wait_until_over();
      },
      [](LlmOptions& o) { o.first_token_s = 0.3; });
  EXPECT_TRUE(has(error, "was interrupted after 1 tokens (no data for 0.3 s)")) << error;
}

TEST(Llm, EndlessStreamsAreCut) {
  // As fast as possible, beyond any limit: cut by count.
  EXPECT_EQ(generate_with([](const auto& c, const auto&, const auto&) {
              c.begin_stream();
              while (c.chunk("{\"response\":\"a\",\"done\":false}\n")) {
              }
            }),
            "none");
  // Slow and endless: cut by time, received tokens count.
  EXPECT_EQ(generate_with(
                [](const auto& c, const auto&, const auto&) {
                  c.begin_stream();
                  c.chunk("{\"response\":\"a\",\"done\":false}\n{\"response\":\"b\",\"done\":false}\n");
                  c.wait_until_over();
                },
                [](LlmOptions& o) { o.total_s = 0.4; }),
            "none");
  // One endless line.
  EXPECT_TRUE(has(generate_with([](const auto& c, const auto&, const auto&) {
                    c.begin_stream();
                    while (c.chunk(std::string(65536, 'x'))) {
                    }
                  }),
                  "exceeds 1 MiB"));
}

TEST(Llm, CountsFailuresAndThrowsIfAllFail) {
  std::atomic<int> calls{0};
  LlmStandIn server([&](const auto& c, const std::string& path, const std::string& body) {
    if (path == "/api/generate" && calls++ % 2 == 1) return c.answer(500, R"({"error":"busy"})");
    good_llm(c, path, body);
  });
  const LlmClient client(options_for(server.url()));
  const LlmRun run = measure_llm(client, {"x"}, 4);
  EXPECT_EQ(run.calls, 2);
  EXPECT_EQ(run.failed, 2);
  EXPECT_TRUE(has(run.last_failure, "busy"));
}

TEST(Llm, RunsAreBoundedAndReportProgress) {
  LlmStandIn server([&](const auto& c, const std::string& path, const std::string& body) {
    if (path == "/api/generate") std::this_thread::sleep_for(std::chrono::milliseconds(500));
    good_llm(c, path, body);
  });
  LlmOptions options = options_for(server.url());
  options.total_s = 2;
  std::vector<int> requests;
  options.on_request = [&](int request, int count) {
    EXPECT_EQ(count, 100);
    requests.push_back(request);
  };
  const LlmRun run = measure_llm(LlmClient(options), {"x"}, 100);
  EXPECT_GE(run.calls + run.failed, 1);
  EXPECT_LE(run.calls + run.failed, 5);
  EXPECT_EQ(run.skipped, 100 - run.calls - run.failed);
  ASSERT_EQ(static_cast<int64_t>(requests.size()), run.calls + run.failed);
  EXPECT_EQ(requests[0], 1);
}

TEST(Llm, StopsImmediatelyOnRequest) {
  std::atomic<bool> stop{false};
  LlmStandIn server([&](const auto& c, const std::string& path, const std::string& body) {
    if (path != "/api/generate") return good_llm(c, path, body);
    stop = true;
    c.wait_until_over();
  });
  LlmOptions o = options_for(server.url());
  o.stop = &stop;
  const LlmClient client(o);
  EXPECT_TRUE(has(error_of([&] { measure_llm(client, {"x"}, 3); }), "interrupted"));
}

TEST(Llm, SharingRunsAndEndsBoth) {
  LlmStandIn server(good_llm);
  const LlmClient client(options_for(server.url()));
  std::atomic<int64_t> steps{0};
  const SharingCost cost = measure_sharing(
      client, {"x"}, [&] { return ++steps, int64_t{10}; }, 0.0);
  EXPECT_EQ(cost.together.calls, 3);
  EXPECT_GT(cost.items_alone, 0);
  EXPECT_GE(steps.load(), 1);
  EXPECT_TRUE(has(error_of([&] {
                    measure_sharing(
                        client, {"x"}, []() -> int64_t { fail(ErrorCode::bad_data, "scoring broke"); }, 0.0);
                  }),
                  "scoring broke"));
}

TEST(Llm, PromptsAreBoundedAndDiffer) {
  const auto prompts = llm_prompts({std::string(100'000, 'x')}, 3);
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_LT(prompts[0].size(), 1000u);
  EXPECT_NE(prompts[0], prompts[1]);
  EXPECT_EQ(llm_prompts({}, 0).size(), 1u);
}

}  // namespace
}  // namespace brim::report
