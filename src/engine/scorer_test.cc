// SPDX-License-Identifier: Apache-2.0
// Tests the public interface: single and bulk calls give the same results, and requests select lengths, prompts and
// outputs. Concurrent work is tested in scorer_load_test.cc, admission in interactive_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/option_types.h"
#include "engine/scorer_fixture.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

TEST(ScorerOptions, ConvertsTextAndValues) {
  const ScorerOptions o{.device = "cuda:1", .precision = "BF16", .memory_limit = "6GiB", .leave_free = "500MiB"};
  EXPECT_EQ(o.device, Device(Device::Kind::cuda, 1));
  EXPECT_EQ(o.device.text(), "cuda:1");
  EXPECT_EQ(o.precision, Precision::bf16);
  EXPECT_EQ(o.precision.text(), "bf16");
  EXPECT_EQ(o.memory_limit, MemoryLimit::of_bytes(int64_t{6} << 30));
  EXPECT_EQ(o.memory_limit.text, "6GiB");
  EXPECT_EQ(MemoryLimit("90%").percent, 90);
  EXPECT_EQ(o.leave_free.bytes, int64_t{500} << 20);
  const ScorerOptions automatic{.device = "auto", .precision = "auto", .memory_limit = "auto", .leave_free = ""};
  EXPECT_EQ(automatic.device, ScorerOptions().device);
  EXPECT_EQ(automatic.precision, ScorerOptions().precision);
  EXPECT_EQ(automatic.memory_limit, ScorerOptions().memory_limit);
  EXPECT_EQ(automatic.leave_free, ScorerOptions().leave_free);
  for (const char* name : {"auto", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"})
    EXPECT_EQ(precision_text(precision_request(name)), name);
  for (const char* name : {"auto", "cpu", "cuda:0", "cuda:12"}) EXPECT_EQ(device_text(device_choice(name)), name);
  const plan::MemoryLimit limit = memory_limit("90%", "8GiB");
  EXPECT_EQ(limit.percent, 90);
  EXPECT_EQ(limit.leave_free_bytes, int64_t{8} << 30);
  EXPECT_HAS(error_of(ErrorCode::usage, [] { Device("cuda:x"); }), "`device=cuda:x`: unknown device");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { Precision("fp7"); }), "`precision=fp7`");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { MemoryLimit("4"); }), "did you mean 4GiB?");
  EXPECT_HAS(error_of(ErrorCode::usage, [] { LeaveFree("10%"); }), "`leave_free=10%`");
}

TEST(ModelKind, FollowsTheFiles) {
  const std::filesystem::path data = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data";
  const auto kind = [&](const char* name) { return model_kind((data / name).string()); };
  EXPECT_EQ(model_kind("vader"), ModelKind::rules);
  EXPECT_EQ(kind("models/bert_sequence"), ModelKind::classifier);
  EXPECT_EQ(kind("models/bert_token"), ModelKind::tagger);
  EXPECT_EQ(kind("models/bert_encoder"), ModelKind::embedder);
  EXPECT_EQ(kind("gliner/span"), ModelKind::tagger);
  EXPECT_THROW((void)model_kind((data / "models").string()), Error);
}

