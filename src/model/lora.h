// SPDX-License-Identifier: Apache-2.0
// Linear layers of a model that LoRA can adapt, by PEFT's names. Their products are in blocks/lora.h.
#pragma once
#include <string>
#include <vector>

#include "hub/adapter.h"
#include "model/params.h"

namespace brim::model {

// Name of the module with this tensor: without ".weight".
std::string module_of(const std::string& tensor);

// Whether a parameter is a matrix with which LoRA can be trained: a linear layer of the encoder's layers. Heads are
// trained as a whole.
bool can_adapt(const ParamSpec& spec);

struct LinearModule {
  std::string name;            // bert.encoder.layer.0.attention.self.query
  int64_t rows = 0, cols = 0;  // size of its matrix
  int64_t layer = -1;          // -1: shared by layers
  size_t matrix = 0;           // index of the parameter, which may stack several modules
  bool adaptable = false;      // in a layer, and not part of a head
  bool head = false;
  bool attention = false;
};
std::vector<LinearModule> linear_modules(const ModelShape& shape);

// Names for adapter_config.json that select exactly these modules in PEFT: ends of names if possible.
std::vector<std::string> shortest_targets(const ModelShape& shape, const std::vector<std::string>& modules);

// Modules that are saved as a whole: the heads.
std::vector<std::string> saved_modules(const ModelShape& shape);
// Full names of the tensors of all heads.
std::vector<std::string> head_tensors(const ModelShape& shape);

// Replaces the initial values of adapters and heads by those of an adapter for the model in `source`, except the
// matrices of the classes if there are others (`new_classes`). Returns the names of the head's tensors it has.
std::vector<std::string> load_adapter(const hub::Adapter& adapter, const hub::WeightSource& source,
                                      const ModelShape& shape, bool new_classes, std::vector<float>& master);

}  // namespace brim::model
