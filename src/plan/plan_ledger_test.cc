// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/units.h"
#include "memory/ledger.h"
#include "model/weights.h"
#include "plan/plan.h"
#include "plan/resolve.h"

namespace brim::plan {
namespace {

model::ModelShape small_model(int64_t layers) {
  model::ModelShape s;
  s.family = hub::Family::bert;
  s.layers = layers;
  s.hidden = 384;
  s.heads = 12;
  s.ffn = 1536;
  s.vocab = 30522;
  s.positions = 512;
  s.types = 2;
  s.sequence_classes = 3;
  return s;
}

DeviceProfile one_core() {
  DeviceProfile p = estimated_cpu(device::best_isa(), 1, int64_t{1} << 30);
  p.context_bytes = int64_t{22} << 20;
  return p;
}

PlanRequest ledger_request(const model::ModelShape& model, Task task, const DeviceProfile& device) {
  PlanRequest r;
  r.shape = model;
  r.task = task;
  r.device = device;
  r.precision = resolve_precision({}, device, task).precision;
  r.max_length = 128;
  r.limit_bytes = device.total_bytes;
  return r;
}

TEST(PlanLedger, PartsSumToThePlanAndRoundTrip) {
  for (const char* card : {"rtx3070", "cpu"})
    for (const Task task : {Task::score, Task::train}) {
      PlanRequest r =
          ledger_request(small_model(6), task, card == std::string("cpu") ? one_core() : card_profile(card));
      add_host_memory(r, std::string(BRIM_SOURCE_DIR) + "/tests/data/models/bert_sequence");
      const Plan p = solve(r);
      EXPECT_EQ(memory::total_bytes(p.ledger()), p.peak_bytes);
      EXPECT_EQ(total_bytes(p.parts), p.own_bytes());
      memory::TagBytes by_tag;
      for (const memory::LedgerEntry& e : p.ledger()) {
        by_tag[e.tag] += e.bytes;
        EXPECT_GT(e.bytes, 0) << e.owner;
        EXPECT_FALSE(e.owner.empty());
      }
      EXPECT_EQ(by_tag.bytes, p.bytes.bytes);
      auto j = nlohmann::ordered_json::parse(to_json(p));
      EXPECT_EQ(plan_from_json(j.dump()).parts, p.parts);
      j["ledger"][0]["bytes"] = j["ledger"][0]["bytes"].get<int64_t>() + 1;
      EXPECT_THROW(plan_from_json(j.dump()), Error);
      j.erase("ledger");  // an old checkpoint
      const Plan old = plan_from_json(j.dump());
      EXPECT_EQ(total_bytes(old.parts), p.own_bytes());
      EXPECT_EQ(old.bytes.bytes, p.bytes.bytes);
    }
}

TEST(PlanLedger, SeveralModelsHoldTheContextOnce) {
  const DeviceProfile card = card_profile("rtx3070");
  const Plan a = solve(ledger_request(small_model(6), Task::score, card)),
             b = solve(ledger_request(small_model(12), Task::score, card));
  const auto own = [](const Plan& plan) { return total_bytes(plan.own_parts()); };
  const auto shared = [&](const Plan& plan) { return plan.own_bytes() - own(plan); };
  const auto entries = ledger_of({&a, &b}, {"mini", "base"});
  EXPECT_GE(total_bytes(entries), own(a) + own(b) + std::max(shared(a), shared(b)) + card.context_bytes);
  EXPECT_LT(total_bytes(entries), a.own_bytes() + b.own_bytes() + card.context_bytes);
  EXPECT_EQ(total_bytes(entries), planned_bytes({&a, &b}));
  EXPECT_EQ(entries[0].owner, "mini: model");
  EXPECT_EQ(entries.back(), context_entry(card));
}

TEST(PlanLedger, AlternatingModelsFitTogetherIfTheirWeightsDo) {
  const DeviceProfile card = card_profile("rtx3070");
  std::vector<PlanRequest> requests{ledger_request(small_model(6), Task::score, card),
                                    ledger_request(small_model(12), Task::score, card)};
  const auto plan = [&](int64_t limit) {
    for (PlanRequest& r : requests) r.limit_bytes = limit;
    return solve_turns(requests, Residency::in_turn);
  };
  const auto together = [](const TurnPlans& turns) { return planned_bytes({&turns.plans[0], &turns.plans[1]}); };
  const TurnPlans roomy = plan(int64_t{4} << 30);
  EXPECT_TRUE(roomy.all_resident);
  EXPECT_LE(together(roomy), int64_t{4} << 30);
  int64_t own = 0, largest = 0;
  for (const Plan& p : roomy.plans) {
    own += total_bytes(p.own_parts());
    largest = std::max(largest, total_bytes(p.own_parts()));
  }
  bool all = false, in_turn = false;
  for (int64_t limit = card.context_bytes + largest; limit < int64_t{4} << 30; limit += int64_t{8} << 20) {
    TurnPlans turns;
    try {
      turns = plan(limit);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::does_not_fit);
      EXPECT_FALSE(all || in_turn) << "fits under a smaller limit";
      continue;
    }
    all = all || turns.all_resident;
    in_turn = in_turn || !turns.all_resident;
    EXPECT_EQ(all, turns.all_resident) << "all models fit together under a smaller limit";
    EXPECT_LE(together(turns) - (turns.all_resident ? 0 : own - largest), limit);
  }
  EXPECT_TRUE(all);
  EXPECT_TRUE(in_turn);
  // The suggested limit is sufficient.
  for (PlanRequest& r : requests) r.limit_bytes = card.context_bytes + own;
  try {
    (void)solve_turns(requests, Residency::all);
    FAIL() << "fits although no memory is left for a batch";
  } catch (const Error& e) {
    const std::string text = e.what();
    const size_t at = text.find("`memory_limit=");
    ASSERT_NE(at, std::string::npos) << text;
    const size_t value = at + std::string("`memory_limit=").size();
    for (PlanRequest& r : requests) r.limit_bytes = *parse_bytes(text.substr(value, text.find('`', value) - value));
    EXPECT_TRUE(solve_turns(requests, Residency::all).all_resident);
  }
}

TEST(PlanLedger, ListsModelsThatMayBeResidentTogether) {
  DeviceProfile card = one_core();
  std::vector<Plan> plans;
  const auto add = [&](int64_t own) {
    Plan& p = plans.emplace_back();
    p.device = card;
    p.device.context_bytes = 100;
    p.add(memory::Tag::weights, "model", own);
    p.add(memory::Tag::activations, kForwardPass, own / 2);  // the largest counts, once
  };
  for (const int64_t own : {60, 40, 20}) add(own);
  const auto sets = [&](int64_t limit) {
    std::string text;
    for (const ResidentSet& set : resident_sets(plans, limit))
      text += fmt::format("{} {}; ", fmt::join(set.models, "+"), set.bytes);
    return text;
  };
  EXPECT_EQ(sets(250), "0+1+2 250; ");
  EXPECT_EQ(sets(249), "0+1 230; 0+2 210; 1+2 190; ");
  EXPECT_EQ(sets(229), "0+2 210; 1+2 190; ");
  EXPECT_EQ(sets(209), "0 190; 1+2 190; ");
  while (plans.size() <= kListedResidents) add(40);
  EXPECT_EQ(sets(130 + 20 + 3 * 40 + 39), "1+2+3+4 270; ");
}

// Two models load and unload on one device: reservations never exceed the limit, and a refusal lists the holders.
TEST(PlanLedger, TwoHundredLoadsAndEvictionsStayUnderTheLimit) {
  struct Loaded {
    memory::PlannedMemory memory;
    std::unique_ptr<model::Model> model;
    device::DeviceBuffer arena;
  };
  const auto device = device::open_cpu_device(1);
  memory::Ledger& ledger = memory::Ledger::of(*device);
  std::vector<std::string> dirs;
  std::vector<Plan> plans;
  for (const char* name : {"bert_sequence", "roberta_sequence"}) {
    dirs.push_back(fmt::format("{}/tests/data/models/{}", BRIM_SOURCE_DIR, name));
    PlanRequest r;
    r.shape = model::read_shape(dirs.back());
    r.device = one_core();
    r.max_length = r.shape.max_tokens();
    r.limit_bytes = int64_t{64} << 20;
    add_host_memory(r, dirs.back());
    plans.push_back(solve(r));
  }
  ledger.set_limit(planned_bytes({&plans[0], &plans[1]}) + plans[0].own_bytes() / 2);  // both, but neither twice
  std::mt19937 random(5);
  std::vector<std::pair<size_t, Loaded>> held;
  int loaded = 0, refused = 0, evicted = 0;
  for (int i = 0; i < 200; ++i) {
    if (random() % 3 == 0 && !held.empty()) {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
      ++evicted;
    } else {
      const size_t m = random() % 2;
      const Plan& plan = plans[m];
      const std::string name = std::filesystem::path(dirs[m]).filename().string();
      try {
        Loaded one;
        one.memory = reserve(ledger, plan, name);
        one.model = model::Model::load(dirs[m], *device, plan.precision, &one.memory);
        const model::ForwardPlan forward = plan_forward(one.model->shape(), plan.precision, device::DeviceKind::cpu,
                                                        plan.device.isa, 1, plan.limits(), plan.output);
        one.arena = memory::Ledger::allocate(*device, &one.memory, forward.arena_tags(), "forward pass");
        held.emplace_back(m, std::move(one));
        ++loaded;
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
        const std::string why = e.what();
        EXPECT_NE(why.find(name + " needs"), std::string::npos) << why;
        EXPECT_NE(why.find("(weights)"), std::string::npos) << why;
        EXPECT_NE(why.find("program (context)"), std::string::npos) << why;
        ++refused;
      }
    }
    int64_t expected = plans[0].device.context_bytes;
    for (const auto& [m, one] : held) expected += plans[m].own_bytes();
    ASSERT_EQ(ledger.reserved_bytes(), loaded > 0 ? expected : 0);
    ASSERT_LE(ledger.most_reserved_bytes(), ledger.limit_bytes());
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 20);
  EXPECT_GT(evicted, 20);
  held.clear();
  EXPECT_EQ(ledger.reserved_bytes(), plans[0].device.context_bytes) << "the context of the program stays reserved";
}

}  // namespace
}  // namespace brim::plan
