// SPDX-License-Identifier: Apache-2.0
// Names every function and type of include/brim, so that the debug information of this file describes the ABI of
// libbrim.so. Only compiled, never run (abi.sh).
#include <brim/brim.h>
#include <brim/compare.h>
#include <brim/forecast.h>
#include <brim/monitor.h>
#include <brim/plan.h>
#include <brim/pull.h>
#include <brim/shards.h>
#include <brim/train.h>

namespace brim_abi {

#define FUNCTION(name) decltype(&brim::name) name = &brim::name
FUNCTION(compare_models);
FUNCTION(evaluate_forecasts);
FUNCTION(find_model);
FUNCTION(find_prompts);
FUNCTION(finish_shards);
FUNCTION(model_kind);
FUNCTION(open_beside);
FUNCTION(open_together);
FUNCTION(plan_model);
FUNCTION(plan_together);
FUNCTION(predict_series);
FUNCTION(pull_model);
FUNCTION(read_gpus);
FUNCTION(roll_forecaster);
FUNCTION(run_shard);
FUNCTION(run_training);
FUNCTION(set_log);
FUNCTION(share_encoder);
FUNCTION(train_forecaster);
FUNCTION(version);

#define TYPE(name) brim::name* name
struct Types {
  TYPE(Aggregation);
  TYPE(Answer);
  TYPE(ClientWait);
  TYPE(CompareOptions);
  TYPE(CompareReport);
  TYPE(ComparedScores);
  TYPE(Completion);
  TYPE(Device);
  TYPE(Entity);
  TYPE(EntityLabels);
  TYPE(Error);
  TYPE(ErrorCode);
  TYPE(ForecastListener);
  TYPE(ForecastSpec);
  TYPE(Forecasts);
  TYPE(GpuReading);
  TYPE(LeaveFree);
  TYPE(LongText);
  TYPE(MemoryLimit);
  TYPE(MemoryPlan);
  TYPE(ModelKind);
  TYPE(ModelPlan);
  TYPE(PlanOptions);
  TYPE(PooledModel);
  TYPE(Pooling);
  TYPE(Precision);
  TYPE(Prediction);
  TYPE(Predictions);
  TYPE(Prompts);
  TYPE(Remedy);
  TYPE(Request);
  TYPE(Residence);
  TYPE(Scorer);
  TYPE(ScorerLoad);
  TYPE(ScorerOptions);
  TYPE(ScorerWork);
  TYPE(TextToken);
  TYPE(Timing);
  TYPE(TrainListener);
  TYPE(TrainReport);
  TYPE(TrainSpec);
  TYPE(ValueCounts);
  TYPE(ZeroShot);
  TYPE(ZeroShotLabels);
} types;

}  // namespace brim_abi
