// SPDX-License-Identifier: Apache-2.0
// Reads pytorch_model.bin: a state dict written by torch.save, as a zip archive (torch 1.6 and later) or as a
// sequence of pickles followed by raw storages (before). The pickle is read as data by hub/pickle.h; nothing in it is
// executed. Sizes, strides and offsets are checked against the storages, and these against the file.
#pragma once
#include <span>
#include <string>

#include "hub/stored_tensor.h"

namespace brim::hub {

// The tensors point into `file`. `where` names the file in errors, which are Error(bad_model).
TensorTable parse_torch_bin(std::span<const std::byte> file, const std::string& where);

}  // namespace brim::hub