TEST_F(ScorerTest, RenamesLabels) {
  ScorerOptions o = options();
  const auto own = Scorer::open(o);
  const std::vector<std::string> labels = own->labels();
  ASSERT_GE(labels.size(), 2u);
  o.labels = {{labels[0], "other"}, {labels[1], labels[0]}};
  const auto renamed = Scorer::open(o);
  EXPECT_EQ(renamed->labels()[0], "other");
  EXPECT_EQ(renamed->labels()[1], labels[0]) << "all at once";
  EXPECT_EQ(renamed->score_names(), renamed->labels());
  for (const char* text : {"w6 w7", "w8", "w9 w20 w30"}) {
    const Prediction a = own->submit({.text = text}).get(), b = renamed->submit({.text = text}).get();
    EXPECT_EQ(a.scores, b.scores);
    const size_t place = static_cast<size_t>(std::find(labels.begin(), labels.end(), a.label) - labels.begin());
    EXPECT_EQ(b.label, renamed->labels()[place]);
  }
  o.labels = {{"none", "x"}};
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { Scorer::open(o); }), "has no label none; its labels: " + labels[0]);
  o.labels = {{labels[0], labels[1]}};
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { Scorer::open(o); }), "would have the name " + labels[1]);
  EXPECT_HAS(error_of(ErrorCode::usage,
                      [] {
                        Scorer::open({.model = "vader", .labels = {{"positive", "up"}}});
                      }),
             "not supported for VADER's rules");
}

TEST_F(ScorerTest, OnePassReturnsLabelsAndEntities) {
  ScorerOptions both = options();
  both.tagger = (temp_.path() / "tagger").string();
  model::put_tagger_twin(both.tagger, "bert_sequence");
  EXPECT_TRUE(share_encoder(both.model, both.tagger));
  EXPECT_FALSE(share_encoder(both.model, options("bert_token").model));
  EXPECT_FALSE(share_encoder(both.tagger, both.model));
  EXPECT_FALSE(share_encoder(both.model, both.model));
  EXPECT_FALSE(share_encoder("vader", both.tagger));
  ScorerOptions tags = options();
  tags.model = both.tagger;
  ScorerOptions labels = options();
  const auto finder = Scorer::open(tags);
  auto texts = make_texts(60, 5);
  for (std::string& text : make_texts(6, 6, 200)) texts.push_back(text);  // some exceed a window
  for (const bool raw : {false, true}) {
    both.raw_scores = labels.raw_scores = raw;
    const auto scorer = Scorer::open(both), classifier = Scorer::open(labels);
    size_t entities = 0;
    for (const std::string& text : texts) {
      const Prediction label = classifier->submit({.text = text}).get();
      const Prediction found = finder->submit({.text = text, .long_text = LongText::window_mean}).get();
      Request request{.text = text, .long_text = LongText::window_mean};
      request.entities = true;
      const Prediction p = scorer->submit(request).get();
      ASSERT_FALSE(p.error) << p.error->what();
      EXPECT_EQ(p.label, label.label) << text;
      ASSERT_EQ(p.scores.size(), label.scores.size());
      for (size_t k = 0; k < p.scores.size(); ++k) EXPECT_NEAR(p.scores[k], label.scores[k], 1e-6) << text;
      ASSERT_EQ(p.entities.size(), found.entities.size()) << text;
      for (size_t i = 0; i < p.entities.size(); ++i) {
        EXPECT_EQ(p.entities[i].word, found.entities[i].word);
        EXPECT_EQ(p.entities[i].start, found.entities[i].start);
        EXPECT_NEAR(p.entities[i].score, found.entities[i].score, 1e-6);
      }
      entities += p.entities.size();
      EXPECT_EQ(scorer->submit({.text = text}).get().scores, label.scores);  // the classifier's own pass is unchanged
    }
    EXPECT_GT(entities, 20u);
    EXPECT_EQ(scorer->work().batches, static_cast<int64_t>(2 * texts.size())) << "a pass each";
    Request request{.text = "w6"};
    request.entities = true;
    EXPECT_TRUE(classifier->submit(request).get().error) << "it has one head";
    scorer->park();
    EXPECT_FALSE(scorer->submit(request).get().error) << "loads again with both";
    ScorerOptions otherwise = both;
    otherwise.raw_scores = !raw;
    const auto beside = open_beside(*scorer, otherwise);
    const std::vector<float> want = classifier->submit({.text = "w6 w7"}).get().scores,
                             got = beside->submit({.text = "w6 w7"}).get().scores;
    for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-6) << "its first pass is another";
  }
}

