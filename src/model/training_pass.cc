// SPDX-License-Identifier: Apache-2.0
#include "model/training_pass.h"

#include <algorithm>

#include "model/architecture.h"

namespace brim::model {

using tensor::TensorView;

const char* recompute_name(Recompute level) {
  static const char* const names[] = {"none", "half", "selective", "full"};
  return names[static_cast<int>(level)];
}

std::optional<Recompute> recompute_from_name(std::string_view name) {
  for (const auto level : kRecomputeLevels)
    if (name == recompute_name(level)) return level;
  return std::nullopt;
}

TrainResult forward_backward(Exec& exec, const TrainPass& pass, const ops::BatchView& batch,
                             const TrainTargets& targets) {
  const Architecture& model = pass.architecture;
  const ModelShape& s = model.shape();
  const Pass p{exec, s, pass.params, batch, &pass.training};
  const bool first_tokens = s.sequence_classes > 0 && s.token_classes == 0 && !s.mean_pooling;
  const auto on_first = [&](int64_t l) { return first_tokens && l + 1 == s.layers; };
  Hidden x{p.activations(batch.T, s.hidden)};
  EmbeddingSaved embedded;
  model.embed(p, x, &embedded);
  const int64_t lowest = model.lowest_trained();
  std::vector<LayerTape> tapes(static_cast<size_t>(s.layers));
  for (int64_t l = 0; l < s.layers; ++l) {
    LayerTape unread;  // layers without a backward pass keep nothing: no later op uses these tensors
    LayerTape& tape = l < lowest ? unread : tapes[static_cast<size_t>(l)];
    tape.keep_cheap =
        l >= lowest && (pass.recompute == Recompute::none || (pass.recompute == Recompute::half && l % 2 == 0));
    tape.x = x.x;
    x = model.layer(p, l, x, on_first(l), {}, &tape);
  }
  TrainResult result;
  TensorView d_x = model.finish_training(p, x.x, first_tokens, pass.loss, targets, result);
  for (int64_t l = s.layers - 1; l >= std::max<int64_t>(0, lowest); --l) {
    LayerTape& tape = tapes[static_cast<size_t>(l)];
    if (pass.recompute == Recompute::full) {
      LayerTape again;
      again.x = tape.x;
      model.layer(p, l, {again.x}, on_first(l), {}, &again);
      tape = again;
    }
    d_x = model.layer_backward(p, l, on_first(l), tape, d_x);
  }
  if (lowest < 0) model.embed_backward(p, embedded, d_x);
  exec.memory.keep(result.loss);
  if (result.sequence_logits) exec.memory.keep(result.sequence_logits);
  if (result.token_logits) exec.memory.keep(result.token_logits);
  return result;
}

}  // namespace brim::model
