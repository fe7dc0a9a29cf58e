// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: arbitrary bytes as gliner_config.json, with the encoder's configuration inside. Values are within their
// bounds or rejected.
#include <cstdlib>

#include "base/error.h"
#include "base/test_files.h"
#include "hub/gliner_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const brim::TempDir dir;
  brim::put_file(dir / "gliner_config.json", std::string(reinterpret_cast<const char*>(data), size));
  try {
    const brim::hub::GlinerConfig config = brim::hub::load_gliner_config(dir.path());
    if (config.hidden_size < 1 || config.max_width < 1 || config.max_words < 1) std::abort();
    if (config.label_marker.empty() || config.text_marker.empty() || config.label_marker_id < -1) std::abort();
    if (config.encoder_json.empty()) return 0;  // its encoder is not here
    if (brim::hub::load_gliner_encoder(dir.path()).hidden_size < 1) std::abort();
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