TEST_F(ScorerTest, FindsModelsAndForwardsTheLog) {
  const ScorerOptions o = options();
  EXPECT_EQ(find_model(o.model), o.model);
  EXPECT_EQ(find_model("VADER"), "");
  EXPECT_THROW(find_model("no-such-model"), Error);
  std::vector<std::pair<bool, std::string>> lines;
  set_log([&](bool is_warning, std::string_view line) { lines.emplace_back(is_warning, line); });
  ScorerOptions longer = o;
  longer.max_length = 100000;
  (void)Scorer::open(longer);
  set_log({});
  (void)Scorer::open(longer);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].first);
  EXPECT_NE(lines[0].second.find("max_length=100000"), std::string::npos);
}

TEST_F(ScorerTest, SubmittedAndScoredTextsAgree) {
  const auto scorer = Scorer::open(options());
  EXPECT_EQ(scorer->kind(), ModelKind::classifier);
  EXPECT_EQ(scorer->labels().size(), 3u);
  EXPECT_GT(scorer->plan().peak_bytes, 0);
  int64_t sum = 0;
  for (const auto& [name, bytes] : scorer->plan().bytes) sum += bytes;
  EXPECT_EQ(sum, scorer->plan().peak_bytes);
  for (const size_t n : {size_t{1}, size_t{40}, size_t{3000}}) {  // alone, on the caller's thread, through the pipeline
    const auto texts = make_texts(n, 1);
    const Predictions many = scorer->score(views(texts));
    ASSERT_EQ(many.rows, n);
    ASSERT_EQ(many.scores.size(), n * 3);
    EXPECT_TRUE(many.errors.empty());
    Box box(n);
    for (size_t i = 0; i < n; ++i) scorer->submit({.text = texts[i], .ticket = i}, box);
    box.wait(n);
    EXPECT_TRUE(box.each_once());
    if (n == 3000) {
      EXPECT_LT(box.calls(), n) << "a call per text, not per batch";
    }
    int64_t tokens = 0;
    for (size_t i = 0; i < n; ++i) tokens += box[i].tokens;
    EXPECT_EQ(many.tokens, tokens);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_FALSE(box[i].error) << box[i].error->what();
      ASSERT_EQ(box[i].scores.size(), 3u);
      for (size_t k = 0; k < 3; ++k) ASSERT_NEAR(box[i].scores[k], many.scores[i * 3 + k], 2e-6) << i;
      EXPECT_EQ(box[i].label, scorer->labels()[static_cast<size_t>(many.labels[i])]);
      EXPECT_GE(box[i].timing.waited, 0);
      EXPECT_GT(box[i].timing.computed, 0);
    }
  }
  EXPECT_EQ(scorer->score({}).rows, 0u);
  const ScorerWork work = scorer->work();  // sum of all calls above
  EXPECT_GT(work.batches, 3);
  EXPECT_GT(work.tokens, 2 * 3041);
  EXPECT_GT(work.busy_seconds, 0);
  EXPECT_GT(work.flops, static_cast<double>(work.tokens));
}

