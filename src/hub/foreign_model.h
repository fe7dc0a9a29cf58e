// SPDX-License-Identifier: Apache-2.0
// Recognises directories in formats that Brim does not read (LoRA adapters, GGUF, ONNX, TensorFlow, incomplete shards),
// so that errors can name the cause. Looks at file names only, except for an adapter's base model.
#pragma once
#include <filesystem>
#include <string>

namespace brim::hub {

// The problem and its fix, without the directory; empty if the directory has readable weights or an unknown layout.
std::string foreign_model(const std::filesystem::path& dir);

}  // namespace brim::hub