TEST_F(ScorerTest, TaggersEmbeddersAndRulesHaveTheSameInterface) {
  const auto tagger = Scorer::open(options("bert_token"));
  EXPECT_EQ(tagger->kind(), ModelKind::tagger);
  const auto texts = make_texts(60, 2);
  const Predictions tagged = tagger->score(views(texts));
  ASSERT_EQ(tagged.entities.size(), texts.size());
  for (size_t i = 0; i < texts.size(); i += 7) {
    const Prediction one = tagger->submit({.text = texts[i]}).get();
    ASSERT_EQ(one.entities.size(), tagged.entities[i].size());
    for (size_t e = 0; e < one.entities.size(); ++e) {
      EXPECT_EQ(one.entities[e].word, tagged.entities[i][e].word);
      EXPECT_EQ(one.entities[e].group, tagged.entities[i][e].group);
      EXPECT_NEAR(one.entities[e].score, tagged.entities[i][e].score, 2e-6);
    }
  }
  ScorerOptions o = options();
  o.pooling = Pooling::mean;
  o.normalize = true;
  const auto embedder = Scorer::open(o);
  EXPECT_EQ(embedder->kind(), ModelKind::embedder);
  EXPECT_TRUE(embedder->labels().empty());
  const Predictions vectors = embedder->score(views(texts));
  const Prediction one = embedder->submit({.text = texts[3]}).get();
  ASSERT_EQ(one.embedding.size(), vectors.width);
  double squares = 0;
  for (size_t i = 0; i < vectors.width; ++i) {
    EXPECT_NEAR(one.embedding[i], vectors.scores[3 * vectors.width + i], 2e-6);
    squares += std::pow(one.embedding[i], 2);
  }
  EXPECT_NEAR(squares, 1, 1e-5);

  const auto rules = Scorer::open({.model = "vader"});
  EXPECT_EQ(rules->kind(), ModelKind::rules);
  const Prediction good = rules->submit({.text = "This is GREAT!!!"}).get();
  EXPECT_EQ(good.label, "positive");
  ASSERT_EQ(good.scores.size(), 4u);
  EXPECT_EQ(rules->score_names()[3], "compound");
  EXPECT_GT(good.scores[3], 0.6f);
  const std::vector<std::string_view> three = {"bad", "\xFF", "This is GREAT!!!"};
  const Predictions many = rules->score(three);
  EXPECT_EQ(many.labels, (std::vector<int32_t>{0, -1, 2}));
  EXPECT_EQ(many.label_scores[2], good.score);
  ASSERT_EQ(many.errors.size(), 1u);
  EXPECT_EQ(many.errors[0].first, 1u);
  std::vector<std::string_view> more;  // enough for the pipeline
  for (int i = 0; i < 9000; ++i) more.push_back(three[static_cast<size_t>(i % 3)]);
  const Predictions all = rules->score(more);
  ASSERT_EQ(all.errors.size(), 3000u);
  for (size_t i = 0; i < more.size(); ++i) {
    EXPECT_EQ(all.labels[i], many.labels[i % 3]);
    EXPECT_EQ(all.label_scores[i], many.label_scores[i % 3]);
  }
}

TEST_F(ScorerTest, LongTextsAreTruncatedWindowedOrRejected) {
  const std::string text = make_texts(1, 3, 1)[0] + [] {
    std::string rest;
    for (int i = 0; i < 500; ++i) rest += " w7";
    return rest;
  }();
  EXPECT_TRUE(Scorer::open(options())->submit({.text = text}).get().truncated);
  EXPECT_EQ(Scorer::open(options())->score(std::vector<std::string_view>{"w6", text}).truncated,
            (std::vector<uint8_t>{0, 1}));
  ScorerOptions o = options();
  o.long_text = LongText::window_mean;
  const auto windows = Scorer::open(o);
  const Prediction one = windows->submit({.text = text}).get();
  const std::string_view view = text;
  const Predictions many = windows->score({&view, 1});
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(one.scores[k], many.scores[k], 2e-6);
  EXPECT_FALSE(one.truncated);
  o.long_text = LongText::error;
  const auto strict = Scorer::open(o);
  const Prediction refused = strict->submit({.text = text}).get();
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->code(), ErrorCode::bad_data);
  const Predictions some = strict->score(std::vector<std::string_view>{text, "w6"});
  ASSERT_EQ(some.errors.size(), 1u);
  EXPECT_EQ(some.errors[0].first, 0u);
  EXPECT_EQ(some.labels[0], -1);
  EXPECT_GE(some.labels[1], 0);
}

TEST_F(ScorerTest, UsesTokenIdsUnchanged) {
  ScorerOptions o = options();
  o.pooling = Pooling::mean;
  const auto embedder = Scorer::open(o);
  std::vector<int32_t> ids;
  for (const TextToken& token : embedder->tokenize("w6 w7")) ids.push_back(token.id);
  EXPECT_EQ(embedder->submit({.ids = ids}).get().embedding, embedder->submit({.text = "w6 w7"}).get().embedding);
  const std::span<const int32_t> bare = std::span(ids).subspan(1, 2);  // special tokens are not added
  EXPECT_EQ(embedder->submit({.ids = bare}).get().tokens, 2);
  EXPECT_NE(embedder->submit({.ids = bare}).get().embedding, embedder->submit({.ids = ids}).get().embedding);
  const std::vector<int32_t> many(100, 7);  // the model's limit is 44
  const Prediction cut = embedder->submit({.ids = many}).get();
  EXPECT_TRUE(cut.truncated);
  EXPECT_EQ(cut.embedding, embedder->submit({.keep_end = true, .ids = many}).get().embedding);
  EXPECT_EQ(embedder->submit({.long_text = LongText::error, .ids = many}).get().tokens, 100);
  const Prediction windows = embedder->submit({.long_text = LongText::window_mean, .ids = many}).get();
  EXPECT_FALSE(windows.truncated);
  for (size_t d = 0; d < cut.embedding.size(); ++d) EXPECT_NEAR(windows.embedding[d], cut.embedding[d], 1e-5);
  for (const int32_t id : {-1, 96}) {
    const std::vector<int32_t> wrong{6, id};
    EXPECT_EQ(embedder->submit({.ids = wrong}).get().error->code(), ErrorCode::bad_data);
  }
  EXPECT_TRUE(Scorer::open(options("bert_token"))->submit({.ids = ids}).get().error);
  EXPECT_TRUE(Scorer::open({.model = "vader"})->submit({.ids = ids}).get().error);
}

TEST_F(ScorerTest, RejectionsStateTheReason) {
  const auto scorer = Scorer::open(options());
  const auto code = [](const Prediction& p) { return p.error ? p.error->code() : ErrorCode::internal; };
  EXPECT_EQ(code(scorer->submit({.text = "\xC3("}).get()), ErrorCode::bad_data);
  Request late{.text = "w6"};
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_EQ(code(scorer->submit(late).get()), ErrorCode::timed_out);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(code(scorer->submit({.text = "w6", .stop = stop.get_token()}).get()), ErrorCode::cancelled);
  const auto texts = make_texts(3000, 4);
  const Predictions none = scorer->score(views(texts), stop.get_token());
  ASSERT_EQ(none.errors.size(), texts.size());
  EXPECT_EQ(none.errors[0].second.code(), ErrorCode::cancelled);
  EXPECT_FALSE(scorer->submit({.text = "w6"}).get().error) << "the scorer still works";
  scorer->close();
  EXPECT_EQ(code(scorer->submit({.text = "w6"}).get()), ErrorCode::cancelled);
  EXPECT_THROW(scorer->score(views(texts)), Error);
  scorer->close();

  ScorerOptions o = options();
  o.queue_seconds = 1e-9;  // no text may wait behind another
  const auto impatient = Scorer::open(o);
  Box box(2000);
  for (size_t i = 0; i < 2000; ++i) impatient->submit({.text = texts[i], .ticket = i}, box);
  box.wait(2000);
  size_t busy = 0, scored = 0;
  for (size_t i = 0; i < 2000; ++i) {
    busy += code(box[i]) == ErrorCode::busy;
    scored += !box[i].error;
  }
  EXPECT_GT(busy, 0u);
  EXPECT_GT(scored, 0u);
  EXPECT_EQ(busy + scored, 2000u);
  Box together(200);  // a single call on an empty queue is admitted whole
  std::vector<Request> call;
  for (size_t i = 0; i < 200; ++i) call.push_back({.text = texts[i], .ticket = i});
  impatient->submit(call, together);
  together.wait(200);
  for (size_t i = 0; i < 200; ++i) EXPECT_FALSE(together[i].error) << i;
  EXPECT_THROW(Scorer::open({.model = "/no/such/model"}), Error);
  EXPECT_THROW(Scorer::open({.model = "vader", .pooling = Pooling::cls}), Error);
}

TEST_F(ScorerTest, RequestSelectsTheLongTextMode) {
  const auto scorer = Scorer::open(options());
  const auto longest = static_cast<size_t>(scorer->max_length());
  std::string head, tail;
  for (size_t i = 0; i < longest; ++i) {
    head += "w6 ";
    tail += "w9 ";
  }
  const auto score = [&](Request request) { return scorer->submit(request).get(); };
  const std::string both = head + tail;
  const Prediction begin = score({.text = both}), end = score({.text = both, .keep_end = true});
  EXPECT_TRUE(begin.truncated);
  EXPECT_TRUE(end.truncated);
  EXPECT_GT(end.tokens, scorer->max_length());
  for (size_t k = 0; k < begin.scores.size(); ++k) {
    EXPECT_NEAR(begin.scores[k], score({.text = head}).scores[k], 1e-5);
    EXPECT_NEAR(end.scores[k], score({.text = tail}).scores[k], 1e-5);
  }
  EXPECT_EQ(score({.text = both, .max_length = scorer->max_length() * 2}).scores, begin.scores);
  const Prediction five = score({.text = "w6 w6 w6 w6 w6 w6", .max_length = 5});
  EXPECT_TRUE(five.truncated);
  for (size_t k = 0; k < five.scores.size(); ++k)
    EXPECT_NEAR(five.scores[k], score({.text = "w6 w6 w6"}).scores[k], 1e-5);
  ASSERT_TRUE(score({.text = "w6", .max_length = 2}).error);
  const Prediction refused = score({.text = both, .long_text = LongText::error});
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.tokens, end.tokens);
  const Prediction windows = score({.text = both, .long_text = LongText::window_max});
  EXPECT_FALSE(windows.truncated);
  for (size_t k = 0; k < begin.scores.size(); ++k) EXPECT_GE(windows.scores[k] + 1e-5, begin.scores[k]);
  const auto mean = [&](int32_t overlap) {
    return score({.text = both, .long_text = LongText::window_mean, .overlap = overlap}).scores;
  };
  EXPECT_EQ(mean(0), mean(-1));
  EXPECT_NE(mean(static_cast<int32_t>(longest) / 2), mean(-1)) << "more windows have both words";
}

TEST_F(ScorerTest, RawScoresAreLogits) {
  ScorerOptions o = options();
  const auto plain = Scorer::open(o);
  EXPECT_TRUE(plain->submit({.text = "w6", .raw_scores = true}).get().error);
  o.raw_scores = true;
  const auto scorer = Scorer::open(o);
  const Prediction raw = scorer->submit({.text = "w6 w7", .raw_scores = true}).get();
  const Prediction scores = scorer->submit({.text = "w6 w7"}).get(), same = plain->submit({.text = "w6 w7"}).get();
  ASSERT_EQ(raw.scores.size(), scores.scores.size());
  double sum = 0;
  for (const float logit : raw.scores) sum += std::exp(static_cast<double>(logit));
  for (size_t k = 0; k < raw.scores.size(); ++k) {
    EXPECT_NEAR(scores.scores[k], std::exp(static_cast<double>(raw.scores[k])) / sum, 1e-5);
    EXPECT_NEAR(scores.scores[k], same.scores[k], 1e-5);
  }
  EXPECT_EQ(scores.label, same.label);
  const auto texts = make_texts(40, 3);
  const Predictions many = scorer->score(views(texts)), expected = plain->score(views(texts));
  for (size_t i = 0; i < many.scores.size(); ++i) EXPECT_NEAR(many.scores[i], expected.scores[i], 1e-5);
}

}  // namespace
}  // namespace brim::engine
